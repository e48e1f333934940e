// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string_view>

namespace icebox::shim {

// What the daemon has promised about a process. It is the daemon's own word: a frozen task whose
// engine died half-way is still kPaused, whatever the freezer says at that moment.
enum class ProcessState { created, running, pausing, paused, stopped };

// What can happen to a process.
enum class ProcessEvent {
  started,       // the runtime's start (or restore) succeeded
  pause_begun,   // a pause was handed to the engine
  paused,        // ... which froze the task
  pause_failed,  // ... which could not
  resumed,       // the engine's resume succeeded
  exited,        // the process was reaped
};

// The state after `event`, or nullopt where the event is not allowed in `state`. Pure; the whole
// table is tested cell by cell.
[[nodiscard]] std::optional<ProcessState> next_state(ProcessState state, ProcessEvent event);

// "created", "running", ...: the word used in error texts and logs.
[[nodiscard]] std::string_view state_name(ProcessState state);

// The value of containerd.v1.types.Status for `state` (shim contract, section 4).
[[nodiscard]] int state_to_wire(ProcessState state);

}  // namespace icebox::shim
