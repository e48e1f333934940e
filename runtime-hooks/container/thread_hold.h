// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <functional>
#include <set>

#include "oci/base/result.h"
#include "runtime-hooks/container/cgroup.h"

namespace icebox::container {

// Runs `work` while, of all threads in the frozen container, only `driver_threads` (thread ids, host numbering) can run.
//
// The CUDA driver needs its restore thread to run during Checkpoint and Restore, but from Pause to Resume no user
// instruction may execute. So: the cgroup must be FROZEN; every other thread of every process in it and in the cgroups
// below is seized and interrupted (PTRACE_SEIZE, PTRACE_INTERRUPT); the cgroup is thawed; all are waited for (cgroup v1
// stops them only after the thaw); `work` runs; the cgroup is frozen again; the threads are detached, with any signal
// that arrived meanwhile handed on. Measured on v1 and v2: not one user instruction runs in between.
//
// ptrace is bound to the calling thread: it must not be a pool thread, and it must live until this returns; if it dies,
// the kernel releases the tracees. Blocks as long as `work` does. The cgroup is FROZEN again when it returns, also on
// failure; if even that fails, the error says so.
// Fails without running `work`: failed_precondition when not frozen or when a process is traced by somebody else (named);
// deadline_exceeded when a thread does not stop within 10 s (named, with state and wchan; threads waiting in vfork for a
// stopped child count as stopped).
// If `work` fails, its error is returned after everything is undone.
//
// Fault point "threads.hold": `skip` leaves the ptrace part out (so that a test can prove that it is needed).
Result<void> with_only_driver_threads(const Cgroup& cgroup, const std::set<pid_t>& driver_threads,
                                      const std::function<Result<void>()>& work);

}  // namespace icebox::container
