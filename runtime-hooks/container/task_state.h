// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <string>

#include "oci/base/result.h"

namespace icebox::container {

// What /proc says of one thread at one moment: enough to say why it does not freeze or stop.
struct TaskState {
  pid_t process = -1;
  pid_t tid = -1;
  char state = '?';  // R S D T t Z X I
  pid_t tracer = 0;  // TracerPid: the tracing thread, 0 = none
  std::string comm;
  std::string wchan;  // kernel function it sleeps in; empty when it runs or the kernel does not say
  long syscall = -1;  // number of the system call it is blocked in, -1 = none or unknown

  [[nodiscard]] bool ended() const { return state == 'Z' || state == 'X'; }

  // Whether it waits for a child made with vfork (or clone with CLONE_VFORK) to exec or exit. Such
  // a thread takes no signal and no ptrace stop until then; it sleeps in the kernel and runs no
  // user instruction.
  [[nodiscard]] bool in_vfork() const;

  // Whether it may be group-stopped (SIGSTOP, job control), told from where it sleeps: a thread
  // that was stopped when the v1 freezer froze it shows state D. True when the kernel does not say
  // where.
  [[nodiscard]] bool maybe_group_stopped() const;

  // "thread 12 (comm) of process 10, state D, in do_something".
  [[nodiscard]] std::string describe() const;
};

// Reads /proc/<process>/task/<tid>. not_found when the thread is gone. Does not block.
Result<TaskState> read_task_state(pid_t process, pid_t tid);

}  // namespace icebox::container
