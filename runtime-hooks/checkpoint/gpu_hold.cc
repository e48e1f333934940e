// SPDX-License-Identifier: Apache-2.0
#include "runtime-hooks/checkpoint/gpu_hold.h"

#include <algorithm>
#include <set>
#include <utility>

#include "oci/base/fault.h"
#include "oci/base/log.h"
#include "oci/base/strings.h"

namespace icebox::engine {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

bool known(const std::vector<cuda::Target>& targets, const cuda::Target& target) {
  return std::find(targets.begin(), targets.end(), target) != targets.end();
}

std::vector<cuda::Target> newcomers(const std::vector<cuda::Target>& found,
                                    const std::vector<cuda::Target>& locked) {
  std::vector<cuda::Target> result;
  for (const auto& target : found) {
    if (!known(locked, target)) result.push_back(target);
  }
  return result;
}

// Locks `targets` and adds them to the journal before the driver is asked: an undo must know of
// every process that may be locked.
Result<void> lock_targets(Session& session, const std::vector<cuda::Target>& targets,
                          steady_clock::time_point deadline) {
  for (const auto& target : targets) {
    const auto process = container::read_process(target.pid);
    if (!process.ok() || process->state != 'T') continue;
    return make_error(Code::failed_precondition,
                      "process " + std::to_string(target.pid) + " (" + process->command_line +
                          ") is stopped by a signal, and CUDA can be locked only in one that runs: "
                          "send it SIGCONT first");
  }
  auto& held = session.journal().targets;
  held.insert(held.end(), targets.begin(), targets.end());
  ICEBOX_TRY(session.save());
  const auto left = std::chrono::duration_cast<milliseconds>(deadline - steady_clock::now());
  if (left.count() <= 0) {
    return make_error(
        Code::deadline_exceeded,
        "new CUDA processes kept appearing until lock_timeout_ms was over: try again");
  }
  auto* agent = ICEBOX_TRY(session.agent());
  const auto outcomes = ICEBOX_TRY(agent->lock(targets, left));
  if (cuda::all_ok(outcomes)) return {};
  // Where the driver still holds the lock's call, the agent undoes it should it succeed after all;
  // our undo could only wait for the same driver.
  for (const auto& outcome : outcomes) {
    if (outcome.ending == cuda::Ending::no_answer) std::erase(held, outcome.target);
  }
  ICEBOX_TRY(session.save());
  const bool late = std::any_of(outcomes.begin(), outcomes.end(), [](const cuda::Outcome& outcome) {
    return outcome.ending == cuda::Ending::no_answer || outcome.name == "CUDA_ERROR_NOT_READY";
  });
  const std::string message = "CUDA could not be locked: " + cuda::describe_failures(outcomes);
  return make_error(late ? Code::deadline_exceeded : Code::failed_precondition, message);
}

// Free memory of every GPU against what the targets will need there. A GPU that is not here at all
// is left to the driver's own error.
Result<void> check_gpu_room(Session& session, const std::vector<cuda::GpuPair>& gpu_map) {
  const auto& needed = session.journal().gpu_bytes;
  if (needed.empty()) return {};
  auto* agent = ICEBOX_TRY(session.agent());
  const auto driver = ICEBOX_TRY(agent->info());
  for (const auto& [old_uuid, bytes] : needed) {
    std::string uuid = old_uuid;
    for (const auto& pair : gpu_map) {
      if (pair.old_uuid == old_uuid) uuid = pair.new_uuid;
    }
    for (const auto& gpu : driver.gpus) {
      if (gpu.uuid != uuid || gpu.free_bytes >= bytes) continue;
      return make_error(Code::resource_exhausted,
                        "GPU " + uuid + " has " + human_bytes(gpu.free_bytes) + " free, but " +
                            human_bytes(bytes) + " are needed: free memory there and try again");
    }
  }
  return {};
}

Result<std::set<pid_t>> driver_threads(Session& session) {
  auto* agent = ICEBOX_TRY(session.agent());
  const auto outcomes = ICEBOX_TRY(agent->restore_threads(session.journal().targets));
  std::set<pid_t> threads;
  for (const auto& outcome : outcomes) {
    if (outcome.ending == cuda::Ending::gone) continue;
    if (!outcome.ok())
      return make_error(Code::failed_precondition,
                        "the driver names no restore thread: " + outcome.message);
    threads.insert(outcome.restore_thread);
  }
  return threads;
}

// No process of the container may hold a device when CRIU comes.
Result<void> check_devices_released(const container::Cgroup& cgroup) {
  const auto majors = ICEBOX_TRY(cuda::read_nvidia_majors());
  for (const pid_t pid : ICEBOX_TRY(cgroup.processes())) {
    const auto use = ICEBOX_TRY(cuda::inspect_process(pid, majors));
    if (!use.holds_device()) continue;
    std::vector<std::string> what;
    for (const auto& fd : use.nvidia_fds)
      what.push_back("fd " + std::to_string(fd.fd) + " (" + fd.path + ")");
    for (const auto& mapping : use.nvidia_mappings) what.push_back("mapping of " + mapping);
    return make_error(
        Code::failed_precondition,
        "process " + std::to_string(pid) + " (" + use.command_line +
            ") still holds a GPU device after the driver suspended it: " + join(what, ", ") +
            "; close it before the checkpoint (a driver from 570 on closes its own)");
  }
  return {};
}

// Decides about a driver call that takes too long; see suspend_gpu.
cuda::GpuAgent::Progress patience(Session& session, container::HeldThreads& held,
                                  std::uint64_t gpu_bytes) {
  const auto limit = session.driver_patience(gpu_bytes);
  // What has not been brought back in full must not run: a restore fails and ends it.
  const bool may_run = session.journal().operation != OperationKind::restore;
  return [&session, &held, limit, may_run](milliseconds elapsed) {
    if (elapsed < limit) return true;
    if (may_run && !session.others_ran()) {
      log::warn("the driver does not come back: the container's other threads are let go",
                {{"id", session.id()}, {"ms", std::to_string(elapsed.count())}});
      session.note_others_ran();
      held.let_all_run();
    }
    if (elapsed < 2 * limit) return true;
    session.note_driver_stuck();
    return false;
  };
}

// A driver Checkpoint or Restore of all targets.
Result<void> drive(Session& session, const container::Cgroup& cgroup, std::uint64_t gpu_bytes,
                   const std::string& failure,
                   const std::function<Result<std::vector<cuda::Outcome>>(
                       cuda::GpuAgent&, const cuda::GpuAgent::Progress&)>& call) {
  const auto done =
      with_driver_threads(session, cgroup, [&](container::HeldThreads& held) -> Result<void> {
        auto* agent = ICEBOX_TRY(session.agent());
        const auto outcomes = ICEBOX_TRY(call(*agent, patience(session, held, gpu_bytes)));
        if (cuda::all_ok(outcomes)) return {};
        return make_error(Code::failed_precondition,
                          failure + ": " + cuda::describe_failures(outcomes));
      });
  if (!session.driver_stuck()) return done;
  const std::string waited = failure + " within " +
                             std::to_string(2 * session.driver_patience(gpu_bytes).count()) +
                             " ms (twice driver_timeout_ms and what the device memory takes)";
  if (session.journal().operation == OperationKind::restore)
    return make_error(Code::deadline_exceeded, waited);
  session.journal().phase = "stuck";
  ICEBOX_TRY(session.save());
  if (!session.journal().was_paused) ICEBOX_TRY(cgroup.thaw());
  return make_error(Code::deadline_exceeded,
                    waited + ", although all threads of the container could run for half of it; " +
                        way_out_of_driver(session.journal().targets));
}

std::uint64_t room_for(std::uint64_t gpu_bytes) {
  constexpr std::uint64_t kMargin = 64ULL << 20;
  return gpu_bytes + gpu_bytes / 10 + kMargin;
}

}  // namespace

