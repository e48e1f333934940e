// SPDX-License-Identifier: Apache-2.0
#include "shim/task/container.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "oci/base/file.h"
#include "oci/base/log.h"
#include "oci/base/strings.h"
#include "shim/runtime/cgroup_stats.h"
#include "shim/runtime/rootfs.h"
#include "shim/task/events.h"
#include "shim/task/temp_checkpoint.h"

namespace icebox::shim {
namespace {

constexpr std::chrono::seconds kConsoleTimeout{10};
constexpr std::size_t kMaxPidFile = 64;
constexpr unsigned kUnknownExitStatus = 255;

Engine::Settings engine_settings(const TaskEnvironment& environment,
                                 const Container::Config& config) {
  Engine::Settings settings;
  settings.program = environment.engine_program;
  settings.root = runtime_root(config.options.root, environment.ns);
  settings.bundle = config.bundle;
  settings.binary_name = config.options.binary_name;
  settings.systemd_cgroup =
      config.options.systemd_cgroup || is_systemd_cgroups_path(config.facts.cgroups_path);
  return settings;
}

ExitInfo exit_info(const ProcessExit& exit) { return ExitInfo{exit.pid, exit.exit_code, exit.at}; }

}  // namespace

Container::Container(TaskEnvironment& environment, Config config)
    : env_(environment),
      config_(std::move(config)),
      engine_(environment.tools, engine_settings(environment, config_)),
      queue_(environment.loop),
      init_(config_.stdio) {}

Error Container::refuse(const char* verb) const {
  return make_error(Code::failed_precondition,
                    std::string("cannot ") + verb + " task " + config_.id + ": it is " +
                        (restoring_ ? "being restored" : std::string(state_name(init_.state()))));
}

std::string Container::pid_file(const std::string& name) const {
  return config_.bundle + "/" + name + ".pid";
}

Result<pid_t> Container::read_pid(const std::string& name) const {
  const std::string path = pid_file(name);
  const std::string text = ICEBOX_TRY(read_file(path, kMaxPidFile));
  const std::int64_t pid = ICEBOX_TRY(parse_i64(trim(text)).context(path));
  return static_cast<pid_t>(pid);
}

void Container::force_delete(UniqueFunction<void()> done) {
  engine_.run(delete_argv(engine_.context(), config_.id, true), {},
              [self = shared_from_this(), done = std::move(done)](const EngineResult& result) {
                if (!result.ok() && !says_not_found(*result.error)) {
                  log::warn("cannot clean up after a failed start",
                            {{"id", self->id()}, {"reason", result.error->message}});
                }
                done();
              });
}

// --- create
// ---------------------------------------------------------------------------------------

Result<void> Container::prepare() {
  // As the stock shim writes them: its `delete` may be the one that cleans this bundle.
  ICEBOX_TRY(write_file_atomic(config_.bundle + "/options.json", options_to_json(config_.options),
                               0600, Durable::no));
  ICEBOX_TRY(write_file_atomic(config_.bundle + "/runtime", config_.options.binary_name, 0600,
                               Durable::no));
  temp_checkpoint_ = !config_.checkpoint.empty() &&
                     is_temporary_checkpoint(config_.checkpoint, config_.options.criu_image_path,
                                             temporary_directories());
  if (temp_checkpoint_) {
    ICEBOX_TRY(write_file_atomic(config_.bundle + "/" + std::string(kTempCheckpointFile),
                                 config_.checkpoint, 0600, Durable::no));
  }
  const std::string rootfs = config_.bundle + "/rootfs";
  if (!config_.rootfs.empty()) {
    ICEBOX_TRY(make_directories(rootfs, 0711));
    ICEBOX_TRY(mount_rootfs(config_.rootfs, rootfs).context("failed to mount rootfs component"));
    mounted_ = true;
  }
  init_.set_io(ICEBOX_TRY(ProcessIo::open(env_.loop, env_.supervisor, init_.stdio())));
  return {};
}

void Container::create(const Context& context, Done<pid_t> done) {
  if (const Result<void> ready = prepare(); !ready.ok()) {
    fail_create(ready.error(), false, std::move(done));
    return;
  }
  if (!config_.checkpoint.empty()) {  // Start restores it
    created_ = true;
    env_.events.publish(task_create_event(config_.id, config_.bundle, config_.rootfs, init_.stdio(),
                                          config_.checkpoint, 0));
    done(0);
    return;
  }
  context.on_cancel([weak = weak_from_this()](const Error& reason) {
    const std::shared_ptr<Container> self = weak.lock();
    if (self && reason.code == Code::deadline_exceeded) self->abort_create();
  });
  init_.io->when_ready(
      [self = shared_from_this(), done = std::move(done)](const Result<void>& ready) mutable {
        if (!ready.ok()) {
          self->fail_create(ready.error(), false, std::move(done));
        } else {
          self->create_with_engine(std::move(done));
        }
      });
}

void Container::create_with_engine(Done<pid_t> done) {
  if (create_aborted_) {
    fail_create(make_error(Code::cancelled, "create was aborted"), false, std::move(done));
    return;
  }
  announcing_ = true;
  CreateArgs args;
  args.id = config_.id;
  args.bundle = config_.bundle;
  args.pid_file = pid_file("init");
  args.console_socket = init_.io->console_socket().value_or("");
  args.no_pivot = config_.options.no_pivot_root;
  args.no_new_keyring = config_.options.no_new_keyring;
  Engine::RunOptions options;
  options.io = init_.io.get();
  create_tool_ = engine_.run(
      create_argv(engine_.context(), args), options,
      [self = shared_from_this(), launch = Launch(env_),
       done = std::move(done)](const EngineResult& result) mutable {
        self->create_tool_.reset();
        if (!result.ok()) {
          // runc takes back what it did itself, unless it was killed.
          self->fail_create(result.error->context("OCI runtime create failed"), result.crashed,
                            std::move(done));
          return;
        }
        self->init_.io->when_console(
            kConsoleTimeout, [self, launch = std::move(launch),
                              done = std::move(done)](const Result<void>& console) mutable {
              if (!console.ok()) {
                self->fail_create(console.error().context("no terminal for the container"), true,
                                  std::move(done));
              } else {
                self->adopt_created(std::move(done));
              }
            });
      });
}

void Container::adopt_created(Done<pid_t> done) {
  Result<void> watched = create_aborted_
                             ? Result<void>(make_error(Code::cancelled, "create was aborted"))
                             : watch_init();
  if (!watched.ok()) {
    fail_create(watched.error(), true, std::move(done));
    return;
  }
  created_ = true;
  env_.events.publish(task_create_event(config_.id, config_.bundle, config_.rootfs, init_.stdio(),
                                        "", init_.pid()));
  done(init_.pid());
  announcing_ = false;
  settle_init();
}

void Container::abort_create() {
  if (created_) return;
  create_aborted_ = true;
  if (create_tool_) {
    // It has ended already when this fails; then its result is about to be looked at.
    (void)engine_.signal(*create_tool_, SIGKILL);
  }
}

void Container::fail_create(const Error& error, bool engine_ran, Done<pid_t> done) {
  if (!engine_ran) {
    undo_create();
    done(error);
    return;
  }
  force_delete([self = shared_from_this(), error, done = std::move(done)] {
    self->undo_create();
    done(error);
  });
}

void Container::undo_create() {
  init_.io.reset();
  if (!mounted_) return;
  mounted_ = false;
  if (const Result<void> gone = unmount_tree(config_.bundle + "/rootfs"); !gone.ok()) {
    log::warn("cannot undo a create", {{"id", config_.id}, {"reason", gone.error().message}});
  }
}

// --- init's life
// ----------------------------------------------------------------------------------

Result<void> Container::watch_init() {
  const pid_t pid = ICEBOX_TRY(read_pid("init"));
  init_.set_pid(pid);
  // A zombie has no cgroup any more: then there is nothing to list or measure.
  cgroup_ = cgroup_of(pid).value_or(CgroupPaths{});
  watch_oom();
  Result<void> watched =
      env_.supervisor.watch_pid(pid, [weak = weak_from_this()](const ProcessExit& exit) {
        if (const std::shared_ptr<Container> self = weak.lock()) {
          self->on_init_exit(exit_info(exit));
        }
      });
  if (!watched.ok() && watched.error().code == Code::not_found) {
    // Dead, and reaped by the runtime: nobody knows its status any more.
    on_init_exit(ExitInfo{pid, kUnknownExitStatus, std::chrono::system_clock::now()});
    return {};
  }
  return watched;
}

void Container::watch_oom() {
  Result<std::unique_ptr<OomWatch>> watch = OomWatch::start(
      env_.loop, cgroup_, [this] { env_.events.publish(task_oom_event(config_.id)); });
  if (watch.ok()) {
    oom_watch_ = std::move(watch).value();
  } else {
    log::debug("no OOM events", {{"id", config_.id}, {"reason", watch.error().message}});
  }
}

void Container::start(const Context& context, Done<pid_t> done) {
  if (restoring_) {
    done(refuse("start"));
    return;
  }
  queue_.push("start",
              [self = shared_from_this(), context, done = std::move(done)](Turn turn) mutable {
                self->run_start(std::move(turn), context, std::move(done));
              });
}

void Container::run_start(Turn turn, const Context& context, Done<pid_t> done) {
  if (removed_ || init_gone() || init_.state() != ProcessState::created) {
    done(refuse("start"));
    return;
  }
  if (!config_.checkpoint.empty()) {
    run_restore(std::move(turn), context, std::move(done));
    return;
  }
  announcing_ = true;
  engine_.run(start_argv(engine_.context(), config_.id), {},
              [self = shared_from_this(), turn = std::move(turn),
               done = std::move(done)](const EngineResult& result) {
                if (result.ok()) {
                  self->init_.apply(ProcessEvent::started);
                  self->env_.events.publish(task_start_event(self->id(), self->init_.pid()));
                  done(self->init_.pid());
                } else {
                  done(result.error->context("OCI runtime start failed"));
                }
                self->announcing_ = false;
                self->settle_init();
              });
}

void Container::on_init_exit(const ExitInfo& exit) {
  held_exit_ = exit;
  log::debug("init exited", {{"id", config_.id}, {"status", std::to_string(exit.status)}});
  if (init_.io) init_.io->process_exited();
  if (init_.state() == ProcessState::paused || init_.state() == ProcessState::pausing) {
    // What is left of the container sits in a frozen cgroup and could never be reaped.
    queue_.push("thaw", [self = shared_from_this()](Turn turn) {
      self->engine_.run(resume_argv(self->engine_.context(), self->id()), {},
                        [turn = std::move(turn)](const EngineResult& /*result*/) {});
    });
  }
  settle_init();
}

// Tells init's exit once nothing that has to come before it is outstanding: its own create or
// start, and the exits of the exec'ed processes.
void Container::settle_init() {
  if (!held_exit_ || announcing_) return;
  // In a pid namespace of its own, the kernel has killed everybody with init.
  if (!config_.facts.private_pid_namespace) kill_leftovers();
  if (execs_running()) return;

  const ExitInfo exit = *std::exchange(held_exit_, std::nullopt);
  if (const Result<void> kept = write_file_atomic(config_.bundle + "/" + std::string(kExitFile),
                                                  format_exit(exit), 0600, Durable::no);
      !kept.ok()) {
    log::warn("cannot keep the exit status",
              {{"id", config_.id}, {"reason", kept.error().message}});
  }
  env_.events.publish(task_exit_event(config_.id, config_.id, exit));
  init_.finish(exit);
  if (exit_told_) std::exchange(exit_told_, {})();
}

void Container::kill_leftovers() const {
  for (const pid_t pid : processes_of(cgroup_)) {
    const Result<PidRef> process = PidRef::open(pid);
    // It may be gone between the listing and here; then all is well.
    if (process.ok()) (void)process->signal(SIGKILL);
  }
}

// --- what only reads
// ------------------------------------------------------------------------------

Result<ManagedProcess*> Container::find(const std::string& exec_id) {
  if (exec_id.empty()) return &init_;
  const auto found = execs_.find(exec_id);
  if (found == execs_.end()) {
    return make_error(Code::not_found,
                      "process " + exec_id + " of task " + config_.id + " does not exist");
  }
  return &found->second->process;
}

ProcessState Container::reported_state(const ManagedProcess& process) const {
  const bool frozen =
      init_.state() == ProcessState::paused || init_.state() == ProcessState::pausing;
  return frozen && process.state() == ProcessState::running ? init_.state() : process.state();
}

std::vector<std::pair<pid_t, std::string>> Container::processes() const {
  std::vector<std::pair<pid_t, std::string>> list;
  for (const pid_t pid : processes_of(cgroup_)) {
    const auto exec = std::find_if(execs_.begin(), execs_.end(), [pid](const auto& each) {
      return each.second->process.pid() == pid && !each.second->process.exit();
    });
    list.emplace_back(pid, exec == execs_.end() ? "" : exec->first);
  }
  if (list.empty()) list.emplace_back(init_.pid(), "");
  return list;
}

Result<google::protobuf::Any> Container::stats() const { return collect_stats(cgroup_); }

}  // namespace icebox::shim
