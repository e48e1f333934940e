// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "oci/base/pid_ref.h"
#include "oci/base/result.h"

namespace icebox {

// A program to run. Everything not in `fds` is closed on exec as long as this project opens it
// O_CLOEXEC.
struct Command {
  std::vector<std::string> argv{};  // argv[0] is a path, or a name looked up in the caller's PATH
  std::optional<std::vector<std::string>> env{};  // "KEY=value"; nullopt = the caller's environment
  std::string cwd{};                              // empty = the caller's
  std::vector<std::pair<int, int>>
      fds{};                   // {fd here, fd there}; 0, 1, 2 that are not named become /dev/null
  bool inherit_stdio = false;  // leave 0, 1, 2 as they are here instead
  bool new_session = false;    // setsid(2): own session and process group
  int death_signal = 0;        // prctl(PR_SET_PDEATHSIG): when the spawning THREAD dies
  bool private_mounts =
      false;  // own mount namespace, everything MS_SLAVE: what it mounts dies with it
};

// A started child. The owner must wait (or let a supervisor do it); the destructor neither kills
// nor reaps.
struct Child {
  PidRef process;
};

// fork + exec. A failed exec (or unshare, chdir) is returned as an Error naming the program. Blocks
// until the exec.
Result<Child> spawn(const Command& command);

// Wait status as a shell shows it: exit code, or 128 + signal.
int exit_code_of(int wait_status);

// waitpid(2) for `process`, which must be a child of this process. Blocks until it ends. Returns
// the wait status.
Result<int> wait_status(const PidRef& process);

struct Output {
  int wait_status = 0;
  std::string out;  // captured stdout, cut at the limit
  std::string err;  // captured stderr, last bytes up to the limit
};

struct RunOptions {
  std::size_t max_output = 256 * 1024;                  // bytes kept of each stream
  std::optional<std::chrono::milliseconds> deadline{};  // kills the child (SIGKILL) when it passes
  std::function<void(const PidRef&)> on_start{};        // called once it runs
};

// Runs a command to its end, capturing stdout and stderr (unless inherit_stdio or given in fds).
// deadline_exceeded when killed by the deadline. Blocks. Grandchildren that keep the pipes open do
// not hold it up: it returns when the child ends.
Result<Output> run(const Command& command, const RunOptions& options);

}  // namespace icebox
