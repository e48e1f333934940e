// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <functional>
#include <set>

#include "oci/base/result.h"
#include "runtime-hooks/container/cgroup.h"

namespace icebox::container {

// What the work under a hold can do about it. Only valid while the work runs, on its thread.
class HeldThreads {
 public:
  HeldThreads() = default;
  HeldThreads(const HeldThreads&) = delete;
  HeldThreads& operator=(const HeldThreads&) = delete;
  virtual ~HeldThreads() = default;

  // Lets every other thread go on, for the rest of the work: the way out of a driver call that
  // waits for something that a stopped thread holds. From then on the container's own code runs.
  // Takes effect within some milliseconds; does not wait for it.
  virtual void let_all_run() = 0;
};

// Runs `work` while, of all threads in the frozen container, only `driver_threads` (thread ids,
// host numbering) can run.
//
// The CUDA driver needs its restore thread to run during Checkpoint and Restore, but from Pause to
// Resume no user instruction may execute. So: the cgroup must be FROZEN; every thread of every
// process in it and in the cgroups below is seized and interrupted (PTRACE_SEIZE,
// PTRACE_INTERRUPT); the cgroup is thawed; all are waited for (cgroup v1 stops them only after the
// thaw); the driver threads are resumed; `work` runs; the driver threads are stopped; the cgroup is
// frozen again; the threads are detached. Measured on v1 and v2: not one user instruction runs in
// between.
//
// Driver threads are traced too, and have all signals blocked meanwhile: as the only threads that
// can take a signal they would be given every one that is sent to their process, and run its
// handlers. Signals stay pending and arrive after the container is thawed; a SIGSTOP, which cannot
// be blocked, is held back until then. A process that was stopped (SIGSTOP) stays stopped, its
// driver threads run all the same. Threads that the driver makes meanwhile are not touched. Child
// cgroups that are frozen on their own stay so.
//
// `work` runs on the calling thread. ptrace(2) is bound to threads of this function's own, which
// live until it returns: if this program dies, the kernel releases the tracees and the container
// runs; whoever finds that freezes it again (a driver thread then keeps its signals blocked).
//
// Blocks as long as `work` does; measured: about 1 ms more for 5 threads, 5 ms for 100. The cgroup
// is FROZEN again when it returns, also on failure; if even that fails, the error says so. Fails
// without running `work`: failed_precondition when not frozen, when the thaw is prevented by a
// frozen cgroup above, or when a thread is traced by somebody else (both named); deadline_exceeded
// when a thread does not stop within 10 s (named, with state and wchan; threads waiting in vfork
// for a stopped child count as stopped). Threads and processes that end meanwhile are no failure.
// If `work` fails, its error is returned after everything is undone.
//
// Fault points: "threads.hold" (`skip` leaves the ptrace part out, so that a test can prove that it
// is needed) and "threads.thawed" (just after the thaw).
Result<void> with_only_driver_threads(const Cgroup& cgroup, const std::set<pid_t>& driver_threads,
                                      const std::function<Result<void>(HeldThreads&)>& work);

// The same for work that has no use for HeldThreads.
Result<void> with_only_driver_threads(const Cgroup& cgroup, const std::set<pid_t>& driver_threads,
                                      const std::function<Result<void>()>& work);

}  // namespace icebox::container
