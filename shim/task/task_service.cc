// SPDX-License-Identifier: Apache-2.0
#include "shim/task/task_service.h"

#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <utility>

#include "containerd/runc_options.pb.h"
#include "oci/base/log.h"
#include "shim/runtime/process_spec.h"
#include "shim/task/events.h"

namespace icebox::shim {
namespace {

namespace wire = containerd::task::v2;

constexpr std::size_t kMaxId = 76;
constexpr std::uint32_t kMaxSignal = 64;

google::protobuf::Timestamp exit_time(const ExitInfo& exit) {
  return exit.at == std::chrono::system_clock::time_point{} ? go_zero_time()
                                                            : to_timestamp(exit.at);
}

Error no_such_task(const std::string& id) {
  return make_error(Code::not_found, "task " + id + " does not exist");
}

template <typename Response>
Container::Done<pid_t> reply_with_pid(ttrpc::TypedReply<Response> reply) {
  return [reply = std::move(reply)](const Result<pid_t>& pid) mutable {
    if (!pid.ok()) return std::move(reply).fail(pid.error());
    Response response;
    response.set_pid(static_cast<std::uint32_t>(*pid));
    std::move(reply).send(response);
  };
}

Container::Done<void> reply_empty(ttrpc::TypedReply<google::protobuf::Empty> reply) {
  return [reply = std::move(reply)](const Result<void>& result) mutable {
    if (result.ok()) {
      std::move(reply).send({});
    } else {
      std::move(reply).fail(result.error());
    }
  };
}

template <typename Request>
StdioSpec stdio_of(const Request& request, const std::string& process_id, const std::string& ns,
                   const RuntimeOptions& options) {
  StdioSpec stdio;
  stdio.container_id = request.id();
  stdio.process_id = process_id;
  stdio.name_space = ns;
  stdio.terminal = request.terminal();
  stdio.in = request.stdin();
  stdio.out = request.stdout();
  stdio.err = request.stderr();
  if (options.io_uid != 0 || options.io_gid != 0) {
    stdio.owner = std::pair<uid_t, gid_t>(options.io_uid, options.io_gid);
  }
  return stdio;
}

}  // namespace

bool is_valid_id(std::string_view id) {
  return !id.empty() && id.size() <= kMaxId && id != "." && id != ".." &&
         std::all_of(id.begin(), id.end(), [](unsigned char each) {
           return std::isalnum(each) != 0 || each == '_' || each == '.' || each == '-';
         });
}

TaskService::TaskService(TaskEnvironment& environment, UniqueFunction<void()> on_shutdown)
    : env_(environment), on_shutdown_(std::move(on_shutdown)) {}

void TaskService::register_methods(ttrpc::Server& server) {
  register_version(server, "containerd.task.v2.Task");
  register_version(server, "containerd.task.v3.Task");
}

void TaskService::register_version(ttrpc::Server& server, const std::string& service) {
  // A method that answers at once has no use for the context.
  const auto add = [&]<typename Request, typename Response>(
                       const char* name,
                       void (TaskService::*method)(const Request&, Reply<Response>)) {
    ttrpc::add_unary<Request, Response>(
        server, service, name,
        [this, method](const Context& /*context*/, const Request& request, Reply<Response> reply) {
          (this->*method)(request, std::move(reply));
        });
  };
  const auto add_long =
      [&]<typename Request, typename Response>(
          const char* name,
          void (TaskService::*method)(const Context&, const Request&, Reply<Response>)) {
        ttrpc::add_unary<Request, Response>(
            server, service, name,
            [this, method](const Context& context, const Request& request, Reply<Response> reply) {
              (this->*method)(context, request, std::move(reply));
            });
      };
  add_long("Create", &TaskService::create);
  add("Connect", &TaskService::connect);
  add_long("Start", &TaskService::start);
  add("State", &TaskService::state);
  add("Wait", &TaskService::wait);
  add("Exec", &TaskService::exec);
  add("ResizePty", &TaskService::resize_pty);
  add("CloseIO", &TaskService::close_io);
  add("Pids", &TaskService::pids);
  add("Stats", &TaskService::stats);
  add("Update", &TaskService::update);
  add_long("Pause", &TaskService::pause);
  add("Resume", &TaskService::resume);
  add_long("Checkpoint", &TaskService::checkpoint);
  add("Kill", &TaskService::kill);
  add("Delete", &TaskService::remove);
  add("Shutdown", &TaskService::shutdown);
}

Result<TaskService::ContainerPtr> TaskService::find(const std::string& id) const {
  const auto found = containers_.find(id);
  if (found == containers_.end() || !found->second->created()) return no_such_task(id);
  return found->second;
}

// --- Create
// ---------------------------------------------------------------------------------------

Result<Container::Config> TaskService::create_config(const wire::CreateTaskRequest& request) const {
  if (!is_valid_id(request.id())) {
    return make_error(Code::invalid_argument, "invalid task id \"" + request.id() + "\"");
  }
  Container::Config config;
  config.id = request.id();
  config.bundle = request.bundle();
  config.options = ICEBOX_TRY(decode_runtime_options(request.options()));
  config.facts = ICEBOX_TRY(read_bundle_config(request.bundle()));
  config.stdio = stdio_of(request, request.id(), env_.ns, config.options);
  for (const containerd::types::Mount& mount : request.rootfs()) {
    config.rootfs.push_back(RootfsMount{mount.type(),
                                        mount.source(),
                                        mount.target(),
                                        {mount.options().begin(), mount.options().end()}});
  }
  config.checkpoint = request.checkpoint();
  return config;
}

void TaskService::create(const Context& context, const wire::CreateTaskRequest& request,
                         Reply<wire::CreateTaskResponse> reply) {
  if (containers_.contains(request.id())) {
    std::move(reply).fail(
        make_error(Code::already_exists, "task " + request.id() + " exists already"));
    return;
  }
  Result<Container::Config> config = create_config(request);
  if (!config.ok()) {
    std::move(reply).fail(config.error());
    return;
  }
  log::debug("create", {{"id", request.id()}, {"checkpoint", request.checkpoint()}});
  const auto container = std::make_shared<Container>(env_, std::move(config).value());
  containers_.emplace(request.id(), container);
  container->create(context, [this, id = request.id(),
                              done = reply_with_pid(std::move(reply))](Result<pid_t> pid) {
    if (!pid.ok()) containers_.erase(id);
    done(std::move(pid));
  });
}

// --- what answers from memory
// ---------------------------------------------------------------------

void TaskService::connect(const wire::ConnectRequest& request, Reply<wire::ConnectResponse> reply) {
  // Also for an unknown id: a failure here makes containerd kill the container.
  wire::ConnectResponse response;
  response.set_shim_pid(static_cast<std::uint32_t>(::getpid()));
  if (const Result<ContainerPtr> container = find(request.id()); container.ok()) {
    response.set_task_pid(static_cast<std::uint32_t>((*container)->init_pid()));
  }
  std::move(reply).send(response);
}

void TaskService::state(const wire::StateRequest& request, Reply<wire::StateResponse> reply) {
  const Result<ContainerPtr> container = find(request.id());
  if (!container.ok()) return std::move(reply).fail(container.error());
  const Result<ManagedProcess*> process = (*container)->find(request.exec_id());
  if (!process.ok()) return std::move(reply).fail(process.error());

  const ManagedProcess& found = **process;
  wire::StateResponse response;
  response.set_id(found.stdio().process_id);
  response.set_exec_id(request.exec_id());
  response.set_bundle((*container)->bundle());
  response.set_pid(static_cast<std::uint32_t>(found.pid()));
  response.set_status(static_cast<containerd::v1::types::Status>(
      state_to_wire((*container)->reported_state(found))));
  response.set_stdin(found.stdio().in);
  response.set_stdout(found.stdio().out);
  response.set_stderr(found.stdio().err);
  response.set_terminal(found.stdio().terminal);
  const ExitInfo exit = found.exit().value_or(ExitInfo{});
  response.set_exit_status(exit.status);
  *response.mutable_exited_at() = exit_time(exit);
  std::move(reply).send(response);
}

void TaskService::wait(const wire::WaitRequest& request, Reply<wire::WaitResponse> reply) {
  const Result<ContainerPtr> container = find(request.id());
  if (!container.ok()) return std::move(reply).fail(container.error());
  const Result<ManagedProcess*> process = (*container)->find(request.exec_id());
  if (!process.ok()) return std::move(reply).fail(process.error());
  (*process)->wait([reply = std::move(reply)](const ExitInfo& exit) mutable {
    wire::WaitResponse response;
    response.set_exit_status(exit.status);
    *response.mutable_exited_at() = exit_time(exit);
    std::move(reply).send(response);
  });
}

void TaskService::pids(const wire::PidsRequest& request, Reply<wire::PidsResponse> reply) {
  const Result<ContainerPtr> container = find(request.id());
  if (!container.ok()) return std::move(reply).fail(container.error());
  wire::PidsResponse response;
  for (const auto& [pid, exec_id] : (*container)->processes()) {
    containerd::v1::types::ProcessInfo& info = *response.add_processes();
    info.set_pid(static_cast<std::uint32_t>(pid));
    if (exec_id.empty()) continue;
    containerd::runc::v1::ProcessDetails details;
    details.set_exec_id(exec_id);
    info.mutable_info()->set_type_url("containerd.runc.v1.ProcessDetails");
    info.mutable_info()->set_value(details.SerializeAsString());
  }
  std::move(reply).send(response);
}

void TaskService::stats(const wire::StatsRequest& request, Reply<wire::StatsResponse> reply) {
  const Result<ContainerPtr> container = find(request.id());
  if (!container.ok()) return std::move(reply).fail(container.error());
  Result<google::protobuf::Any> stats = (*container)->stats();
  if (!stats.ok()) return std::move(reply).fail(stats.error());
  wire::StatsResponse response;
  *response.mutable_stats() = std::move(stats).value();
  std::move(reply).send(response);
}

// --- processes
// ------------------------------------------------------------------------------------

void TaskService::start(const Context& context, const wire::StartRequest& request,
                        Reply<wire::StartResponse> reply) {
  const Result<ContainerPtr> container = find(request.id());
  if (!container.ok()) return std::move(reply).fail(container.error());
  Container::Done<pid_t> done = reply_with_pid(std::move(reply));
  if (request.exec_id().empty()) {
    (*container)->start(context, std::move(done));
  } else {
    (*container)->start_exec(request.exec_id(), std::move(done));
  }
}

void TaskService::exec(const wire::ExecProcessRequest& request, Reply<Empty> reply) {
  const Result<ContainerPtr> container = find(request.id());
  if (!container.ok()) return std::move(reply).fail(container.error());
  if (!is_valid_id(request.exec_id())) {
    return std::move(reply).fail(
        make_error(Code::invalid_argument, "invalid exec id \"" + request.exec_id() + "\""));
  }
  Result<std::string> spec = with_terminal(request.spec().value(), request.terminal());
  if (!spec.ok()) return std::move(reply).fail(spec.error());
  Container::ExecConfig config;
  config.exec_id = request.exec_id();
  config.stdio = stdio_of(request, request.exec_id(), env_.ns, (*container)->options());
  config.process_json = std::move(spec).value();
  reply_empty(std::move(reply))((*container)->exec(std::move(config)));
}

void TaskService::resize_pty(const wire::ResizePtyRequest& request, Reply<Empty> reply) {
  const Result<ContainerPtr> container = find(request.id());
  if (!container.ok()) return std::move(reply).fail(container.error());
  const Result<ManagedProcess*> process = (*container)->find(request.exec_id());
  if (!process.ok()) return std::move(reply).fail(process.error());
  // Before the start and after the end there is no terminal to resize.
  const std::unique_ptr<ProcessIo>& io = (*process)->io;
  reply_empty(std::move(reply))(io ? io->resize(request.width(), request.height())
                                   : Result<void>());
}

void TaskService::close_io(const wire::CloseIORequest& request, Reply<Empty> reply) {
  const Result<ContainerPtr> container = find(request.id());
  if (!container.ok()) return std::move(reply).fail(container.error());
  const Result<ManagedProcess*> process = (*container)->find(request.exec_id());
  if (!process.ok()) return std::move(reply).fail(process.error());
  if (request.stdin()) (*process)->close_stdin();
  std::move(reply).send({});
}

void TaskService::kill(const wire::KillRequest& request, Reply<Empty> reply) {
  const Result<ContainerPtr> container = find(request.id());
  if (!container.ok()) return std::move(reply).fail(container.error());
  if (request.signal() > kMaxSignal) {
    return std::move(reply).fail(make_error(
        Code::invalid_argument, "there is no signal " + std::to_string(request.signal())));
  }
  (*container)
      ->kill(request.exec_id(), static_cast<int>(request.signal()), request.all(),
             reply_empty(std::move(reply)));
}

// --- what changes a container
// ---------------------------------------------------------------------

void TaskService::update(const wire::UpdateTaskRequest& request, Reply<Empty> reply) {
  const Result<ContainerPtr> container = find(request.id());
  if (!container.ok()) return std::move(reply).fail(container.error());
  (*container)->update(request.resources().value(), reply_empty(std::move(reply)));
}

void TaskService::pause(const Context& context, const wire::PauseRequest& request,
                        Reply<Empty> reply) {
  const Result<ContainerPtr> container = find(request.id());
  if (!container.ok()) return std::move(reply).fail(container.error());
  (*container)->pause(context, reply_empty(std::move(reply)));
}

void TaskService::resume(const wire::ResumeRequest& request, Reply<Empty> reply) {
  const Result<ContainerPtr> container = find(request.id());
  if (!container.ok()) return std::move(reply).fail(container.error());
  (*container)->resume(reply_empty(std::move(reply)));
}

void TaskService::checkpoint(const Context& context, const wire::CheckpointTaskRequest& request,
                             Reply<Empty> reply) {
  const Result<ContainerPtr> container = find(request.id());
  if (!container.ok()) return std::move(reply).fail(container.error());
  Result<CheckpointOptions> options = decode_checkpoint_options(request.options());
  if (!options.ok()) return std::move(reply).fail(options.error());
  const std::string path = request.path().empty() ? options->image_path : request.path();
  (*container)->checkpoint(context, path, std::move(options->args), reply_empty(std::move(reply)));
}

// --- Delete, Shutdown
// -----------------------------------------------------------------------------

void TaskService::remove(const wire::DeleteRequest& request, Reply<wire::DeleteResponse> reply) {
  const auto entry = containers_.find(request.id());
  if (entry != containers_.end() && !entry->second->created()) {
    // Its client has given up on the Create that is under way and cleans up.
    entry->second->abort_create();
  }
  const Result<ContainerPtr> container = find(request.id());
  if (!container.ok()) return std::move(reply).fail(container.error());
  auto answer = [reply = std::move(reply)](const Result<ExitInfo>& exit) mutable {
    if (!exit.ok()) return std::move(reply).fail(exit.error());
    wire::DeleteResponse response;
    response.set_pid(static_cast<std::uint32_t>(exit->pid));
    response.set_exit_status(exit->status);
    *response.mutable_exited_at() = exit_time(*exit);
    std::move(reply).send(response);
  };
  if (!request.exec_id().empty()) {
    (*container)->remove_exec(request.exec_id(), std::move(answer));
    return;
  }
  (*container)
      ->remove([this, id = request.id(),
                answer = std::move(answer)](const Result<ExitInfo>& exit) mutable {
        if (exit.ok()) containers_.erase(id);
        answer(exit);
      });
}

void TaskService::shutdown(const wire::ShutdownRequest& /*request*/, Reply<Empty> reply) {
  std::move(reply).send({});
  // Sent after every Delete: the last one of a group ends the daemon.
  if (!containers_.empty() || !on_shutdown_) return;
  env_.loop.post("shutdown", std::exchange(on_shutdown_, {}));
}

}  // namespace icebox::shim
