// SPDX-License-Identifier: Apache-2.0
#include "runtime-hooks/container/thread_hold.h"

#include <atomic>
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
// How long a driver thread may stand still at a signal before it is sent on.
constexpr milliseconds kKeepRunningPause{5};
// How often the threads that stand still are looked at: one that is killed is not gone, and its
// process cannot end, before its tracer has seen it.
constexpr int kRoundsBetweenReaps = 10;

// One tracer thread and what it traces.
struct Group {
  explicit Group(TracerThread thread) : tracer(std::move(thread)) {}

  TracerThread tracer;
  std::vector<Tracee> tracees;
};

// All traced threads of one container, from seize to release. The destructor gives back whatever is
// left, as the end of the tracer threads does.
class Hold : public HeldThreads {
 public:
  Hold(const Cgroup& cgroup, const std::set<pid_t>& driver_threads)
      : cgroup_(cgroup), driver_threads_(driver_threads) {}
  Hold(const Hold&) = delete;
  Hold& operator=(const Hold&) = delete;
  ~Hold() override = default;

  // Seizes every thread that the thaw would let run. With the cgroup frozen.
  Result<void> seize_all();

  // Seizes those of processes that were moved into the cgroup since, then waits for every stop.
  // After the thaw.
  Result<void> wait_all_stopped();

  // Lets the driver threads run, and stops them again.
  Result<void> start_drivers();
  Result<void> stop_drivers();

  // Lets go of everything. With the cgroup frozen.
  void release();

  void let_all_run() override { all_run_ = true; }

 private:
  enum class When { frozen, thawed };

  Group& main_group() { return groups_.front(); }
  Result<std::size_t> seize_pass(When when);
  Result<void> seize_one(const Tracee& tracee, When when);
  Result<void> start_late(const Tracee& tracee);
  Result<void> wait_stops();
  bool at_rest(Tracee& tracee, bool ask_why);
  [[nodiscard]] Error not_stopped(const Tracee& tracee) const;
  Result<void> for_each_driver(const std::function<Result<void>(Tracee&)>& action);

  const Cgroup& cgroup_;
  const std::set<pid_t>& driver_threads_;
  std::set<pid_t> processes_;          // all that were looked at
  std::set<pid_t> threads_;            // all that were looked at
  std::vector<Tracee> maybe_stopped_;  // v1: their PTRACE_SEIZE may block until the thaw
  std::deque<Group>
      groups_;  // the first holds nearly all; each of maybe_stopped_ has one of its own
  std::atomic<bool> drivers_run_{false};
  std::atomic<bool> all_run_{false};  // the tracers let go of all but the driver threads
};

Result<void> Hold::seize_all() {
  groups_.emplace_back(ICEBOX_TRY(TracerThread::start()));
  Result<void> result;
  main_group().tracer.call([&] {
    // Nothing can fork while frozen, but another process may have been moved in while the first
    // list was read.
    for (;;) {
      const auto added = seize_pass(When::frozen);
      if (!added.ok()) result = added.error();
      if (!added.ok() || *added == 0) return;
    }
  });
  ICEBOX_TRY(std::move(result));
  for (const auto& tracee : maybe_stopped_) ICEBOX_TRY(start_late(tracee));
  return {};
}

// On the main tracer thread. The number of threads that were not known before.
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
      if (!threads_.insert(tid).second) continue;
      ++added;
      Tracee tracee;
      tracee.process = process;
      tracee.tid = tid;
      tracee.driver = driver_threads_.contains(tid);
      ICEBOX_TRY(seize_one(tracee, when));
    }
  }
  return added;
}

// On the main tracer thread.
Result<void> Hold::seize_one(const Tracee& tracee, When when) {
  if (when == When::frozen && !cgroup_.unified()) {
    const auto task = read_task_state(tracee.process, tracee.tid);
    if (task.ok() && task->maybe_group_stopped()) {
      maybe_stopped_.push_back(tracee);
      return {};
    }
  }
  if (ICEBOX_TRY(seize(tracee.process, tracee.tid)) == Seized::yes)
    main_group().tracees.push_back(tracee);
  return {};
}

