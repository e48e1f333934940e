// SPDX-License-Identifier: Apache-2.0
#include "runtime-hooks/container/thread_hold.h"

#include <chrono>
#include <deque>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "oci/base/fault.h"
#include "oci/base/scope_guard.h"
#include "runtime-hooks/container/backoff.h"
#include "runtime-hooks/container/process.h"
#include "runtime-hooks/container/task_state.h"
#include "runtime-hooks/container/thread_tracer.h"

namespace icebox::container {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kStopTimeout{10000};
constexpr milliseconds kFreezeTimeout{10000};
// How often a look at all threads also asks why those that have not stopped have not.
constexpr int kRoundsBetweenReasons = 8;

// All traced threads of one container, from seize to release.
class Hold {
 public:
  Hold(const Cgroup& cgroup, const std::set<pid_t>& driver_threads, TracerThread tracer)
      : cgroup_(cgroup), driver_threads_(driver_threads), tracer_(std::move(tracer)) {}
  Hold(const Hold&) = delete;
  Hold& operator=(const Hold&) = delete;

  // Seizes every thread that the thaw would let run. On failure the destructor gives all back without a thaw.
  Result<void> seize_all();

  // Seizes those of processes that were moved into the cgroup since, then waits for every stop. After the thaw.
  Result<void> wait_all_stopped();

  // Lets go of everything. With the cgroup frozen.
  void release();

 private:
  // A group-stopped thread that v1 has frozen: PTRACE_SEIZE of it returns only after the thaw.
  struct LateTracee {
    TracerThread tracer;
    std::shared_ptr<Result<Seized>> seized;  // of the posted call; the thread may outlive this object
    Tracee tracee;
  };

  enum class When { frozen, thawed };

  // These two run on the tracer thread.
  Result<std::size_t> seize_pass(When when);
  Result<void> seize_one(pid_t process, pid_t tid, When when);

  Result<void> start_late(pid_t process, pid_t tid);
  Result<void> wait_stops();
  bool at_rest(Tracee& tracee, bool ask_why);
  [[nodiscard]] Error not_stopped(const Tracee& tracee) const;

