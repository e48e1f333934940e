// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <optional>

#include "oci/base/result.h"
#include "oci/base/unique_fd.h"

namespace icebox {

// Start time of a process in clock ticks since boot: field 22 of /proc/PID/stat (proc(5)). With the
// pid it names one process for ever. not_found when there is none. Does not block.
Result<std::uint64_t> process_start_time(pid_t pid);

// A process held by pidfd, so that a reused pid is never signalled or waited for by mistake.
class PidRef {
 public:
  PidRef() = default;

  // Opens a pidfd (pidfd_open(2), Linux 5.3). With `start_time`, also checks that it is still that
  // process. not_found when the process is gone or is another one.
  static Result<PidRef> open(pid_t pid, std::optional<std::uint64_t> start_time = std::nullopt);

  // Takes a pidfd obtained otherwise (clone with CLONE_PIDFD).
  static PidRef adopt(pid_t pid, UniqueFd pidfd);

  [[nodiscard]] pid_t pid() const { return pid_; }
  [[nodiscard]] int fd() const { return fd_.get(); }
  [[nodiscard]] bool valid() const { return fd_.valid(); }

  // pidfd_send_signal(2). not_found when the process is gone.
  [[nodiscard]] Result<void> signal(int signo) const;

  // Whether the process has not ended (a zombie has). Does not block.
  [[nodiscard]] bool alive() const;

  // Waits until the process has ended or `timeout` passed; true when it has ended. Blocks up to
  // `timeout`.
  [[nodiscard]] bool wait_end(std::chrono::milliseconds timeout) const;

 private:
  pid_t pid_ = -1;
  UniqueFd fd_;
};

}  // namespace icebox
