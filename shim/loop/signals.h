// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <signal.h>

#include <initializer_list>

#include "oci/base/result.h"
#include "oci/base/unique_fd.h"
#include "shim/loop/event_loop.h"

namespace icebox::shim {

// Turns signals into loop events: blocks them in this thread and reads them from a signalfd(2). The
// old mask returns with the destructor. Children do not inherit the mask: spawn() resets it.
class SignalWatch {
 public:
  using Handler = UniqueFunction<void(int signo)>;

  // Call before any other thread exists. Equal signals that arrive together are delivered once (as
  // the kernel does).
  static Result<SignalWatch> create(EventLoop& loop, std::initializer_list<int> signals,
                                    Handler handler);
  SignalWatch(SignalWatch&&) noexcept = default;
  SignalWatch& operator=(SignalWatch&&) = delete;
  ~SignalWatch();

 private:
  SignalWatch(UniqueFd fd, sigset_t old_mask) : fd_(std::move(fd)), old_mask_(old_mask) {}
  UniqueFd fd_;
  sigset_t old_mask_;
  Watch watch_;
};

// SIGPIPE ignored for good: a reader that went away is an EPIPE where the write is.
void ignore_sigpipe();

}  // namespace icebox::shim
