// SPDX-License-Identifier: Apache-2.0
#include "shim/loop/signals.h"

#include <sys/signalfd.h>
#include <unistd.h>

#include <utility>

namespace icebox::shim {

Result<SignalWatch> SignalWatch::create(EventLoop& loop, std::initializer_list<int> signals,
                                        Handler handler) {
  sigset_t set;
  ::sigemptyset(&set);
  for (const int signo : signals) ::sigaddset(&set, signo);
  UniqueFd fd(::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!fd) return errno_error("signalfd");
  const int raw_fd = fd.get();
  auto on_readable = [raw_fd, handler = std::move(handler)](std::uint32_t) {
    signalfd_siginfo info;
    while (::read(raw_fd, &info, sizeof info) == static_cast<ssize_t>(sizeof info)) {
      handler(static_cast<int>(info.ssi_signo));
    }
  };
  Watch watch = ICEBOX_TRY(loop.watch(raw_fd, EPOLLIN, "signals", std::move(on_readable)));
  sigset_t old_mask;
  if (::sigprocmask(SIG_BLOCK, &set, &old_mask) != 0) return errno_error("sigprocmask");
  SignalWatch result(std::move(fd), old_mask);
  result.watch_ = std::move(watch);
  return result;
}

SignalWatch::~SignalWatch() {
  if (fd_) ::sigprocmask(SIG_SETMASK, &old_mask_, nullptr);
}

void ignore_sigpipe() { ::signal(SIGPIPE, SIG_IGN); }

}  // namespace icebox::shim