// PTRACE_SEIZE of a group-stopped thread waits until the thread has moved from the group stop to a
// ptrace stop, which it cannot do while frozen by v1. So each such thread gets a tracer that may
// wait; it does until the thaw. Such a thread runs nothing in between: it is stopped, and traced
// before a SIGCONT could let it run.
Result<void> Hold::start_late(const Tracee& tracee) {
  Group& group = groups_.emplace_back(ICEBOX_TRY(TracerThread::start()));
  group.tracees.push_back(tracee);
  auto result =
      std::make_shared<Result<Seized>>(Seized::gone);  // the thread may outlive this object
  group.tracer.post(
      [result, process = tracee.process, tid = tracee.tid] { *result = seize(process, tid); });
  Backoff backoff(kStopTimeout);
  while (!group.tracer.idle()) {
    // The kernel notes the tracer before it waits for the stop.
    const auto task = read_task_state(tracee.process, tracee.tid);
    if (task.ok() && task->tracer == group.tracer.tid()) return {};
    if (!backoff.wait()) return not_stopped(tracee);
  }
  if (ICEBOX_TRY(*result) == Seized::gone) group.tracees.clear();
  return {};
}

Result<void> Hold::wait_all_stopped() {
  for (;;) {
    Result<std::size_t> added = std::size_t{0};
    main_group().tracer.call([&] { added = seize_pass(When::thawed); });
    if (!added.ok()) return added.error();
    ICEBOX_TRY(wait_stops());
    if (*added == 0) return {};
  }
}

Result<void> Hold::wait_stops() {
  Backoff backoff(kStopTimeout);
  for (int round = 1;; ++round) {
    const Tracee* missing = nullptr;
    for (auto& group : groups_) {
      for (auto& tracee : group.tracees) {
        if (!group.tracer.idle() || !at_rest(tracee, round % kRoundsBetweenReasons == 0))
          missing = &tracee;
      }
    }
    if (missing == nullptr) return {};
    if (!backoff.wait()) return not_stopped(*missing);
  }
}

// Whether the thread has stopped, or cannot run user code for another reason.
bool Hold::at_rest(Tracee& tracee, bool ask_why) {
  if (!tracee.stopped) poll_tracee(tracee);
  if (tracee.stopped || tracee.gone) return true;
  if (!ask_why || tracee.driver) return false;
  const auto task = read_task_state(tracee.process, tracee.tid);
  return task.ok() && task->in_vfork();
}

Error Hold::not_stopped(const Tracee& tracee) const {
  const auto task = read_task_state(tracee.process, tracee.tid);
  const std::string name = task.ok() ? task->describe() : "thread " + std::to_string(tracee.tid);
  return make_error(Code::deadline_exceeded,
                    name + " did not stop within " + std::to_string(kStopTimeout.count()) + " ms");
}

// Runs `action` for every live driver thread, on its tracer's thread. All are tried; the first
// failure is returned.
Result<void> Hold::for_each_driver(const std::function<Result<void>(Tracee&)>& action) {
  Result<void> first;
  for (auto& group : groups_) {
    group.tracer.call([&] {
      for (auto& tracee : group.tracees) {
        if (!tracee.driver || tracee.gone) continue;
        auto done = action(tracee);
        if (!done.ok() && first.ok()) first = std::move(done);
      }
    });
  }
  return first;
}

Result<void> Hold::start_drivers() {
  drivers_run_ = true;
  ICEBOX_TRY(for_each_driver(run_driver));
  for (auto& group : groups_) {
    group.tracer.post([this, &group] {
      for (int round = 0; drivers_run_; ++round) {
        for (auto& tracee : group.tracees) {
          if (tracee.driver) {
            keep_running(tracee);
          } else if (all_run_) {
            detach(tracee);
          } else if (round % kRoundsBetweenReaps == 0) {
            poll_tracee(tracee);
          }
        }
        sleep_for(kKeepRunningPause);
      }
    });
  }
  return {};
}

