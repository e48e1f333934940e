// SPDX-License-Identifier: Apache-2.0
//
// The steps that take a container's CUDA processes off the GPU and put them back. All of them keep
// the journal current, so that whoever comes after a crash knows which processes may be locked or
// suspended.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "oci/base/result.h"
#include "runtime-hooks/checkpoint/session.h"
#include "runtime-hooks/container/cgroup.h"
#include "runtime-hooks/container/process.h"
#include "runtime-hooks/container/thread_hold.h"
#include "runtime-hooks/cuda/discovery.h"
#include "runtime-hooks/cuda/target.h"

namespace icebox::engine {

// A process of the container that has to do with GPUs, and what is to be done with it.
struct Surveyed {
  cuda::GpuUse use;
  cuda::Classification what;
};

// Looks at every process of the cgroup; asks the driver only about those that use a GPU library or
// device. Works on running and frozen containers. Fails when the driver gives no answer about one
// (it must not be taken for "no CUDA").
Result<std::vector<Surveyed>> survey_gpu_use(Session& session, const container::Cgroup& cgroup);

// The CUDA processes among them.
std::vector<cuda::Target> targets_in(const std::vector<Surveyed>& surveyed);

// Locks every CUDA process of the running container under one deadline (configuration
// lock_timeout), looks again for newcomers, freezes the cgroup, and looks once more with everything
// frozen: on success all CUDA processes are LOCKED, listed in the journal, and the cgroup is
// FROZEN. On failure nothing is undone here: roll_back() does.
Result<void> lock_and_freeze(Session& session, const container::Cgroup& cgroup);

// With the container frozen and its targets LOCKED: driver Checkpoint of all in parallel, while
// only the driver's threads may run. Makes room in the memory cgroup first (the device memory lands
// in the processes) and notes the old limits in the journal. Afterwards no process holds an nvidia
// device, or it fails and says which does.
//
// A call that the driver does not come back from within Session::driver_patience() gets the
// container's other threads back for as long again (Session::others_ran(): it may need what one of
// them holds). After that it is given up (deadline_exceeded, Session::driver_stuck()): the journal
// stays with the phase "stuck", a container that was running runs on, a paused one stays paused;
// the next command for the container tries to bring CUDA back. In a restore nothing may run before
// all is back: no thread is let go, and roll_back() ends it.
Result<void> suspend_gpu(Session& session, const container::Cgroup& cgroup,
                         std::uint64_t gpu_bytes);

// The reverse, with the same patience: driver Restore of all targets (LOCKED afterwards), then the
// memory limits are put back. Checks first that the GPUs have the room, because a driver Restore
// that runs out of memory leaves its process stuck for good.
Result<void> resume_gpu(Session& session, const container::Cgroup& cgroup,
                        const std::vector<cuda::GpuPair>& gpu_map);

// Unlocks the targets of a thawed container and checks that every one is RUNNING. Targets that have
// ended are fine.
Result<void> unlock_gpu(Session& session);

// Runs `work` with all threads of the frozen container stopped but the driver's restore threads of
// the targets.
Result<void> with_driver_threads(Session& session, const container::Cgroup& cgroup,
                                 const std::function<Result<void>(container::HeldThreads&)>& work);

// Device memory of all targets, as far as the driver told it.
std::uint64_t gpu_bytes_of(const Journal& journal);

// A sentence for errors: which processes the driver does not come back from, and the ways out.
std::string way_out_of_driver(const std::vector<cuda::Target>& targets);

// Time a cgroup may take to freeze.
inline constexpr std::chrono::seconds kFreezeTimeout{10};

}  // namespace icebox::engine
