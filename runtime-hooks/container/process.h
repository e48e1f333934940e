// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "oci/base/result.h"

namespace icebox::container {

// What /proc says of one process (thread group).
struct Process {
  pid_t pid = -1;                // host pid
  std::uint64_t start_time = 0;  // clock ticks since boot; with pid a name for ever
  pid_t parent = 0;              // host pid of the parent
  std::vector<pid_t> ns_pids;    // NSpid line: host pid first, innermost namespace last
  pid_t tracer = 0;              // TracerPid, 0 = none
  char state = '?';              // R S D T t Z X ...
  std::string comm;
  std::string command_line;  // arguments joined by spaces, cut at 200 bytes; comm in brackets for
                             // an empty one

  bool threads_left = false;  // its first thread has ended, others run on

  [[nodiscard]] bool zombie() const { return (state == 'Z' || state == 'X') && !threads_left; }
};

// Reads one process. not_found when it is gone. Never blocks on the process itself (frozen or not).
Result<Process> read_process(pid_t pid);

// Reads the given processes; those gone meanwhile are left out.
Result<std::vector<Process>> read_processes(const std::vector<pid_t>& pids);

// Thread ids of a process, ascending. not_found when it is gone.
Result<std::vector<pid_t>> threads_of(pid_t pid);

// Those of `processes` that are neither `init` nor descend from it by parent links (exec'ed into
// the container: CRIU leaves them out silently). Links that lead out of the list are followed
// through /proc.
Result<std::vector<Process>> not_descending_from(pid_t init, const std::vector<Process>& processes);

// SIGKILLs every listed process by pidfd with its start time compared. Processes gone are success.
Result<void> kill_processes(const std::vector<Process>& processes);

}  // namespace icebox::container
