// SPDX-License-Identifier: Apache-2.0
// What may be done to a container between its Start and its Delete.
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "oci/base/file.h"
#include "oci/base/log.h"
#include "shim/task/container.h"
#include "shim/task/events.h"

namespace icebox::shim {
namespace {

constexpr off_t kMaxKeptLog = off_t{4} << 20;

// Whether the client's deadline passed while an engine command ran; that command is then asked to
// stop. A connection that merely closed (containerd restarts) stops nothing.
class Deadline {
 public:
  // `stop` is called when the deadline passes.
  Deadline(const ttrpc::CallContext& context, UniqueFunction<void()> stop)
      : passed_(std::make_shared<bool>(false)) {
    context.on_cancel([passed = passed_, stop = std::move(stop)](const Error& reason) {
      if (reason.code != Code::deadline_exceeded) return;
      *passed = true;
      stop();
    });
  }
  [[nodiscard]] bool passed() const { return *passed_; }

 private:
  std::shared_ptr<bool> passed_;
};

// Asks the command `*tool` to stop, if it still runs.
UniqueFunction<void()> stopper(const Engine& engine,
                               std::shared_ptr<std::optional<Engine::Id>> tool) {
  return [&engine, tool = std::move(tool)] {
    if (*tool) (void)engine.signal(**tool, SIGTERM);
  };
}

// Copies the end of a log, where the reason of a failure is. Best effort; true if `to` now exists.
bool keep_log(const std::string& from, const std::string& to) {
  Result<UniqueFd> in = open_file(from, O_RDONLY | O_NOFOLLOW);
  if (!in.ok()) return false;
  struct stat info {};
  if (::fstat(in->get(), &info) != 0 || !S_ISREG(info.st_mode)) return false;
  if (info.st_size > kMaxKeptLog) (void)::lseek(in->get(), info.st_size - kMaxKeptLog, SEEK_SET);
  Result<std::string> text = read_all(in->get(), static_cast<std::size_t>(kMaxKeptLog));
  return text.ok() && write_file_atomic(to, *text, 0600, Durable::no).ok();
}

}  // namespace

// --- pause and resume
// -----------------------------------------------------------------------------

void Container::pause(const Context& context, Done<void> done) {
  if (restoring_) {
    done(refuse("pause"));
    return;
  }
  queue_.push("pause",
              [self = shared_from_this(), context, done = std::move(done)](Turn turn) mutable {
                self->run_pause(std::move(turn), context, std::move(done));
              });
}

void Container::run_pause(Turn turn, const Context& context, Done<void> done) {
  if (context.cancelled()) {
    done(make_error(Code::deadline_exceeded, "nobody waits for this pause any more"));
    return;
  }
  if (removed_ || init_gone() || !init_.apply(ProcessEvent::pause_begun)) {
    done(refuse("pause"));
    return;
  }
  auto tool = std::make_shared<std::optional<Engine::Id>>();
  Engine::RunOptions options;
  options.death_signal = SIGTERM;
  const Deadline deadline(context, stopper(engine_, tool));
  *tool = engine_.run(pause_argv(engine_.context(), config_.id), options,
                      [self = shared_from_this(), turn = std::move(turn), tool, deadline,
                       done = std::move(done)](const EngineResult& result) mutable {
                        tool->reset();
                        if (!result.ok()) {
                          self->init_.apply(ProcessEvent::pause_failed);
                          done(result.error->context("OCI runtime pause failed"));
                          if (result.crashed) self->recover_after_crash(std::move(turn));
                          return;
                        }
                        if (!self->init_.apply(ProcessEvent::paused)) {
                          done(self->refuse("pause"));
                          return;
                        }
                        self->env_.events.publish(task_paused_event(self->id()));
                        done({});
                        // Its client was told that it failed, so nobody would ever resume it.
                        if (deadline.passed())
                          self->run_resume(std::move(turn), [](const Result<void>&) {});
                      });
}

void Container::resume(Done<void> done) {
  if (restoring_) {
    done(refuse("resume"));
    return;
  }
  queue_.push("resume", [self = shared_from_this(), done = std::move(done)](Turn turn) mutable {
    self->run_resume(std::move(turn), std::move(done));
  });
}

void Container::run_resume(Turn turn, Done<void> done) {
  if (removed_ || init_gone() || init_.state() != ProcessState::paused) {
    done(refuse("resume"));
    return;
  }
  Engine::RunOptions options;
  options.death_signal = SIGTERM;
  engine_.run(resume_argv(engine_.context(), config_.id), options,
              [self = shared_from_this(), turn = std::move(turn),
               done = std::move(done)](const EngineResult& result) mutable {
                if (!result.ok()) {
                  done(result.error->context("OCI runtime resume failed"));
                  if (result.crashed) self->recover_after_crash(std::move(turn));
                  return;
                }
                if (!self->init_.apply(ProcessEvent::resumed)) {
                  done(self->refuse("resume"));
                  return;
                }
                self->env_.events.publish(task_resumed_event(self->id()));
                done({});
              });
}

// An engine that was killed half-way may have left a paused task running or a running one frozen.
// Its journal lets the next command put that right, so the next command is given now: the one that
// makes what this daemon has promised true.
void Container::recover_after_crash(Turn turn) {
  if (init_gone()) return;
  const bool paused = init_.state() == ProcessState::paused;
  const EngineContext context = engine_.context();
  engine_.run(paused ? pause_argv(context, config_.id) : resume_argv(context, config_.id), {},
              [self = shared_from_this(), turn = std::move(turn)](const EngineResult& result) {
                if (result.ok()) return;
                // Usual when there was nothing to put right: "already paused", "not paused".
                log::info("after a crash of the engine",
                          {{"id", self->id()}, {"answer", result.error->message}});
              });
}

// --- checkpoint
// -----------------------------------------------------------------------------------

void Container::checkpoint(const Context& context, std::string path, CheckpointArgs args,
                           Done<void> done) {
  if (restoring_) {
    done(refuse("checkpoint"));
    return;
  }
  if (path.empty()) {
    done(make_error(Code::invalid_argument, "checkpoint of task " + config_.id +
                                                ": no directory was given to write it to"));
    return;
  }
  args.id = config_.id;
  args.image_path = std::move(path);
  queue_.push("checkpoint", [self = shared_from_this(), context, args = std::move(args),
                             done = std::move(done)](Turn turn) mutable {
    self->run_checkpoint(std::move(turn), context, std::move(args), std::move(done));
  });
}

void Container::run_checkpoint(Turn turn, const Context& context, CheckpointArgs args,
                               Done<void> done) {
  if (context.cancelled()) {
    done(make_error(Code::deadline_exceeded, "nobody waits for this checkpoint any more"));
    return;
  }
  const ProcessState state = init_.state();
  if (removed_ || init_gone() ||
      (state != ProcessState::running && state != ProcessState::paused)) {
    done(refuse("checkpoint"));
    return;
  }
  const bool own_work = args.work_path.empty();
  if (own_work) args.work_path = config_.bundle + "/work/criu-work";
  for (const std::string& directory : {args.image_path, args.work_path}) {
    if (const Result<void> made = make_directories(directory, 0700); !made.ok()) {
      done(made.error());
      return;
    }
  }
  auto tool = std::make_shared<std::optional<Engine::Id>>();
  Engine::RunOptions options;
  options.death_signal = SIGTERM;
  const Deadline deadline(context, stopper(engine_, tool));
  Argv argv = checkpoint_argv(engine_.context(), args);
  *tool = engine_.run(std::move(argv), options,
                      [self = shared_from_this(), turn = std::move(turn), args = std::move(args),
                       own_work, tool, done = std::move(done)](EngineResult result) mutable {
                        tool->reset();
                        const bool crashed = result.crashed;
                        self->finish_checkpoint(args, own_work, std::move(result), done);
                        if (crashed) self->recover_after_crash(std::move(turn));
                      });
}

void Container::finish_checkpoint(const CheckpointArgs& args, bool own_work, EngineResult result,
                                  const Done<void>& done) {
  if (!result.ok()) {
    const std::string kept = config_.bundle + "/criu-dump.log";
    if (keep_log(args.work_path + "/dump.log", kept)) {
      result.error->message += "; CRIU's log: " + kept;
    }
  }
  if (own_work) {
    if (const Result<void> gone = remove_tree(args.work_path); !gone.ok()) {
      log::warn("cannot remove the work directory of a checkpoint",
                {{"path", args.work_path}, {"reason", gone.error().message}});
    }
  }
  if (!result.ok()) {
    done(*result.error);
    return;
  }
  env_.events.publish(task_checkpointed_event(config_.id, args.image_path));
  done({});
}

// --- update
// ---------------------------------------------------------------------------------------

void Container::update(std::string resources, Done<void> done) {
  if (restoring_) {
    done(refuse("update"));
    return;
  }
  queue_.push("update", [self = shared_from_this(), resources = std::move(resources),
                         done = std::move(done)](Turn turn) mutable {
    if (self->removed_ || self->init_gone() || self->init_.pid() == 0) {
      done(self->refuse("update"));
      return;
    }
    const std::string file = self->config_.bundle + "/resources.json";
    if (const Result<void> written = write_file_atomic(file, resources, 0600, Durable::no);
        !written.ok()) {
      done(written.error());
      return;
    }
    self->engine_.run(
        update_argv(self->engine_.context(), self->id(), file), {},
        [self, file, turn = std::move(turn), done = std::move(done)](const EngineResult& result) {
          ::unlink(file.c_str());
          if (result.ok()) {
            done({});
          } else {
            done(result.error->context("OCI runtime update failed"));
          }
        });
  });
}

// --- kill
// -----------------------------------------------------------------------------------------

void Container::kill(const std::string& exec_id, int signo, bool all, Done<void> done) {
  if (!exec_id.empty()) {
    kill_exec(exec_id, signo, done);
    return;
  }
  if (restoring_) {
    kill_restore(signo, done);
    return;
  }
  if (restore_failed_ && !init_gone() && signo == SIGKILL) {
    end_failed_restore();
    done({});
    return;
  }
  if (init_gone() || init_.pid() == 0) {
    if (all && init_.pid() != 0) kill_leftovers();
    done(make_error(Code::not_found, init_gone() ? "process already finished"
                                                 : "task " + config_.id + " was never started"));
    return;
  }
  kill_init(signo, all, std::move(done));
}

void Container::kill_init(int signo, bool all, Done<void> done) {
  Engine::RunOptions options;
  options.log = Engine::Log::kill;
  engine_.run(kill_argv(engine_.context(options.log), config_.id, signo, all), options,
              [self = shared_from_this(), signo, done = std::move(done)](EngineResult result) {
                if (result.ok()) {
                  done({});
                } else if (self->init_gone() || says_not_found(*result.error)) {
                  result.error->code = Code::not_found;
                  done(*result.error);
                } else if (signo == SIGKILL && *self->queue_.current() != '\0') {
                  // The engine could not get past the command that has the container. Death needs
                  // nobody's cooperation.
                  log::warn("kill goes past the engine",
                            {{"id", self->id()}, {"reason", result.error->message}});
                  done(self->env_.supervisor.signal(self->init_.pid(), SIGKILL));
                } else {
                  done(*result.error);
                }
              });
}

}  // namespace icebox::shim
