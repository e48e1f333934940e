// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "oci/base/result.h"
#include "oci/base/unique_fd.h"
#include "runtime-hooks/checkpoint/journal.h"
#include "runtime-hooks/container/cgroup.h"
#include "runtime-hooks/container/process.h"
#include "runtime-hooks/cuda/gpu_client.h"
#include "runtime-hooks/runtime/args.h"
#include "runtime-hooks/runtime/config.h"
#include "runtime-hooks/runtime/oci_runtime.h"

namespace icebox::engine {

// What every command of the engine works with; lives as long as the process.
struct Engine {
  Config config;
  Invocation invocation;
  OciRuntime runtime;
};

// One operation on one container: holds its lock, keeps its journal, measures its phases, and
// starts the GPU agent when the first GPU process turns up. Lives in the engine's main thread (the
// thread hold is bound to it).
class Session {
 public:
  // Takes the lock (unavailable when another operation is under way) and, if an earlier engine died
  // half-way through an operation on this container, first rolls that back.
  static Result<Session> open(Engine& engine, OperationKind kind, const std::string& id);

  Session(Session&&) = default;
  Session& operator=(Session&&) = delete;

  [[nodiscard]] Engine& engine() { return *engine_; }
  [[nodiscard]] const std::string& id() const { return id_; }
  [[nodiscard]] const ContainerState& state() const { return state_; }
  Journal& journal() { return journal_; }
  // Whether a client paused the container through Icebox before this operation.
  [[nodiscard]] bool was_held() const { return was_held_; }

  // Begins a phase: ends the one before, writes the journal, logs a progress line
  // ({"op","phase","event":"start"}), and passes the fault point "<operation>.<phase>".
  Result<void> enter(const std::string& phase);
  // Writes the journal as it is now.
  Result<void> save() { return state_.write(journal_); }
  // Ends the last phase; the operation succeeded. The container stays paused with its GPU held /
  // nothing is promised any more.
  Result<void> finish_held();
  Result<void> finish();
  // The same for a container that is gone: its directory goes too.
  Result<void> forget();

  // Milliseconds of every phase so far.
  [[nodiscard]] std::map<std::string, std::int64_t> timings() const;

  // The agent, started at the first call, and anew when it was lost: an undo must not fail with it.
  Result<cuda::GpuAgent*> agent();

  // The driver has not come back from a call about a target, and the engine has given it up. The
  // journal must stay as it is: an undo would have to wait for the driver.
  void note_driver_stuck() { driver_stuck_ = true; }
  [[nodiscard]] bool driver_stuck() const { return driver_stuck_; }
  // The container's own threads ran during a driver call that did not come back while they were
  // held.
  void note_others_ran() { others_ran_ = true; }
  [[nodiscard]] bool others_ran() const { return others_ran_; }
  // What a driver Checkpoint or Restore may take (configuration driver_timeout, and device memory
  // that the driver moves at some GiB/s).
  [[nodiscard]] std::chrono::milliseconds driver_patience(std::uint64_t gpu_bytes) const;

  // A directory of this operation's own below the state directory, empty at first.
  Result<std::string> scratch(const std::string& name);

 private:
  Session(Engine& engine, std::string id, ContainerState state, UniqueFd lock)
      : engine_(&engine), id_(std::move(id)), state_(std::move(state)), lock_(std::move(lock)) {}
  void end_phase();

  Engine* engine_;
  std::string id_;
  ContainerState state_;
  UniqueFd lock_;
  Journal journal_;
  bool was_held_ = false;
  bool driver_stuck_ = false;
  bool others_ran_ = false;
  std::optional<cuda::GpuAgent> agent_;
  std::string phase_;
  std::chrono::steady_clock::time_point phase_start_;
  std::map<std::string, std::int64_t> timings_;
};

// A container as the runtime and /proc show it.
struct ContainerView {
  RuntimeState state;
  container::Process init;
  container::Cgroup cgroup;
};

// Looks the session's container up, whose init must be alive: failed_precondition when it has ended
// or was not started. not_found when the runtime does not know it; nothing is kept of it then.
Result<ContainerView> look_up(Session& session);

}  // namespace icebox::engine
