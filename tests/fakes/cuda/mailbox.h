// SPDX-License-Identifier: Apache-2.0
//
// The page in a CUDA process through which other processes reach its simulated driver: in the data
// segment of libcuda.so.1, page-aligned, found by its magic through /proc/PID/maps, read and
// written through /proc/PID/mem. So it works by host pid across pid, mount and network namespaces,
// needs no descriptor in the target, goes through a CRIU dump like any other memory, and nobody
// answers while the process is frozen: which is how the real driver behaves.
//
// Only one caller at a time may write to it: it holds flock() on the directory /proc/PID.
#pragma once

#include <atomic>
#include <cstdint>

#include "tests/fakes/cuda/driver.h"
#include "tests/fakes/cuda/host.h"

namespace icebox::sim {

inline constexpr char kMagic[16] = {'i', 'c', 'e', 'b', 'o', 'x', '-', 's',
                                    'i', 'm', '-', 'c', 'u', 'd', 'a', '\0'};
inline constexpr std::uint32_t kMailboxVersion = 1;
inline constexpr std::uint64_t kMailboxAlignment = 4096;

inline constexpr std::uint32_t kHangCaller = 1;
inline constexpr std::uint32_t kCallerHangs = 2;

enum class Operation : std::uint32_t { none, get_state, lock, checkpoint, restore, unlock };

/// A GPU of the caller's machine, for Restore: what the target cannot see from inside a container.
struct HostGpu {
  cu::Uuid uuid;
  std::uint64_t free_bytes;
  char name[64];
};

/// Written by the caller, sequence last.
struct Request {
  Operation operation;
  std::uint32_t timeout_ms;
  std::uint32_t pair_count;
  std::uint32_t host_gpu_count;
  cu::GpuPair pairs[kMaxGpus];
  HostGpu host_gpus[kMaxGpus];
};

/// Written by the target's restore thread, sequence last.
struct Reply {
  std::int32_t result;  // cu::Result
  std::int32_t state;   // GetState's answer
};

/// Device memory that the process has on one GPU, kept up to date by the target. While it is
/// CHECKPOINTED this is what Restore will need.
struct Usage {
  cu::Uuid uuid;
  std::uint64_t bytes;
};

struct alignas(kMailboxAlignment) Mailbox {
  char magic[16];
  std::uint32_t version;
  // Pid and restore thread as the process itself sees them (its own pid namespace). A forked child
  // has its parent's values here, which is how one sees that it has no restore thread.
  std::atomic<std::int32_t> owner_pid;
  std::atomic<std::int32_t> restore_thread;
  std::atomic<std::int32_t> state;  // cu::ProcessState
  std::atomic<std::uint32_t> context_count;
  // kHangCaller: the target is about to die inside an operation whose caller must never get an
  // answer; it waits for the caller's kCallerHangs first.
  std::atomic<std::uint32_t> hang_caller;
  // Set by a caller that was granted device memory for a Restore, cleared by the target when that
  // Restore ends: two parallel restores must not be granted the same memory.
  std::atomic<std::uint32_t> restore_granted;
  std::uint32_t usage_count;
  Usage usage[kMaxGpus];
  Request request;
  std::atomic<std::uint64_t> request_sequence;
  Reply reply;
  std::atomic<std::uint64_t> reply_sequence;
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

}  // namespace icebox::sim
