// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>

namespace icebox::shim {

// Durations and instants of the daemon: CLOCK_MONOTONIC, so that a step of the wall clock fires no
// deadline.
using Duration = std::chrono::nanoseconds;
using TimePoint = std::chrono::steady_clock::time_point;

// Where the loop reads the time; tests hand in one they can move.
class Clock {
 public:
  virtual ~Clock() = default;
  [[nodiscard]] virtual TimePoint now() const = 0;
};

// The real clock. Stateless, lives as long as the program.
const Clock& monotonic_clock();

}  // namespace icebox::shim
