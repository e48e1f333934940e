// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <ctime>

namespace icebox::container {

// Sleeps for at least `time`, whatever signals arrive.
inline void sleep_for(std::chrono::microseconds time) {
  struct timespec left = {static_cast<time_t>(time.count() / 1000000),
                          static_cast<long>(time.count() % 1000000) * 1000};
  while (::nanosleep(&left, &left) != 0 && errno == EINTR) {
  }
}

// Pauses between looks at something that has no event to wait for (the freezer, ptrace stops of one
// thread): short at first, because it takes well under a millisecond when nothing is in the way,
// then doubling up to 2 ms.
class Backoff {
 public:
  using Clock = std::chrono::steady_clock;

  explicit Backoff(std::chrono::milliseconds timeout) : deadline_(Clock::now() + timeout) {}

  // Sleeps; false, without sleeping, once the timeout has passed.
  [[nodiscard]] bool wait() {
    const auto left =
        std::chrono::duration_cast<std::chrono::microseconds>(deadline_ - Clock::now());
    if (left.count() <= 0) return false;
    sleep_for(std::min(pause_, left));
    pause_ = std::min(pause_ * 2, std::chrono::microseconds(2000));
    return true;
  }

 private:
  Clock::time_point deadline_;
  std::chrono::microseconds pause_{20};
};

}  // namespace icebox::container
