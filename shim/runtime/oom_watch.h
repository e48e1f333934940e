// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "oci/base/result.h"
#include "oci/base/unique_fd.h"
#include "shim/loop/event_loop.h"
#include "shim/runtime/cgroup.h"

namespace icebox::shim {

// Tells when the kernel kills a process of a container for lack of memory: an eventfd on
// memory.oom_control (v1), a watch on memory.events (v2). Ends when dropped.
class OomWatch {
 public:
  // `on_oom` is called from the loop, once per batch of kills that the kernel reports. not_found
  // when the container has no memory cgroup. `loop` is borrowed and must outlive the watch.
  static Result<std::unique_ptr<OomWatch>> start(EventLoop& loop, const CgroupPaths& paths,
                                                 UniqueFunction<void()> on_oom);
  OomWatch(const OomWatch&) = delete;
  OomWatch& operator=(const OomWatch&) = delete;
  ~OomWatch() = default;

 private:
  OomWatch(std::string directory, UniqueFunction<void()> on_oom)
      : directory_(std::move(directory)), on_oom_(std::move(on_oom)) {}
  Result<void> begin_v1(EventLoop& loop);
  Result<void> begin_v2(EventLoop& loop);
  void on_event_v1();
  void on_event_v2();
  [[nodiscard]] std::uint64_t kills_v2() const;

  std::string directory_;
  UniqueFunction<void()> on_oom_;
  std::uint64_t kills_ = 0;
  UniqueFd control_;  // v1: memory.oom_control, which the registration names
  UniqueFd fd_;
  Watch watch_;
};

}  // namespace icebox::shim
