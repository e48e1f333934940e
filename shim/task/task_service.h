// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <memory>
#include <string>

#include "containerd/task_v2.pb.h"
#include "google/protobuf/empty.pb.h"
#include "oci/base/result.h"
#include "shim/task/container.h"
#include "shim/ttrpc/server.h"
#include "shim/ttrpc/typed.h"

namespace icebox::shim {

// The Task service, versions 2 and 3 (their messages are the same): one method per RPC, in the
// order of a task's life. START READING HERE. It owns the containers of the daemon by id.
class TaskService {
 public:
  // `environment` is borrowed and must outlive the service. `on_shutdown` is called once, from the
  // loop, after a Shutdown that found no container was answered.
  TaskService(TaskEnvironment& environment, UniqueFunction<void()> on_shutdown);
  TaskService(const TaskService&) = delete;
  TaskService& operator=(const TaskService&) = delete;

  // Adds all methods to `server`, whose calls must end before this does.
  void register_methods(ttrpc::Server& server);

  [[nodiscard]] std::size_t count() const { return containers_.size(); }

 private:
  using Context = ttrpc::CallContext;
  template <typename Response>
  using Reply = ttrpc::TypedReply<Response>;
  using Empty = google::protobuf::Empty;
  using ContainerPtr = std::shared_ptr<Container>;

  void create(const Context& context, const containerd::task::v2::CreateTaskRequest& request,
              Reply<containerd::task::v2::CreateTaskResponse> reply);
  void connect(const containerd::task::v2::ConnectRequest& request,
               Reply<containerd::task::v2::ConnectResponse> reply);
  void start(const Context& context, const containerd::task::v2::StartRequest& request,
             Reply<containerd::task::v2::StartResponse> reply);
  void state(const containerd::task::v2::StateRequest& request,
             Reply<containerd::task::v2::StateResponse> reply);
  void wait(const containerd::task::v2::WaitRequest& request,
            Reply<containerd::task::v2::WaitResponse> reply);
  void exec(const containerd::task::v2::ExecProcessRequest& request, Reply<Empty> reply);
  void resize_pty(const containerd::task::v2::ResizePtyRequest& request, Reply<Empty> reply);
  void close_io(const containerd::task::v2::CloseIORequest& request, Reply<Empty> reply);
  void pids(const containerd::task::v2::PidsRequest& request,
            Reply<containerd::task::v2::PidsResponse> reply);
  void stats(const containerd::task::v2::StatsRequest& request,
             Reply<containerd::task::v2::StatsResponse> reply);
  void update(const containerd::task::v2::UpdateTaskRequest& request, Reply<Empty> reply);
  void pause(const Context& context, const containerd::task::v2::PauseRequest& request,
             Reply<Empty> reply);
  void resume(const containerd::task::v2::ResumeRequest& request, Reply<Empty> reply);
  void checkpoint(const Context& context,
                  const containerd::task::v2::CheckpointTaskRequest& request, Reply<Empty> reply);
  void kill(const containerd::task::v2::KillRequest& request, Reply<Empty> reply);
  void remove(const containerd::task::v2::DeleteRequest& request,
              Reply<containerd::task::v2::DeleteResponse> reply);
  void shutdown(const containerd::task::v2::ShutdownRequest& request, Reply<Empty> reply);

  void register_version(ttrpc::Server& server, const std::string& service);
  // A container that exists for clients; not_found.
  [[nodiscard]] Result<ContainerPtr> find(const std::string& id) const;
  [[nodiscard]] Result<Container::Config> create_config(
      const containerd::task::v2::CreateTaskRequest& request) const;

  TaskEnvironment& env_;
  UniqueFunction<void()> on_shutdown_;
  std::map<std::string, ContainerPtr> containers_;
};

// Whether `id` may become part of a file name in a bundle: containerd's identifiers, 1 to 76 of
// letters, digits and "_.-". Pure.
[[nodiscard]] bool is_valid_id(std::string_view id);

}  // namespace icebox::shim
