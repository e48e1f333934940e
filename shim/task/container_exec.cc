// SPDX-License-Identifier: Apache-2.0
// Processes that Exec adds to a running container.
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "oci/base/file.h"
#include "oci/base/log.h"
#include "shim/task/container.h"
#include "shim/task/events.h"

namespace icebox::shim {
namespace {

constexpr std::chrono::seconds kConsoleTimeout{10};
constexpr std::chrono::seconds kDrainTimeout{5};
constexpr unsigned kUnknownExitStatus = 255;

Error no_such_exec(const std::string& exec_id) {
  return make_error(Code::not_found, "exec " + exec_id + " does not exist");
}

}  // namespace

Result<void> Container::exec(ExecConfig config) {
  const bool waits_for_restore = !config_.checkpoint.empty() && init_.pid() == 0;
  const bool may = init_.state() == ProcessState::created || init_.state() == ProcessState::running;
  if (removed_ || init_gone() || waits_for_restore || !may) return refuse("exec in");
  if (execs_.contains(config.exec_id)) {
    return make_error(Code::already_exists, "exec " + config.exec_id + " exists already");
  }
  auto exec = std::make_shared<Exec>(config.exec_id, std::move(config.stdio));
  exec->process_json = std::move(config.process_json);
  execs_.emplace(config.exec_id, std::move(exec));
  env_.events.publish(task_exec_added_event(config_.id, config.exec_id));
  return {};
}

void Container::start_exec(const std::string& exec_id, Done<pid_t> done) {
  const auto found = execs_.find(exec_id);
  if (found == execs_.end()) {
    done(no_such_exec(exec_id));
    return;
  }
  if (std::exchange(found->second->start_asked, true)) {
    done(make_error(Code::failed_precondition, "exec " + exec_id + " was started already"));
    return;
  }
  queue_.push("exec",
              [self = shared_from_this(), exec = found->second, done = std::move(done)](
                  Turn turn) mutable { self->run_exec(std::move(turn), exec, std::move(done)); });
}

void Container::run_exec(Turn turn, const ExecPtr& exec, Done<pid_t> done) {
  const bool may = init_.state() == ProcessState::created || init_.state() == ProcessState::running;
  if (removed_ || init_gone() || !may) {
    const Error error = refuse("exec in");
    fail_exec(exec);
    done(error);
    return;
  }
  Result<std::unique_ptr<ProcessIo>> io =
      ProcessIo::open(env_.loop, env_.supervisor, exec->process.stdio());
  if (!io.ok()) {
    fail_exec(exec);
    done(io.error());
    return;
  }
  exec->starting = true;
  exec->process.set_io(std::move(io).value());
  exec->process.io->when_ready([self = shared_from_this(), turn = std::move(turn), exec,
                                done = std::move(done)](const Result<void>& ready) mutable {
    if (!ready.ok()) {
      self->fail_exec(exec);
      done(ready.error());
    } else {
      self->exec_with_engine(std::move(turn), exec, std::move(done));
    }
  });
}

void Container::exec_with_engine(Turn turn, const ExecPtr& exec, Done<pid_t> done) {
  ExecArgs args;
  args.id = config_.id;
  args.process_file = config_.bundle + "/" + exec->exec_id + ".process.json";
  args.pid_file = pid_file(exec->exec_id);
  args.console_socket = exec->process.io->console_socket().value_or("");
  // It may hold secrets in its environment.
  if (const Result<void> written =
          write_file_atomic(args.process_file, exec->process_json, 0600, Durable::no);
      !written.ok()) {
    fail_exec(exec);
    done(written.error());
    return;
  }
  Engine::RunOptions options;
  options.io = exec->process.io.get();
  engine_.run(exec_argv(engine_.context(), args), options,
              [self = shared_from_this(), launch = Launch(env_), turn = std::move(turn), exec,
               process_file = args.process_file,
               done = std::move(done)](const EngineResult& result) mutable {
                ::unlink(process_file.c_str());
                if (!result.ok()) {
                  self->fail_exec(exec);
                  done(result.error->context("OCI runtime exec failed"));
                  return;
                }
                exec->process.io->when_console(
                    kConsoleTimeout, [self, launch = std::move(launch), turn = std::move(turn),
                                      exec, done = std::move(done)](const Result<void>& console) {
                      if (!console.ok()) {
                        self->fail_exec(exec);
                        done(console.error().context("no terminal for exec " + exec->exec_id));
                      } else {
                        self->adopt_exec(exec, done);
                      }
                    });
              });
}

void Container::adopt_exec(const ExecPtr& exec, const Done<pid_t>& done) {
  const Result<pid_t> pid = read_pid(exec->exec_id);
  if (!pid.ok()) {
    fail_exec(exec);
    done(pid.error());
    return;
  }
  exec->process.set_pid(*pid);
  const auto exited = [weak = weak_from_this(), exec](const ExitInfo& exit) {
    exec->held_exit = exit;
    exec->process.io->process_exited();
    if (const std::shared_ptr<Container> self = weak.lock()) self->settle_exec(exec);
  };
  const Result<void> watched = env_.supervisor.watch_pid(*pid, [exited](const ProcessExit& exit) {
    exited(ExitInfo{exit.pid, exit.exit_code, exit.at});
  });
  if (!watched.ok() && watched.error().code == Code::not_found) {
    exited(ExitInfo{*pid, kUnknownExitStatus, std::chrono::system_clock::now()});
  } else if (!watched.ok()) {
    fail_exec(exec);
    done(watched.error());
    return;
  }
  exec->process.apply(ProcessEvent::started);
  env_.events.publish(task_exec_started_event(config_.id, exec->exec_id, *pid));
  done(*pid);
  exec->starting = false;
  settle_exec(exec);
}

// An exec that never ran: no events, but whoever waits for it is told something.
void Container::fail_exec(const ExecPtr& exec) {
  exec->starting = false;
  exec->process.io.reset();
  exec->process.finish(
      ExitInfo{exec->process.pid(), kUnknownExitStatus, std::chrono::system_clock::now()});
  settle_init();
}

void Container::settle_exec(const ExecPtr& exec) {
  if (!exec->held_exit || exec->starting) return;
  const ExitInfo exit = *std::exchange(exec->held_exit, std::nullopt);
  env_.events.publish(task_exit_event(config_.id, exec->exec_id, exit));
  exec->process.finish(exit);
  settle_init();
}

bool Container::execs_running() const {
  return std::any_of(execs_.begin(), execs_.end(), [](const auto& each) {
    const Exec& exec = *each.second;
    return exec.starting || exec.process.state() == ProcessState::running;
  });
}

void Container::remove_exec(const std::string& exec_id, Done<ExitInfo> done) {
  const auto found = execs_.find(exec_id);
  if (found == execs_.end()) {
    done(no_such_exec(exec_id));
    return;
  }
  const ExecPtr exec = found->second;
  if (exec->starting || exec->process.state() == ProcessState::running) {
    done(make_error(Code::failed_precondition, "exec " + exec_id + " is running"));
    return;
  }
  execs_.erase(found);
  ::unlink(pid_file(exec_id).c_str());
  auto finish = [exec, done = std::move(done)] {
    exec->process.io.reset();
    ExitInfo exit = exec->process.exit().value_or(ExitInfo{});
    exit.pid = exec->process.pid();
    done(exit);
  };
  if (exec->process.io) {
    exec->process.io->drain(kDrainTimeout, std::move(finish));
  } else {
    finish();
  }
}

void Container::kill_exec(const std::string& exec_id, int signo, const Done<void>& done) const {
  const auto found = execs_.find(exec_id);
  if (found == execs_.end()) {
    done(no_such_exec(exec_id));
    return;
  }
  const ManagedProcess& process = found->second->process;
  if (process.state() == ProcessState::created) {
    done(make_error(Code::failed_precondition, "exec " + exec_id + " is not started"));
  } else if (process.exit() || found->second->held_exit) {
    done(make_error(Code::not_found, "process already finished"));
  } else {
    done(env_.supervisor.signal(process.pid(), signo));
  }
}

}  // namespace icebox::shim