  const Cgroup& cgroup_;
  const std::set<pid_t>& driver_threads_;
  TracerThread tracer_;
  std::set<pid_t> processes_;  // all that were looked at
  std::set<pid_t> threads_;    // all that were seized, or need not be
  std::vector<Tracee> tracees_;
  std::vector<std::pair<pid_t, pid_t>> maybe_stopped_;  // process and thread, for LateTracee
  std::deque<LateTracee> late_;
};

Result<void> Hold::seize_all() {
  Result<void> result;
  tracer_.call([&] {
    // Nothing can fork while frozen, but another process may have been moved in while the first list was read.
    for (;;) {
      const auto added = seize_pass(When::frozen);
      if (!added.ok()) result = added.error();
      if (!added.ok() || *added == 0) return;
    }
  });
  if (!result.ok()) return result;
  // Last, because these can be taken back only by a thaw.
  for (const auto& [process, tid] : maybe_stopped_) ICEBOX_TRY(start_late(process, tid));
  return {};
}

Result<std::size_t> Hold::seize_pass(When when) {
  std::size_t added = 0;
  for (const pid_t process : ICEBOX_TRY(cgroup_.processes_thawed_with())) {
    const bool known = !processes_.insert(process).second;
    // After the thaw the driver may make threads of its own, in processes that are held already.
    if (known && when == When::thawed) continue;
    const auto tids = threads_of(process);
    if (!tids.ok()) {
      if (tids.error().code == Code::not_found) continue;
      return tids.error();
    }
    for (const pid_t tid : *tids) {
      if (driver_threads_.contains(tid) || !threads_.insert(tid).second) continue;
      ++added;
      ICEBOX_TRY(seize_one(process, tid, when));
    }
  }
  return added;
}

Result<void> Hold::seize_one(pid_t process, pid_t tid, When when) {
  if (when == When::frozen && !cgroup_.unified()) {
    const auto task = read_task_state(process, tid);
    if (task.ok() && task->maybe_group_stopped()) {
      maybe_stopped_.emplace_back(process, tid);
      return {};
    }
  }
  if (ICEBOX_TRY(seize(process, tid)) == Seized::yes) tracees_.push_back({process, tid});
  return {};
}

Result<void> Hold::start_late(pid_t process, pid_t tid) {
  auto& late = late_.emplace_back(LateTracee{ICEBOX_TRY(TracerThread::start()), {}, {process, tid}});
  late.seized = std::make_shared<Result<Seized>>(Seized::gone);
  late.tracer.post([result = late.seized, process, tid] { *result = seize(process, tid); });
  // The kernel makes us the tracer first and waits for the stop then.
  Backoff backoff(kStopTimeout);
  for (;;) {
    if (late.tracer.idle()) break;
    const auto task = read_task_state(process, tid);
    if (!task.ok() || task->tracer == late.tracer.tid()) return {};
    if (!backoff.wait()) return not_stopped(late.tracee);
  }
  if (!late.seized->ok()) return late.seized->error();
  if (**late.seized == Seized::gone) late.tracee.gone = true;
  return {};
}

Result<void> Hold::wait_all_stopped() {
  for (;;) {
    Result<std::size_t> added = std::size_t{0};
    tracer_.call([&] { added = seize_pass(When::thawed); });
    if (!added.ok()) return added.error();
    ICEBOX_TRY(wait_stops());
    if (*added == 0) return {};
  }
}

Result<void> Hold::wait_stops() {
  Backoff backoff(kStopTimeout);
  for (int round = 1;; ++round) {
    const bool ask_why = round % kRoundsBetweenReasons == 0;
    const Tracee* missing = nullptr;
    for (auto& tracee : tracees_) {
      if (!at_rest(tracee, ask_why)) missing = &tracee;
    }
    for (auto& late : late_) {
      if (!late.tracer.idle() || !at_rest(late.tracee, ask_why)) missing = &late.tracee;
    }
    if (missing == nullptr) return {};
    if (!backoff.wait()) return not_stopped(*missing);
  }
}

// Whether the thread runs no user code any more. waitpid(2) answers for the tracees of all threads of this process.
bool Hold::at_rest(Tracee& tracee, bool ask_why) {
  if (tracee.stopped || tracee.gone) return true;
  poll_tracee(tracee);
  if (tracee.stopped || tracee.gone) return true;
  if (!ask_why) return false;
  const auto task = read_task_state(tracee.process, tracee.tid);
  return task.ok() && task->in_vfork();
}

Error Hold::not_stopped(const Tracee& tracee) const {
  const auto task = read_task_state(tracee.process, tracee.tid);
  const std::string name = task.ok() ? task->describe() : "thread " + std::to_string(tracee.tid);
  return make_error(Code::deadline_exceeded,
                    name + " did not stop within " + std::to_string(kStopTimeout.count()) + " ms");
}

void Hold::release() {
  tracer_.call([&] {
    for (auto& tracee : tracees_) detach(tracee);
  });
  // What has not stopped, and the late ones, are released by the end of their tracer.
  tracer_.finish();
  late_.clear();
}

Result<void> require_frozen(const Cgroup& cgroup) {
  if (ICEBOX_TRY(cgroup.state()) == FreezerState::frozen) return {};
  return make_error(Code::failed_precondition, "cgroup " + cgroup.freezer_path() + " is not frozen: pause first");
}

Result<void> run_thawed(const Cgroup& cgroup, std::optional<Hold>& hold, const std::function<Result<void>()>& work) {
  ICEBOX_TRY(cgroup.thaw());
  if (hold) ICEBOX_TRY(hold->wait_all_stopped());
  return work();
}

Result<void> freeze_again(const Cgroup& cgroup) {
  // Not freeze(): that thaws in between and on failure, and here every task that does freeze must stay so.
  ICEBOX_TRY(cgroup.request_freeze());
  return cgroup.wait_frozen(kFreezeTimeout);
}

}  // namespace

Result<void> with_only_driver_threads(const Cgroup& cgroup, const std::set<pid_t>& driver_threads,
                                      const std::function<Result<void>()>& work) {
  ICEBOX_TRY(require_frozen(cgroup));
  std::optional<Hold> hold;
  if (!fault::skipped("threads.hold")) {
    hold.emplace(cgroup, driver_threads, ICEBOX_TRY(TracerThread::start()));
    ICEBOX_TRY(hold->seize_all());
  }
  Result<void> frozen;
  Result<void> done;
  {
    // Also on the way of an exception, which must not set the container free.
    const ScopeGuard always([&] { frozen = freeze_again(cgroup); });
    done = run_thawed(cgroup, hold, work);
  }
  if (hold) hold->release();
  // On v2 a thread counts as running for the moment that it takes from its ptrace stop to the freezer.
  if (frozen.ok()) frozen = cgroup.wait_frozen(kFreezeTimeout);
  if (frozen.ok()) return done;
  Error error = frozen.error().context("the container could not be frozen again");
  if (!done.ok()) error = Error{done.error().code, done.error().message + "; " + error.message, done.error().sys_errno};
  return error;
}

}  // namespace icebox::container
