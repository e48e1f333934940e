// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <string>
#include <string_view>
#include <vector>

#include "google/protobuf/timestamp.pb.h"
#include "shim/process/stdio.h"
#include "shim/runtime/mount_options.h"
#include "shim/task/exit_record.h"

namespace icebox::shim {

// One event for containerd: topic, type and serialized message (shim contract, section 7).
struct Event {
  std::string topic;
  std::string type;
  std::string payload;
  std::chrono::system_clock::time_point at = std::chrono::system_clock::now();
};

// Builders, one a topic. Pure but for the time stamp.
[[nodiscard]] Event task_create_event(std::string_view id, std::string_view bundle,
                                      const std::vector<RootfsMount>& rootfs, const StdioSpec& io,
                                      std::string_view checkpoint, pid_t pid);
[[nodiscard]] Event task_start_event(std::string_view id, pid_t pid);
// `process` is the container's id for its init, the exec id for an exec.
[[nodiscard]] Event task_exit_event(std::string_view id, std::string_view process,
                                    const ExitInfo& exit);
[[nodiscard]] Event task_delete_event(std::string_view id, const ExitInfo& exit);
[[nodiscard]] Event task_oom_event(std::string_view id);
[[nodiscard]] Event task_exec_added_event(std::string_view id, std::string_view exec_id);
[[nodiscard]] Event task_exec_started_event(std::string_view id, std::string_view exec_id,
                                            pid_t pid);
[[nodiscard]] Event task_paused_event(std::string_view id);
[[nodiscard]] Event task_resumed_event(std::string_view id);
[[nodiscard]] Event task_checkpointed_event(std::string_view id, std::string_view path);

[[nodiscard]] google::protobuf::Timestamp to_timestamp(std::chrono::system_clock::time_point at);

// Go's zero time (year 1): what "has not ended" looks like. Leaving the field out reads as 1970 on
// containerd 1.7 and later.
[[nodiscard]] google::protobuf::Timestamp go_zero_time();

}  // namespace icebox::shim
