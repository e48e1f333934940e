// SPDX-License-Identifier: Apache-2.0
#include "runtime-hooks/checkpoint/rollback.h"

#include <signal.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <set>

#include "oci/base/fault.h"
#include "oci/base/file.h"
#include "oci/base/log.h"
#include "oci/base/pid_ref.h"
#include "runtime-hooks/checkpoint/gpu_hold.h"
#include "runtime-hooks/container/mounts.h"

namespace icebox::engine {
namespace {

using std::chrono::seconds;
using std::chrono::steady_clock;

constexpr std::size_t kMaxSpec = 16 * 1024 * 1024;
// What one look at the driver's states may take.
constexpr seconds kStateDeadline{2};
// How much longer a driver gets, at each command, that has been given up before.
constexpr std::chrono::milliseconds kStuckPatience{4'000};

void sleep_ms(long ms) {
  struct timespec pause = {ms / 1000, (ms % 1000) * 1'000'000};
  ::nanosleep(&pause, nullptr);
}

// CRIUs that trace one of the container's processes. A debugger is nobody's leftover.
Result<std::set<pid_t>> tracers_of(const container::Cgroup& cgroup) {
  std::set<pid_t> tracers;
  const auto pids = ICEBOX_TRY(cgroup.processes());
  for (const auto& process : ICEBOX_TRY(container::read_processes(pids))) {
    if (process.tracer == 0) continue;
    const auto tracer = container::read_process(process.tracer);
    if (tracer.ok() && tracer->comm == "criu") tracers.insert(process.tracer);
  }
  return tracers;
}

std::vector<cuda::Target> in_state(const std::vector<cuda::Outcome>& outcomes,
                                   cuda::ProcessState state) {
  std::vector<cuda::Target> result;
  for (const auto& outcome : outcomes) {
    if (outcome.ok() && outcome.state == state) result.push_back(outcome.target);
  }
  return result;
}

// The driver is busy with it, or an earlier look at it has not come back.
bool unsettled(const cuda::Outcome& outcome) {
  return outcome.ending == cuda::Ending::no_answer || outcome.ending == cuda::Ending::refused ||
         outcome.state == cuda::ProcessState::busy;
}

// With the container thawed: whoever is LOCKED goes on.
Result<void> unlock_locked(Session& session) {
  forget_dead_targets(session);
  if (session.journal().targets.empty()) return {};
  // A Lock whose engine or agent died is carried out all the same, by when it would have been given
  // up at the latest; what is not known until then stays in the journal for the next command.
  const auto deadline = steady_clock::now() + session.engine().config.lock_timeout + kStateDeadline;
  auto* agent = ICEBOX_TRY(session.agent());
  auto states = ICEBOX_TRY(agent->states(session.journal().targets, kStateDeadline));
  while (std::any_of(states.begin(), states.end(), unsettled)) {
    if (steady_clock::now() >= deadline) {
      session.note_driver_stuck();
      return make_error(Code::unavailable, "whether CUDA is still locked cannot be told: " +
                                               cuda::describe_failures(states));
    }
    sleep_ms(200);
    states = ICEBOX_TRY(agent->states(session.journal().targets, kStateDeadline));
  }
  session.journal().targets = in_state(states, cuda::ProcessState::locked);
  return unlock_gpu(session);
}

// The driver's states, asked again while a process is still on its way: the agent of an engine that
// died finishes the operation it has begun. With the patience of suspend_gpu: in its second half
// the container's other threads run. Session::driver_stuck() when that is over.
Result<std::vector<cuda::Outcome>> settled_states(Session& session, container::HeldThreads& held) {
  const auto& targets = session.journal().targets;
  const auto patience = session.journal().stuck()
                            ? kStuckPatience
                            : session.driver_patience(gpu_bytes_of(session.journal()));
  const auto begin = steady_clock::now();
  auto* agent = ICEBOX_TRY(session.agent());
  for (;;) {
    auto states = ICEBOX_TRY(agent->states(targets, kStateDeadline));
    if (std::none_of(states.begin(), states.end(), unsettled)) return states;
    const auto elapsed = steady_clock::now() - begin;
    if (elapsed >= 2 * patience) {
      session.note_driver_stuck();
      return make_error(Code::unavailable,
                        "the driver has still not come back; " + way_out_of_driver(targets));
    }
    if (elapsed >= patience && !session.others_ran()) {
      session.note_others_ran();
      held.let_all_run();
    }
    sleep_ms(200);
  }
}

// A limit that cannot be put back is worth a loud line, not a failed undo.
Result<void> put_limits_back(Session& session) {
  const auto limits = std::exchange(session.journal().memory_limits, {});
  const auto limited = container::Cgroup::restore_limits(limits);
  if (!limited.ok()) {
    log::warn("a memory limit could not be put back",
              {{"id", session.id()}, {"error", limited.error().message}});
  }
  return session.save();
}

// The container goes back to running. It was frozen by us or not at all.
Result<void> back_to_running(Session& session, const container::Cgroup& cgroup) {
  ICEBOX_TRY(cgroup.thaw());
  return unlock_locked(session);
}

// Undo of pause, resume and checkpoint for a container whose init lives.
Result<void> roll_back_living(Session& session, const container::Cgroup& cgroup) {
  ICEBOX_TRY(settle(cgroup));
  const auto restored = restore_suspended(session, cgroup);
  if (session.driver_stuck()) {
    // For the next try. A paused container stays paused: the driver then gets its time at each
    // command only, as its thread is frozen like all others.
    session.journal().phase = "stuck";
    ICEBOX_TRY(session.save());
    if (!session.journal().was_paused) ICEBOX_TRY(cgroup.thaw());
    return restored;
  }
  if (!restored.ok()) {
    // Not put back: the processes stay frozen and suspended, which loses nothing. A later resume
    // tries again.
    session.journal().suspended = true;
    ICEBOX_TRY(session.finish_held());
    return restored.error().context(
        "the container stays paused with its CUDA state in host memory; resume it to try again");
  }
  if (session.journal().was_paused) {
    session.journal().suspended = false;
    return session.finish_held();
  }
  ICEBOX_TRY(back_to_running(session, cgroup));
  return session.finish();
}

Result<void> put_spec_back(const Journal& journal) {
  if (journal.original_spec.empty() || !exists(journal.original_spec)) return {};
  const auto text = ICEBOX_TRY(read_file(journal.original_spec, kMaxSpec));
  return write_file_atomic(journal.bundle + "/config.json", text, 0600, Durable::no);
}

}  // namespace

bool is_alive(const ProcessName& name) {
  if (name.pid <= 0) return false;
  const auto process = container::read_process(name.pid);
  return process.ok() && process->start_time == name.start_time && !process->zombie();
}

void forget_dead_targets(Session& session) {
  std::erase_if(session.journal().targets, [](const cuda::Target& target) {
    return !is_alive({target.pid, target.start_time});
  });
}

Result<void> restore_suspended(Session& session, const container::Cgroup& cgroup) {
  forget_dead_targets(session);
  if (session.journal().targets.empty()) return put_limits_back(session);
  const auto all = session.journal().targets;
  std::vector<cuda::Target> suspended;
  ICEBOX_TRY(
      with_driver_threads(session, cgroup, [&](container::HeldThreads& held) -> Result<void> {
        const auto states = ICEBOX_TRY(settled_states(session, held));
        suspended = in_state(states, cuda::ProcessState::checkpointed);
        return {};
      }));
  if (suspended.empty()) return put_limits_back(session);
  session.journal().targets = suspended;
  const auto restored = resume_gpu(session, cgroup, {});
  session.journal().targets = all;
  return restored;
}

Result<void> settle(const container::Cgroup& cgroup) {
  const auto deadline = steady_clock::now() + seconds(60);
  bool killed = false;
  for (;;) {
    const auto tracers = ICEBOX_TRY(tracers_of(cgroup));
    if (tracers.empty()) break;
    if (steady_clock::now() >= deadline) {
      if (killed) {
        return make_error(Code::failed_precondition,
                          "process " + std::to_string(*tracers.begin()) +
                              " still traces the container and cannot be ended");
      }
      for (const pid_t tracer : tracers) {
        log::warn("ending a CRIU that was left behind", {{"pid", std::to_string(tracer)}});
        const auto process = PidRef::open(tracer);
        if (process.ok()) static_cast<void>(process->signal(SIGKILL).ok());
      }
      killed = true;
      sleep_ms(500);
    }
    sleep_ms(5);
  }
  return cgroup.freeze(kFreezeTimeout);
}

Result<void> kill_container(const container::Cgroup& cgroup) {
  const auto deadline = steady_clock::now() + seconds(10);
  for (;;) {
    const auto pids = cgroup.processes();
    if (!pids.ok() && pids.error().code == Code::not_found) return {};
    if (!pids.ok()) return pids.error();
    auto processes = ICEBOX_TRY(container::read_processes(*pids));
    std::erase_if(processes, [](const container::Process& process) { return process.zombie(); });
    if (processes.empty()) return cgroup.thaw();
    ICEBOX_TRY(container::kill_processes(processes));
    // Only now: a frozen task dies (v1) once it is thawed, and must not run before it has its
    // signal.
    ICEBOX_TRY(cgroup.thaw());
    if (steady_clock::now() >= deadline) {
      return make_error(Code::deadline_exceeded,
                        "process " + std::to_string(processes.front().pid) + " (" +
                            processes.front().command_line + ", state " +
                            std::string(1, processes.front().state) + ") does not end");
    }
    sleep_ms(5);
  }
}

Result<void> tear_down_restore(Session& session) {
  Engine& engine = session.engine();
  Result<void> outcome;
  const auto note = [&](Result<void> result, const char* what) {
    if (!result.ok() && result.error().code != Code::not_found && outcome.ok())
      outcome = result.error().context(what);
  };
  const auto state = engine.runtime.state(session.id());
  if (state.ok() && state->pid > 0) {
    const auto cgroup =
        container::Cgroup::of_container(engine.invocation.root, session.id(), state->pid);
    if (cgroup.ok()) note(kill_container(*cgroup), "ending the restored processes");
  }
  // A killed `runc restore` leaves a bind of the root file system here, which its own delete would
  // empty.
  note(container::unmount_below(engine.invocation.root + "/" + session.id()), "unmounting");
  const auto removed =
      engine.runtime.run({.argv = {"delete", "--force", session.id()}}, {.deadline = seconds(30)});
  if (!removed.ok() && removed.error().code != Code::not_found)
    note(removed.error(), "removing the container");
  note(put_spec_back(session.journal()), "config.json of the bundle");
  if (!outcome.ok()) return outcome;
  return session.forget();
}

Result<void> roll_back(Session& session) {
  ICEBOX_TRY(fault::reach("rollback.begin"));
  Journal& journal = session.journal();
  if (journal.operation == OperationKind::restore) return tear_down_restore(session);
  // A client's Resume that died half-way has been promised: it is completed, not undone.
  if (journal.operation == OperationKind::resume) journal.was_paused = false;

  const auto cgroup = container::Cgroup::of_container(session.engine().invocation.root,
                                                      session.id(), journal.init.pid);
  if (!is_alive(journal.init)) {
    if (cgroup.ok()) ICEBOX_TRY(kill_container(*cgroup));
    return session.finish();
  }
  ICEBOX_TRY(cgroup.ok() ? Result<void>() : Result<void>(cgroup.error()));
  // Ending the container after its checkpoint was sealed cannot be taken back half-way either.
  if (session.state().killed() || journal.phase == "kill") {
    ICEBOX_TRY(kill_container(*cgroup));
    return session.finish();
  }
  if (journal.phase == "lock" && ICEBOX_TRY(cgroup->state()) == container::FreezerState::thawed) {
    ICEBOX_TRY(unlock_locked(session));
    return session.finish();
  }
  return roll_back_living(session, *cgroup);
}

}  // namespace icebox::engine
