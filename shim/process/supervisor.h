// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <memory>
#include <unordered_map>

#include "oci/base/pid_ref.h"
#include "oci/base/result.h"
#include "shim/loop/event_loop.h"

namespace icebox::shim {

// How and when a process ended.
struct ProcessExit {
  pid_t pid = 0;
  int wait_status = 0;     // as waitpid(2) gives it; 255 << 8 when nobody can know it any more
  unsigned exit_code = 0;  // the contract's number: exit code, or 128 + signal
  std::chrono::system_clock::time_point at{};  // when the daemon saw it
};

// Knows every process the daemon answers for and reaps each through its own pidfd. There is no
// wait-any: a process that ended before it was registered waits as a zombie, so no exit can be lost
// or taken by the wrong reader. Destroying it leaves the processes running and unreaped.
class Supervisor {
 public:
  using ExitHandler = UniqueFunction<void(const ProcessExit&)>;

  // `loop` is borrowed.
  explicit Supervisor(EventLoop& loop) : loop_(&loop) {}

  // PR_SET_CHILD_SUBREAPER: orphaned descendants (the init that runc leaves behind) become children
  // of this process.
  static Result<void> become_subreaper();

  // Calls `on_exit` exactly once, from the loop and never from inside this call, when `process` has
  // ended and been reaped. The process is a child, or a descendant that is or will be reparented
  // here; it may already be a zombie. While its present parent or a tracer still holds the zombie,
  // the exit is reported as soon as it can be waited for; when another process reaped it, with code
  // 255. already_exists when the pid is watched already.
  [[nodiscard]] Result<void> watch(PidRef process, ExitHandler on_exit);

  // The same for a pid learnt from a pid file. not_found when there is no such process (its parent
  // reaped it).
  [[nodiscard]] Result<void> watch_pid(pid_t pid, ExitHandler on_exit);

  // The process is still reaped, but nobody is told. Unknown pids are ignored.
  void forget(pid_t pid);

  // Signals a watched process through its pidfd, so a reused pid is never hit. not_found when it is
  // not watched (any more) or has ended.
  [[nodiscard]] Result<void> signal(pid_t pid, int signo) const;

  [[nodiscard]] bool watching(pid_t pid) const { return processes_.contains(pid); }
  [[nodiscard]] std::size_t count() const { return processes_.size(); }

  // Reaps zombies among the children that nobody watches, found in /proc/self/task/TID/children
  // (proc(5), needs CONFIG_PROC_CHILDREN). Returns how many. Call it only while no create, exec or
  // restore is under way: their process may be a child already whose pid nobody has read yet. Does
  // not block.
  Result<std::size_t> reap_strays() const;

 private:
  struct Process {
    PidRef ref;
    ExitHandler on_exit;
    Watch watch;
    Timer retry;
    Duration retry_after{};
  };
  void try_reap(pid_t pid);
  void retry_unreaped();
  void finish(pid_t pid, int wait_status);

  EventLoop* loop_;
  std::unordered_map<pid_t, std::unique_ptr<Process>> processes_;
};

}  // namespace icebox::shim
