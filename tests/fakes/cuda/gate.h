// SPDX-License-Identifier: Apache-2.0
//
// The gate that every CUDA call of the process goes through. Lock-free on purpose: while the driver
// works, the process's other threads may be stopped anywhere, also inside this class.
#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <climits>
#include <cstdint>

namespace icebox::sim {

class Gate {
 public:
  /// Waits while the gate is closed, then counts the caller as inside. False if the gate is broken:
  /// the caller must not go on.
  bool enter() {
    for (;;) {
      std::uint32_t seen = word_.load(std::memory_order_acquire);
      if ((seen & kBroken) != 0) return false;
      if ((seen & kClosed) != 0) {
        ::syscall(SYS_futex, &word_, FUTEX_WAIT_PRIVATE, seen, nullptr, nullptr, 0);
        continue;
      }
      if (word_.compare_exchange_weak(seen, seen + 1, std::memory_order_acq_rel)) return true;
    }
  }

  void leave() { word_.fetch_sub(1, std::memory_order_acq_rel); }

  /// New calls wait from now on; those inside go on.
  void close() { word_.fetch_or(kClosed, std::memory_order_acq_rel); }

  /// Nobody is inside.
  bool idle() const { return (word_.load(std::memory_order_acquire) & kCount) == 0; }

  void open() {
    word_.fetch_and(~kClosed, std::memory_order_acq_rel);
    wake();
  }

  /// Every waiting and later call fails.
  void break_down() {
    word_.fetch_or(kBroken, std::memory_order_acq_rel);
    wake();
  }

 private:
  static constexpr std::uint32_t kClosed = 1U << 31;
  static constexpr std::uint32_t kBroken = 1U << 30;
  static constexpr std::uint32_t kCount = kBroken - 1;

  void wake() { ::syscall(SYS_futex, &word_, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0); }

  std::atomic<std::uint32_t> word_{0};
};

}  // namespace icebox::sim
