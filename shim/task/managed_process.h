// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <memory>
#include <optional>
#include <vector>

#include "oci/base/result.h"
#include "shim/loop/unique_function.h"
#include "shim/process/stdio.h"
#include "shim/task/exit_record.h"
#include "shim/task/process_state.h"

namespace icebox::shim {

// A container's init or one of its exec'ed processes, from Create or Exec to Delete: its state, its
// stdio, who waits for its end. Lives inside a Container.
class ManagedProcess {
 public:
  using Waiter = UniqueFunction<void(const ExitInfo&)>;

  explicit ManagedProcess(StdioSpec stdio) : stdio_(std::move(stdio)) {}
  ManagedProcess(const ManagedProcess&) = delete;
  ManagedProcess& operator=(const ManagedProcess&) = delete;
  // Whoever still waits is told the status that containerd uses for "unknown", 255.
  ~ManagedProcess();

  [[nodiscard]] const StdioSpec& stdio() const { return stdio_; }
  [[nodiscard]] ProcessState state() const { return state_; }
  [[nodiscard]] pid_t pid() const { return pid_; }
  [[nodiscard]] const std::optional<ExitInfo>& exit() const { return exit_; }

  // The pid stays known after the exit.
  void set_pid(pid_t pid) { pid_ = pid; }

  // Moves on. False, and nothing changed, where the table of process_state.h has no such
  // transition.
  bool apply(ProcessEvent event);

  // STOPPED, with these values; tells everybody who waits. Once.
  void finish(const ExitInfo& exit);

  // Calls `waiter` once: now if the process has ended, else when it does.
  void wait(Waiter waiter);

  // CloseIO: the process sees the end of its input once the client has closed its end too. Also
  // right for a process that has not been started yet.
  void close_stdin();

  // Takes the stdio of the process; a CloseIO that came before is made good.
  void set_io(std::unique_ptr<ProcessIo> stdio);

  std::unique_ptr<ProcessIo> io;  // absent before the start of an exec and after the end

 private:
  StdioSpec stdio_;
  ProcessState state_ = ProcessState::created;
  pid_t pid_ = 0;
  std::optional<ExitInfo> exit_;
  std::vector<Waiter> waiters_;
  bool stdin_closed_ = false;
};

}  // namespace icebox::shim
