// SPDX-License-Identifier: Apache-2.0
#include "oci/base/pid_ref.h"

#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <string>

#include "oci/base/file.h"
#include "oci/base/strings.h"

namespace icebox {

Result<std::uint64_t> process_start_time(pid_t pid) {
  const std::string path = "/proc/" + std::to_string(pid) + "/stat";
  const auto text = ICEBOX_TRY(read_file(path, 4096));
  // The command name (field 2) may hold spaces and parentheses: count fields from the last ')'.
  const auto close = text.rfind(')');
  if (close == std::string::npos) return make_error(Code::unknown, path + ": unexpected content");
  const auto fields = split(std::string_view(text).substr(close + 1), ' ', SplitEmpty::drop);
  constexpr std::size_t kStartTime = 19;  // field 22 of the line, counted from field 3
  if (fields.size() <= kStartTime) return make_error(Code::unknown, path + ": unexpected content");
  return parse_u64(fields[kStartTime]).context(path);
}

Result<PidRef> PidRef::open(pid_t pid, std::optional<std::uint64_t> start_time) {
  UniqueFd fd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  if (!fd) return errno_error("process " + std::to_string(pid));
  if (start_time) {
    const auto now = process_start_time(pid);
    if (!now.ok() || *now != *start_time) {
      return make_error(Code::not_found, "process " + std::to_string(pid) + " is gone");
    }
  }
  return adopt(pid, std::move(fd));
}

PidRef PidRef::adopt(pid_t pid, UniqueFd pidfd) {
  PidRef ref;
  ref.pid_ = pid;
  ref.fd_ = std::move(pidfd);
  return ref;
}

Result<void> PidRef::signal(int signo) const {
  if (::syscall(SYS_pidfd_send_signal, fd_.get(), signo, nullptr, 0) != 0) {
    return errno_error("signal " + std::to_string(signo) + " to process " + std::to_string(pid_));
  }
  return {};
}

bool PidRef::alive() const { return !wait_end(std::chrono::milliseconds(0)); }

bool PidRef::wait_end(std::chrono::milliseconds timeout) const {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  for (;;) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        deadline - std::chrono::steady_clock::now());
    struct pollfd entry = {fd_.get(), POLLIN, 0};
    const int n = ::poll(&entry, 1, static_cast<int>(left.count() > 0 ? left.count() : 0));
    if (n > 0) return true;
    if (n == 0 || errno != EINTR) return false;
  }
}

}  // namespace icebox
