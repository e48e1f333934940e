// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "oci/base/result.h"
#include "runtime-hooks/checkpoint/session.h"
#include "runtime-hooks/container/cgroup.h"

namespace icebox::engine {

// Whether the process named runs or could run: false for one that is gone, is a zombie, or was
// never named.
bool is_alive(const ProcessName& name);

// Takes a container back to where it was before the operation in the session's journal: running, or
// paused with its GPU held. It looks at what is really there (freezer, tracers, driver states)
// instead of trusting how far the journal says things got, so it serves a failed step, a dead
// engine and a killed CRIU alike, and may be repeated. A restore is undone by ending what it made.
// Whatever could be undone is undone even if a part fails; the Error then says which part and what
// the container is left as.
Result<void> roll_back(Session& session);

// With the container frozen: whatever target is CHECKPOINTED goes back on its GPU, wherever an
// earlier attempt ended, and the memory limits are put back. Waits for a driver that is still busy
// (Session::driver_stuck() when that takes too long).
Result<void> restore_suspended(Session& session, const container::Cgroup& cgroup);

// Takes targets that have ended out of the journal.
void forget_dead_targets(Session& session);

// However CRIU ended: waits for a CRIU that still traces the container's processes (a killed
// runtime leaves it working), ends it if it does not end by itself within a minute, and freezes the
// cgroup. Call it before looking at anything.
Result<void> settle(const container::Cgroup& cgroup);

// Ends every process of the container, wherever it stands: SIGKILL by pidfd, then thaw, then waits
// for their end.
Result<void> kill_container(const container::Cgroup& cgroup);

// Undoes a restore, finished or not: ends the tree, unmounts what the runtime left, removes the
// runtime's state, puts the bundle's config.json back. Files of the root file system are never
// touched.
Result<void> tear_down_restore(Session& session);

}  // namespace icebox::engine
