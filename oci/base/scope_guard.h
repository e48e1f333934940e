// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <utility>

namespace icebox {

// Runs a callable when the scope ends, unless dismissed. For undo steps and releases that have no
// owning type.
template <typename F>
class [[nodiscard]] ScopeGuard {
 public:
  explicit ScopeGuard(F action) : action_(std::move(action)) {}
  ScopeGuard(const ScopeGuard&) = delete;
  ScopeGuard& operator=(const ScopeGuard&) = delete;
  ScopeGuard(ScopeGuard&&) = delete;
  ScopeGuard& operator=(ScopeGuard&&) = delete;
  ~ScopeGuard() {
    if (armed_) action_();
  }

  // The action will not run.
  void dismiss() { armed_ = false; }

 private:
  F action_;
  bool armed_ = true;
};

}  // namespace icebox
