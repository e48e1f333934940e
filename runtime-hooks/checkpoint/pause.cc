// SPDX-License-Identifier: Apache-2.0
#include "oci/base/log.h"
#include "runtime-hooks/checkpoint/gpu_hold.h"
#include "runtime-hooks/checkpoint/operations.h"
#include "runtime-hooks/checkpoint/rollback.h"

namespace icebox::engine {
namespace {

Result<void> resume_held(Session& session, const ContainerView& view) {
  Journal& journal = session.journal();
  journal.init = {view.init.pid, view.init.start_time};
  if (journal.suspended) {
    ICEBOX_TRY(session.enter("restore_gpu"));
    ICEBOX_TRY(restore_suspended(session, view.cgroup));
    journal.suspended = false;
  }
  ICEBOX_TRY(session.enter("thaw"));
  ICEBOX_TRY(view.cgroup.thaw());
  ICEBOX_TRY(session.enter("unlock"));
  ICEBOX_TRY(unlock_gpu(session));
  return session.finish();
}

}  // namespace

Result<void> pause(Engine& engine, const CommandArgs& args) {
  auto session = ICEBOX_TRY(Session::open(engine, OperationKind::pause, args.positional[0]));
  if (session.was_held())
    return make_error(Code::failed_precondition,
                      "container " + session.id() + " is already paused");
  const auto view = ICEBOX_TRY(look_up(session));
  if (view.state.status != "running") {
    return make_error(Code::failed_precondition,
                      "container " + session.id() + " is " + view.state.status + ", not running");
  }
  session.journal().init = {view.init.pid, view.init.start_time};
  const auto done = [&]() -> Result<void> {
    ICEBOX_TRY(session.enter("lock"));
    ICEBOX_TRY(lock_and_freeze(session, view.cgroup));
    return session.finish_held();
  }();
  if (done.ok()) return done;
  const auto undone = roll_back(session);
  if (undone.ok()) return done.error().context("pause");
  return done.error().context("pause").context("undoing it failed too (" + undone.error().message +
                                               ")");
}

Result<void> resume(Engine& engine, const CommandArgs& args) {
  auto session = ICEBOX_TRY(Session::open(engine, OperationKind::resume, args.positional[0]));
  if (session.was_held() && !is_alive(session.journal().init)) {
    // What is left of it sits in a frozen cgroup and cannot be reaped.
    const auto cgroup = container::Cgroup::of_container(engine.invocation.root, session.id(),
                                                        session.journal().init.pid);
    if (cgroup.ok()) ICEBOX_TRY(kill_container(*cgroup));
    ICEBOX_TRY(session.finish());
    return make_error(Code::failed_precondition, "container " + session.id() + " has ended");
  }
  const auto view = ICEBOX_TRY(look_up(session));
  if (session.was_held()) {
    const auto resumed = resume_held(session, view);
    if (!resumed.ok() && session.journal().suspended && !session.driver_stuck()) {
      // Still frozen and suspended: as it was, and it can be tried again.
      ICEBOX_TRY(session.finish_held());
    }
    return resumed;
  }
  if (view.state.status != "paused") {
    return make_error(Code::failed_precondition, "container " + session.id() + " is not paused");
  }
  // Frozen by somebody else: nothing of CUDA was touched.
  return view.cgroup.thaw();
}

}  // namespace icebox::engine
