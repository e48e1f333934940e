// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <utility>

#include "shim/loop/event_loop.h"
#include "shim/process/supervisor.h"
#include "shim/process/tool.h"
#include "shim/task/publisher.h"

namespace icebox::shim {

// What all containers of a daemon share. Borrowed by them; outlives them.
struct TaskEnvironment {
  EventLoop& loop;
  Supervisor& supervisor;
  ToolRunner& tools;
  EventSink& events;
  std::string ns;
  std::string engine_program;

  // Creates, execs and restores under way. While there are any, a child that nobody knows may be a
  // process whose pid nobody has read yet, so strays must not be reaped.
  int launches = 0;
  // Called from the loop when there are none any more.
  UniqueFunction<void()> launches_ended;
};

// Counts one launch for as long as it lives. Move-only.
class Launch {
 public:
  explicit Launch(TaskEnvironment& environment) : environment_(&environment) {
    ++environment.launches;
  }
  Launch(Launch&& other) noexcept : environment_(std::exchange(other.environment_, nullptr)) {}
  Launch& operator=(Launch&&) = delete;
  Launch(const Launch&) = delete;
  Launch& operator=(const Launch&) = delete;
  ~Launch() {
    if (environment_ == nullptr || --environment_->launches > 0) return;
    if (environment_->launches_ended) environment_->launches_ended();
  }

 private:
  TaskEnvironment* environment_;
};

}  // namespace icebox::shim
