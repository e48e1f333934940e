// SPDX-License-Identifier: Apache-2.0
#include "shim/task/events.h"

#include <cstdint>

#include "containerd/events.pb.h"

namespace icebox::shim {
namespace {

constexpr std::int64_t kGoZeroSeconds = -62135596800;
constexpr std::int64_t kNanosPerSecond = 1'000'000'000;

template <typename Message>
Event make_event(std::string_view topic, std::string_view type, const Message& message) {
  Event event;
  event.topic = topic;
  event.type = "containerd.events." + std::string(type);
  event.payload = message.SerializeAsString();
  return event;
}

std::uint32_t wire_pid(pid_t pid) { return static_cast<std::uint32_t>(pid); }

}  // namespace

google::protobuf::Timestamp to_timestamp(std::chrono::system_clock::time_point at) {
  const std::int64_t nanos =
      std::chrono::duration_cast<std::chrono::nanoseconds>(at.time_since_epoch()).count();
  google::protobuf::Timestamp stamp;
  stamp.set_seconds(nanos / kNanosPerSecond);
  stamp.set_nanos(static_cast<std::int32_t>(nanos % kNanosPerSecond));
  return stamp;
}

google::protobuf::Timestamp go_zero_time() {
  google::protobuf::Timestamp stamp;
  stamp.set_seconds(kGoZeroSeconds);
  return stamp;
}

Event task_create_event(std::string_view id, std::string_view bundle,
                        const std::vector<RootfsMount>& rootfs, const StdioSpec& io,
                        std::string_view checkpoint, pid_t pid) {
  containerd::events::TaskCreate message;
  message.set_container_id(std::string(id));
  message.set_bundle(std::string(bundle));
  for (const RootfsMount& mount : rootfs) {
    containerd::types::Mount& entry = *message.add_rootfs();
    entry.set_type(mount.type);
    entry.set_source(mount.source);
    entry.set_target(mount.target);
    entry.mutable_options()->Add(mount.options.begin(), mount.options.end());
  }
  containerd::events::TaskIO& streams = *message.mutable_io();
  streams.set_stdin(io.in);
  streams.set_stdout(io.out);
  streams.set_stderr(io.err);
  streams.set_terminal(io.terminal);
  message.set_checkpoint(std::string(checkpoint));
  message.set_pid(wire_pid(pid));
  return make_event("/tasks/create", "TaskCreate", message);
}

Event task_start_event(std::string_view id, pid_t pid) {
  containerd::events::TaskStart message;
  message.set_container_id(std::string(id));
  message.set_pid(wire_pid(pid));
  return make_event("/tasks/start", "TaskStart", message);
}

Event task_exit_event(std::string_view id, std::string_view process, const ExitInfo& exit) {
  containerd::events::TaskExit message;
  message.set_container_id(std::string(id));
  message.set_id(std::string(process));
  message.set_pid(wire_pid(exit.pid));
  message.set_exit_status(exit.status);
  *message.mutable_exited_at() = to_timestamp(exit.at);
  return make_event("/tasks/exit", "TaskExit", message);
}

Event task_delete_event(std::string_view id, const ExitInfo& exit) {
  containerd::events::TaskDelete message;
  message.set_container_id(std::string(id));
  message.set_id(std::string(id));
  message.set_pid(wire_pid(exit.pid));
  message.set_exit_status(exit.status);
  *message.mutable_exited_at() = to_timestamp(exit.at);
  return make_event("/tasks/delete", "TaskDelete", message);
}

Event task_oom_event(std::string_view id) {
  containerd::events::TaskOOM message;
  message.set_container_id(std::string(id));
  return make_event("/tasks/oom", "TaskOOM", message);
}

Event task_exec_added_event(std::string_view id, std::string_view exec_id) {
  containerd::events::TaskExecAdded message;
  message.set_container_id(std::string(id));
  message.set_exec_id(std::string(exec_id));
  return make_event("/tasks/exec-added", "TaskExecAdded", message);
}

Event task_exec_started_event(std::string_view id, std::string_view exec_id, pid_t pid) {
  containerd::events::TaskExecStarted message;
  message.set_container_id(std::string(id));
  message.set_exec_id(std::string(exec_id));
  message.set_pid(wire_pid(pid));
  return make_event("/tasks/exec-started", "TaskExecStarted", message);
}

Event task_paused_event(std::string_view id) {
  containerd::events::TaskPaused message;
  message.set_container_id(std::string(id));
  return make_event("/tasks/paused", "TaskPaused", message);
}

Event task_resumed_event(std::string_view id) {
  containerd::events::TaskResumed message;
  message.set_container_id(std::string(id));
  return make_event("/tasks/resumed", "TaskResumed", message);
}

Event task_checkpointed_event(std::string_view id, std::string_view path) {
  containerd::events::TaskCheckpointed message;
  message.set_container_id(std::string(id));
  message.set_checkpoint(std::string(path));
  return make_event("/tasks/checkpointed", "TaskCheckpointed", message);
}

}  // namespace icebox::shim
