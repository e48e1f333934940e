// SPDX-License-Identifier: Apache-2.0
// Start of a task that was created from a checkpoint. It may take minutes, all through which the
// task can be looked at and killed.
#include <signal.h>
#include <unistd.h>

#include <utility>

#include "oci/base/file.h"
#include "oci/base/log.h"
#include "shim/task/container.h"
#include "shim/task/events.h"

namespace icebox::shim {
namespace {

constexpr std::chrono::seconds kConsoleTimeout{10};
constexpr unsigned kKilledStatus = 128 + SIGKILL;

}  // namespace

void Container::run_restore(Turn turn, const Context& context, Done<pid_t> done) {
  if (restore_failed_) {
    done(make_error(Code::failed_precondition,
                    "cannot start task " + config_.id + ": its restore failed before, delete it"));
    return;
  }
  restoring_ = true;
  announcing_ = true;
  init_.io->when_ready([self = shared_from_this(), turn = std::move(turn), context,
                        done = std::move(done)](const Result<void>& ready) mutable {
    if (!ready.ok()) {
      self->fail_restore(std::move(turn), ready.error(), false, std::move(done));
    } else {
      self->restore_with_engine(std::move(turn), context, std::move(done));
    }
  });
}

void Container::restore_with_engine(Turn turn, const Context& context, Done<pid_t> done) {
  RestoreArgs args;
  args.id = config_.id;
  args.bundle = config_.bundle;
  args.image_path = config_.checkpoint;
  args.work_path = config_.options.criu_work_path.empty() ? config_.bundle + "/work"
                                                          : config_.options.criu_work_path;
  args.pid_file = pid_file("init");
  args.console_socket = init_.io->console_socket().value_or("");
  args.no_pivot = config_.options.no_pivot_root;
  ::unlink(args.pid_file.c_str());
  if (const Result<void> made = make_directories(args.work_path, 0711);
      restore_killed_ || !made.ok()) {
    fail_restore(std::move(turn), made.ok() ? make_error(Code::cancelled, "") : made.error(), false,
                 std::move(done));
    return;
  }
  Engine::RunOptions options;
  options.io = init_.io.get();
  options.death_signal = SIGTERM;
  restore_tool_ = engine_.run(
      restore_argv(engine_.context(), args), options,
      [self = shared_from_this(), launch = Launch(env_), turn = std::move(turn),
       done = std::move(done)](EngineResult result) mutable {
        self->restore_tool_.reset();
        if (!result.ok()) {
          self->fail_restore(std::move(turn), *std::move(result.error), result.crashed,
                             std::move(done));
          return;
        }
        self->init_.io->when_console(
            kConsoleTimeout, [self, launch = std::move(launch), turn = std::move(turn),
                              done = std::move(done)](const Result<void>& console) mutable {
              if (!console.ok()) {
                self->fail_restore(std::move(turn), console.error(), true, std::move(done));
              } else {
                self->adopt_restored(std::move(turn), std::move(done));
              }
            });
      });
  context.on_cancel([weak = weak_from_this()](const Error& reason) {
    const std::shared_ptr<Container> self = weak.lock();
    if (!self || reason.code != Code::deadline_exceeded || !self->restore_tool_) return;
    (void)self->engine_.signal(*self->restore_tool_, SIGTERM);  // ended already: judged above
  });
}

void Container::adopt_restored(Turn turn, Done<pid_t> done) {
  if (restore_killed_) {  // too late to stop the engine, but not to keep the promise
    fail_restore(std::move(turn), make_error(Code::cancelled, ""), true, std::move(done));
    return;
  }
  if (Result<void> watched = watch_init(); !watched.ok()) {
    fail_restore(std::move(turn), std::move(watched).error(), true, std::move(done));
    return;
  }
  restoring_ = false;
  init_.apply(ProcessEvent::started);
  env_.events.publish(task_start_event(config_.id, init_.pid()));
  done(init_.pid());
  drop_temporary_checkpoint();
  for (const int signo : std::exchange(restore_signals_, {})) {
    kill_init(signo, false, [self = shared_from_this()](const Result<void>& sent) {
      if (!sent.ok()) {
        log::warn("cannot deliver a signal that came during the restore",
                  {{"id", self->id()}, {"reason", sent.error().message}});
      }
    });
  }
  announcing_ = false;
  settle_init();
}

// `leftovers`: the engine may not have cleaned up itself.
void Container::fail_restore(Turn turn, Error error, bool leftovers, Done<pid_t> done) {
  if (restore_killed_) {
    error = make_error(Code::cancelled, "task " + config_.id + " was killed while it was restored" +
                                            (error.message.empty() ? "" : ": " + error.message));
  } else {
    error = error.context("OCI runtime restore failed");
  }
  auto finish = [self = shared_from_this(), turn = std::move(turn), error = std::move(error),
                 done = std::move(done)] {
    self->end_restore();
    done(error);
    self->announcing_ = false;
    self->settle_init();
  };
  if (leftovers || restore_killed_) {
    force_delete(std::move(finish));
  } else {
    finish();
  }
}

void Container::end_restore() {
  restoring_ = false;
  restore_failed_ = true;
  init_.set_pid(0);
  if (restore_killed_) {
    // Whoever killed it waits for its end.
    held_exit_ = ExitInfo{0, kKilledStatus, std::chrono::system_clock::now()};
  }
}

// Nothing of it runs, but whoever kills it (`ctr task delete --force`) waits for its end.
void Container::end_failed_restore() {
  held_exit_ = ExitInfo{0, kKilledStatus, std::chrono::system_clock::now()};
  settle_init();
}

void Container::kill_restore(int signo, const Done<void>& done) {
  if (signo != SIGKILL) {
    restore_signals_.push_back(signo);
  } else if (!std::exchange(restore_killed_, true) && restore_tool_) {
    Engine::RunOptions options;
    options.log = Engine::Log::kill;
    engine_.run(kill_argv(engine_.context(options.log), config_.id, signo, false), options,
                [self = shared_from_this()](const EngineResult& result) {
                  if (result.ok() || !self->restore_tool_) return;
                  // There was nothing to kill yet: then the engine itself has to stop.
                  (void)self->engine_.signal(*self->restore_tool_, SIGTERM);
                });
  }
  done({});
}

}  // namespace icebox::shim