Result<std::vector<Surveyed>> survey_gpu_use(Session& session, const container::Cgroup& cgroup) {
  const auto majors = ICEBOX_TRY(cuda::read_nvidia_majors());
  std::vector<Surveyed> surveyed;
  std::vector<cuda::Target> suspects;
  for (const pid_t pid : ICEBOX_TRY(cgroup.processes())) {
    auto use = ICEBOX_TRY(cuda::inspect_process(pid, majors));
    if (!use.uses_gpu()) continue;
    suspects.push_back(use.process);
    surveyed.push_back({std::move(use), {}});
  }
  if (suspects.empty()) return surveyed;
  auto* agent = ICEBOX_TRY(session.agent());
  const auto outcomes = ICEBOX_TRY(agent->restore_threads(suspects));
  for (std::size_t i = 0; i < surveyed.size(); ++i) {
    if (outcomes[i].ending == cuda::Ending::gone) {
      surveyed[i].use.gone = true;
      continue;
    }
    const auto answer = cuda::restore_thread_answer(outcomes[i]);
    if (answer == cuda::RestoreThread::unknown) {
      return make_error(Code::unavailable, "the driver does not say whether a process uses CUDA: " +
                                               outcomes[i].message);
    }
    surveyed[i].what = cuda::classify(surveyed[i].use, answer);
  }
  std::erase_if(surveyed, [](const Surveyed& entry) { return entry.use.gone; });
  return surveyed;
}

