// SPDX-License-Identifier: Apache-2.0
// The end of a container: Delete.
#include <unistd.h>

#include <utility>

#include "oci/base/file.h"
#include "oci/base/log.h"
#include "shim/runtime/rootfs.h"
#include "shim/task/container.h"
#include "shim/task/events.h"

namespace icebox::shim {
namespace {

// The client has 10 s in all. Output still in the pipes when init is dead is delivered in
// milliseconds unless the client does not read or a stranger holds the pipe.
constexpr std::chrono::seconds kDrainTimeout{5};
constexpr std::chrono::seconds kExitTimeout{2};

}  // namespace

void Container::remove(Done<ExitInfo> done) {
  if (restoring_) {
    done(refuse("delete"));
    return;
  }
  queue_.push("delete", [self = shared_from_this(), done = std::move(done)](Turn turn) mutable {
    self->run_remove(std::move(turn), std::move(done));
  });
}

void Container::run_remove(Turn turn, Done<ExitInfo> done) {
  if (removed_) {
    done(make_error(Code::not_found, "task " + config_.id + " does not exist"));
    return;
  }
  const ProcessState state = init_.state();
  if (state == ProcessState::stopped) {
    init_.io->drain(kDrainTimeout, [self = shared_from_this(), turn = std::move(turn),
                                    done = std::move(done)]() mutable {
      self->remove_from_engine(std::move(turn), std::move(done));
    });
  } else if (state == ProcessState::created) {
    remove_from_engine(std::move(turn), std::move(done));
  } else {
    done(refuse("delete"));
  }
}

void Container::remove_from_engine(Turn turn, Done<ExitInfo> done) {
  // Of a task that never ran the engine may have nothing, or a half-made restore.
  const bool force = init_.state() == ProcessState::created;
  engine_.run(delete_argv(engine_.context(), config_.id, force), {},
              [self = shared_from_this(), turn = std::move(turn),
               done = std::move(done)](const EngineResult& result) mutable {
                if (!result.ok() && !says_not_found(*result.error)) {
                  done(result.error->context("OCI runtime delete failed"));
                  return;
                }
                self->await_exit([self, turn = std::move(turn), done = std::move(done)] {
                  self->finish_remove(done);
                });
              });
}

// Of a task deleted while CREATED, the exit that the delete caused: it is told before the delete.
void Container::await_exit(UniqueFunction<void()> done) {
  if (init_.exit() || init_.pid() == 0) {
    done();
    return;
  }
  exit_told_ = std::move(done);
  exit_timer_ =
      env_.loop.after(kExitTimeout, "exit of a deleted task", [self = shared_from_this()] {
        if (self->exit_told_) std::exchange(self->exit_told_, {})();
      });
}

void Container::finish_remove(const Done<ExitInfo>& done) {
  exit_timer_.reset();
  if (mounted_) {
    if (Result<void> gone = unmount_tree(config_.bundle + "/rootfs"); !gone.ok()) {
      done(gone.error().context("cannot delete task " + config_.id));
      return;
    }
    mounted_ = false;
  }
  drop_temporary_checkpoint();
  removed_ = true;
  oom_watch_.reset();
  init_.io.reset();
  ExitInfo exit = init_.exit().value_or(ExitInfo{});
  exit.pid = init_.pid();
  // Spares `delete`, which containerd runs next, another command of the engine.
  if (const Result<void> marked = write_file_atomic(
          config_.bundle + "/" + std::string(kRemovedFile), "", 0600, Durable::no);
      !marked.ok()) {
    log::debug("cannot mark the bundle as removed", {{"reason", marked.error().message}});
  }
  env_.events.publish(task_delete_event(config_.id, exit));
  done(exit);
}

void Container::drop_temporary_checkpoint() {
  if (!temp_checkpoint_) return;
  if (const Result<void> gone = remove_tree(config_.checkpoint); !gone.ok()) {
    log::warn("cannot remove containerd's temporary checkpoint",
              {{"path", config_.checkpoint}, {"reason", gone.error().message}});
    return;
  }
  temp_checkpoint_ = false;
  ::unlink((config_.bundle + "/" + std::string(kTempCheckpointFile)).c_str());
}

}  // namespace icebox::shim