Result<void> Hold::stop_drivers() {
  if (!drivers_run_.exchange(false)) return {};
  for (auto& group : groups_) group.tracer.wait_idle();
  ICEBOX_TRY(for_each_driver([](Tracee& tracee) -> Result<void> {
    interrupt(tracee);
    return {};
  }));
  ICEBOX_TRY(wait_stops());
  return for_each_driver(restore_mask);
}

void Hold::release() {
  for (auto& group : groups_) {
    if (!group.tracer.idle()) continue;  // still in PTRACE_SEIZE, as there was no thaw
    group.tracer.call([&] {
      for (auto& tracee : group.tracees) detach(tracee);
    });
  }
  groups_.clear();  // releases what has not stopped
}

Result<void> require_frozen(const Cgroup& cgroup) {
  const auto state = ICEBOX_TRY(cgroup.state());
  if (state == FreezerState::thawed) {
    return make_error(Code::failed_precondition,
                      "cgroup " + cgroup.freezer_path() + " is not frozen: pause first");
  }
  // A frozen v2 cgroup counts as freezing while a process in it dies, a v1 one while a process is
  // moved in.
  return cgroup.wait_frozen(kFreezeTimeout);
}

// `first`, with what else went wrong behind it.
Result<void> combine(Result<void> first, const Result<void>& second) {
  if (first.ok()) return second;
  if (second.ok()) return first;
  Error error = std::move(first).error();
  error.message += "; " + second.error().message;
  return error;
}

Result<void> run_held(const Cgroup& cgroup, Hold& hold,
                      const std::function<Result<void>(HeldThreads&)>& work) {
  ICEBOX_TRY(hold.seize_all());
  ICEBOX_TRY(cgroup.thaw());
  ICEBOX_TRY(fault::reach("threads.thawed"));
  ICEBOX_TRY(hold.wait_all_stopped());
  Result<void> stopped;
  Result<void> done = hold.start_drivers();
  {
    const ScopeGuard always([&] { stopped = hold.stop_drivers(); });
    if (done.ok()) done = work(hold);
  }
  return combine(std::move(done), std::move(stopped).context("driver threads"));
}

Result<void> run_unheld(const Cgroup& cgroup, Hold& hold,
                        const std::function<Result<void>(HeldThreads&)>& work) {
  ICEBOX_TRY(cgroup.thaw());
  return work(hold);
}

Result<void> freeze_again(const Cgroup& cgroup) {
  // Not freeze(): that thaws in between and on failure, and here every task that does freeze must
  // stay so.
  ICEBOX_TRY(cgroup.request_freeze());
  return cgroup.wait_frozen(kFreezeTimeout);
}

}  // namespace

Result<void> with_only_driver_threads(const Cgroup& cgroup, const std::set<pid_t>& driver_threads,
                                      const std::function<Result<void>(HeldThreads&)>& work) {
  ICEBOX_TRY(require_frozen(cgroup));
  Hold hold(cgroup, driver_threads);
  Result<void> frozen;
  Result<void> done;
  {
    // Also on the way of an exception, which must not set the container free.
    const ScopeGuard always([&] { frozen = freeze_again(cgroup); });
    done = fault::skipped("threads.hold") ? run_unheld(cgroup, hold, work)
                                          : run_held(cgroup, hold, work);
  }
  hold.release();
  // On v2 a thread counts as running for the moment that it takes from its ptrace stop to the
  // freezer.
  if (frozen.ok()) frozen = cgroup.wait_frozen(kFreezeTimeout);
  return combine(std::move(done),
                 std::move(frozen).context("the container could not be frozen again"));
}

Result<void> with_only_driver_threads(const Cgroup& cgroup, const std::set<pid_t>& driver_threads,
                                      const std::function<Result<void>()>& work) {
  return with_only_driver_threads(cgroup, driver_threads,
                                  [&](HeldThreads& /*held*/) { return work(); });
}

}  // namespace icebox::container