std::vector<cuda::Target> targets_in(const std::vector<Surveyed>& surveyed) {
  std::vector<cuda::Target> targets;
  for (const auto& entry : surveyed) {
    if (entry.what.treatment == cuda::Treatment::suspend) targets.push_back(entry.use.process);
  }
  return targets;
}

Result<void> lock_and_freeze(Session& session, const container::Cgroup& cgroup) {
  const auto deadline = steady_clock::now() + session.engine().config.lock_timeout;
  for (;;) {
    // Newcomers may be forked while the others are being locked: lock until a look finds nobody
    // new.
    for (;;) {
      const auto found = targets_in(ICEBOX_TRY(survey_gpu_use(session, cgroup)));
      const auto fresh = newcomers(found, session.journal().targets);
      if (fresh.empty()) break;
      ICEBOX_TRY(lock_targets(session, fresh, deadline));
    }
    ICEBOX_TRY(cgroup.freeze(kFreezeTimeout));
    // Frozen, nobody can start using CUDA any more: this look is final.
    const auto found = targets_in(ICEBOX_TRY(survey_gpu_use(session, cgroup)));
    if (newcomers(found, session.journal().targets).empty()) return {};
    ICEBOX_TRY(cgroup.thaw());
  }
}

std::uint64_t gpu_bytes_of(const Journal& journal) {
  std::uint64_t bytes = 0;
  for (const auto& [uuid, used] : journal.gpu_bytes) bytes += used;
  return bytes;
}

std::string way_out_of_driver(const std::vector<cuda::Target>& targets) {
  std::vector<std::string> names;
  for (const auto& target : targets) {
    const auto process = container::read_process(target.pid);
    names.push_back(std::to_string(target.pid) +
                    (process.ok() ? " (" + process->command_line + ")" : ""));
  }
  return "CUDA of " + join(names, ", ") +
         " is in the driver's hands: the next command for this container brings it back once the "
         "driver answers, `kill -9` ends it";
}

Result<void> with_driver_threads(Session& session, const container::Cgroup& cgroup,
                                 const std::function<Result<void>(container::HeldThreads&)>& work) {
  const auto threads = ICEBOX_TRY(driver_threads(session));
  return container::with_only_driver_threads(cgroup, threads, work);
}

Result<void> suspend_gpu(Session& session, const container::Cgroup& cgroup,
                         std::uint64_t gpu_bytes) {
  ICEBOX_TRY(cgroup.raise_memory_limit(room_for(gpu_bytes),
                                       [&](const std::vector<container::SavedLimit>& limits) {
                                         session.journal().memory_limits = limits;
                                         return session.save();
                                       }));
  ICEBOX_TRY(drive(session, cgroup, gpu_bytes, "the driver could not suspend CUDA",
                   [&](cuda::GpuAgent& agent, const cuda::GpuAgent::Progress& progress) {
                     return agent.checkpoint(session.journal().targets, progress);
                   }));
  return check_devices_released(cgroup);
}

Result<void> resume_gpu(Session& session, const container::Cgroup& cgroup,
                        const std::vector<cuda::GpuPair>& gpu_map) {
  ICEBOX_TRY(check_gpu_room(session, gpu_map));
  ICEBOX_TRY(drive(session, cgroup, gpu_bytes_of(session.journal()),
                   "the driver could not put CUDA back on the GPU",
                   [&](cuda::GpuAgent& agent, const cuda::GpuAgent::Progress& progress) {
                     return agent.restore(session.journal().targets, gpu_map, progress);
                   }));
  ICEBOX_TRY(
      container::Cgroup::restore_limits(session.journal().memory_limits).context("memory limit"));
  session.journal().memory_limits.clear();
  return session.save();
}

Result<void> unlock_gpu(Session& session) {
  if (session.journal().targets.empty()) return {};
  auto* agent = ICEBOX_TRY(session.agent());
  const auto outcomes = ICEBOX_TRY(agent->unlock(session.journal().targets));
  std::vector<cuda::Outcome> failed;
  for (const auto& outcome : outcomes) {
    if (!outcome.ok() && outcome.ending != cuda::Ending::gone) failed.push_back(outcome);
  }
  if (failed.empty()) return {};
  return make_error(Code::failed_precondition,
                    "CUDA could not be unlocked: " + cuda::describe_failures(failed));
}

}  // namespace icebox::engine
