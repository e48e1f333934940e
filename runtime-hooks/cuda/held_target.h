// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>

#include "oci/base/pid_ref.h"
#include "runtime-hooks/cuda/target.h"

namespace icebox::cuda {

/// A target process held by pidfd for the whole session, with at most one driver call at a time:
/// the driver's channel to a process has room for one. Shared between the agent and the thread that
/// makes the call, which may outlive the agent's interest in it.
class HeldTarget {
 public:
  using Clock = std::chrono::steady_clock;

  HeldTarget(const Target& id, PidRef process) : id_(id), process_(std::move(process)) {}

  [[nodiscard]] const Target& id() const { return id_; }
  [[nodiscard]] bool alive() const { return process_.alive(); }

  /// Takes the right to call the driver about this process; waits for an earlier call until
  /// `deadline`. False if that one is still in the driver.
  bool begin_call(Operation operation, Clock::time_point deadline) {
    std::unique_lock lock(mutex_);
    if (!idle_.wait_until(lock, deadline, [this] { return !call_.has_value(); })) return false;
    call_ = operation;
    return true;
  }

  /// Gives the right back.
  void end_call() {
    const std::lock_guard lock(mutex_);
    call_.reset();
    idle_.notify_all();
  }

  /// The call that is in the driver now.
  [[nodiscard]] std::optional<Operation> call() const {
    const std::lock_guard lock(mutex_);
    return call_;
  }

  /// Waits at most `time` for the call to end.
  void wait_idle(std::chrono::milliseconds time) const {
    std::unique_lock lock(mutex_);
    idle_.wait_for(lock, time, [this] { return !call_.has_value(); });
  }

 private:
  Target id_;
  PidRef process_;
  mutable std::mutex mutex_;
  mutable std::condition_variable idle_;
  std::optional<Operation> call_;
};

}  // namespace icebox::cuda
