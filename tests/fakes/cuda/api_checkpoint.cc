// SPDX-License-Identifier: Apache-2.0
//
// Exported functions: the checkpoint API, on the side of the caller. It finds the target's mailbox,
// leaves a request there and waits for the target's restore thread: for ever, if that thread cannot
// run, as the real one does.
#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <ctime>

#include "oci/base/unique_fd.h"
#include "tests/fakes/cuda/driver_state.h"
#include "tests/fakes/cuda/export.h"
#include "tests/fakes/cuda/peer.h"

namespace icebox::sim {
namespace {

using cu::Result;

template <typename T>
bool all_zero(const T& bytes) {
  const auto* at = reinterpret_cast<const unsigned char*>(&bytes);
  for (std::size_t i = 0; i < sizeof bytes; ++i)
    if (at[i] != 0) return false;
  return true;
}

void sleep_microseconds(long microseconds) {
  const timespec time{0, microseconds * 1000};
  ::nanosleep(&time, nullptr);
}

/// Finds the driver of process `pid`. The codes are those of driver 580.159.04 (contract-580.txt).
/// Like it, takes a thread's id for its process.
Result open_target(int pid, Peer& peer) {
  const pid_t process = pid > 0 ? process_of(pid) : 0;
  if (process == 0) return Result::operating_system;
  switch (Peer::open(process, peer)) {
    case Peer::Found::yes: return Result::success;
    case Peer::Found::not_permitted: return Result::not_permitted;
    case Peer::Found::other_version: return Result::system_driver_mismatch;
    case Peer::Found::no_driver:
    case Peer::Found::not_the_owner: break;
  }
  return Result::not_initialized;
}

/// Takes the right to be the one caller of the target; held until the descriptor is closed, also by
/// the death of the caller. Waits while another caller is in an operation.
UniqueFd lock_directory(const char* path) {
  UniqueFd directory(::open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  while (directory && ::flock(directory.get(), LOCK_EX) != 0) {
    if (errno != EINTR) directory.reset();
  }
  return directory;
}

[[noreturn]] void hang_for_ever() {
  for (;;) ::pause();
}

/// Waits until the target has answered `sequence`. False: it died, or the request went with it.
bool wait_for_reply(const Peer& peer, std::uint64_t sequence) {
  for (long polls = 0;; ++polls) {
    std::uint64_t seen = 0;
    std::uint32_t hang_caller = 0;
    if (!peer.read(offsetof(Mailbox, reply_sequence), &seen, sizeof seen)) return false;
    if (seen == sequence) return true;
    if (!peer.read(offsetof(Mailbox, hang_caller), &hang_caller, sizeof hang_caller)) return false;
    if (hang_caller == kHangCaller) {
      peer.write(offsetof(Mailbox, hang_caller), &kCallerHangs, sizeof kCallerHangs);
      hang_for_ever();
    }
    sleep_microseconds(polls < 100 ? 50 : 500);
  }
}

/// Sends one request and waits for its answer. A target that dies meanwhile is operating_system, as
/// callers of real drivers have seen (NVIDIA/cuda-checkpoint#58).
Result ask(const Peer& peer, const Request& request, Reply& reply) {
  std::uint64_t sequence = 0;
  if (!peer.read(offsetof(Mailbox, request_sequence), &sequence, sizeof sequence))
    return Result::operating_system;
  // An earlier caller may have died while the target worked for it.
  if (!wait_for_reply(peer, sequence)) return Result::operating_system;
  ++sequence;
  if (!peer.write(offsetof(Mailbox, request), &request, sizeof request) ||
      !peer.write(offsetof(Mailbox, request_sequence), &sequence, sizeof sequence) ||
      !wait_for_reply(peer, sequence) ||
      !peer.read(offsetof(Mailbox, reply), &reply, sizeof reply)) {
    return Result::operating_system;
  }
  return static_cast<Result>(reply.result);
}

/// Restore needs GPUs that are up: kept so by persistence mode, or brought up by the caller's
/// cuInit.
bool gpus_are_up(const Host& host) {
  if (driver().initialized && driver().pid == ::getpid()) return true;
  for (int i = 0; i < host.gpu_count; ++i)
    if (!host.gpus[i].persistence) return false;
  return true;
}

/// Tells the target which GPUs this machine has and how much of them is free, and marks its memory
/// as taken in the same step: parallel restores are not granted the same memory.
Result grant_memory(const Peer& peer, Request& request) {
  const UniqueFd only_granter = lock_directory("/proc");
  if (!only_granter) return Result::operating_system;
  Host host;
  if (const std::string error = load_host(host); !error.empty()) {
    std::fprintf(stderr, "simulated CUDA driver: %s\n", error.c_str());
    return Result::unknown;
  }
  if (!gpus_are_up(host)) return Result::not_initialized;
  const auto usage = all_usage();
  request.host_gpu_count = static_cast<std::uint32_t>(host.gpu_count);
  for (int i = 0; i < host.gpu_count; ++i) {
    const std::uint64_t used = used_bytes(usage, host.gpus[i].uuid, peer.pid());
    HostGpu& gpu = request.host_gpus[i];
    gpu.uuid = host.gpus[i].uuid;
    gpu.free_bytes = used < host.gpus[i].memory_bytes ? host.gpus[i].memory_bytes - used : 0;
    std::memcpy(gpu.name, host.gpus[i].name, sizeof gpu.name);
  }
  const std::uint32_t granted = 1;
  return peer.write(offsetof(Mailbox, restore_granted), &granted, sizeof granted)
             ? Result::success
             : Result::operating_system;
}

/// One operation on process `pid`, from look-up to answer.
Result perform(int pid, Request& request, Reply& reply) {
  Peer peer;
  if (const Result result = open_target(pid, peer); result != Result::success) return result;
  char path[64];
  std::snprintf(path, sizeof path, "/proc/%d", peer.pid());
  const UniqueFd only_caller = lock_directory(path);
  if (!only_caller) return Result::operating_system;
  if (request.operation == Operation::restore) {
    const Result granted = grant_memory(peer, request);
    if (granted != Result::success) return granted;
  }
  return ask(peer, request, reply);
}

}  // namespace
}  // namespace icebox::sim

namespace icebox::cu {

using sim::Operation;

ICEBOX_SIM_EXPORT Result cuCheckpointProcessGetRestoreThreadId(int pid, int* tid) {
  if (tid == nullptr) return Result::invalid_value;
  sim::Peer peer;
  if (const Result result = sim::open_target(pid, peer); result != Result::success) return result;
  std::int32_t inner = 0;
  if (!peer.read(offsetof(sim::Mailbox, restore_thread), &inner, sizeof inner))
    return Result::not_initialized;
  *tid = sim::outer_thread_id(peer.pid(), inner);
  return *tid != 0 ? Result::success : Result::not_initialized;
}

ICEBOX_SIM_EXPORT Result cuCheckpointProcessGetState(int pid, ProcessState* state) {
  if (state == nullptr) return Result::invalid_value;
  sim::Request request{};
  sim::Reply reply{};
  request.operation = Operation::get_state;
  const Result result = sim::perform(pid, request, reply);
  if (result == Result::success) *state = static_cast<ProcessState>(reply.state);
  return result;
}

ICEBOX_SIM_EXPORT Result cuCheckpointProcessLock(int pid, LockArgs* args) {
  sim::Request request{};
  sim::Reply reply{};
  request.operation = Operation::lock;
  if (args != nullptr) {
    if (args->reserved0 != 0 || !sim::all_zero(args->reserved1)) return Result::invalid_value;
    request.timeout_ms = args->timeout_ms;
  }
  return sim::perform(pid, request, reply);
}

ICEBOX_SIM_EXPORT Result cuCheckpointProcessCheckpoint(int pid, CheckpointArgs* args) {
  if (args != nullptr && !sim::all_zero(*args)) return Result::invalid_value;
  sim::Request request{};
  sim::Reply reply{};
  request.operation = Operation::checkpoint;
  return sim::perform(pid, request, reply);
}

ICEBOX_SIM_EXPORT Result cuCheckpointProcessRestore(int pid, RestoreArgs* args) {
  sim::Request request{};
  request.operation = Operation::restore;
  if (args != nullptr) {
    if (!sim::all_zero(args->reserved) || args->reserved1 != 0) return Result::invalid_value;
    if (args->gpu_pairs_count > sim::kMaxGpus ||
        (args->gpu_pairs_count > 0) != (args->gpu_pairs != nullptr)) {
      return Result::invalid_value;
    }
    request.pair_count = args->gpu_pairs_count;
    if (request.pair_count > 0)
      std::memcpy(request.pairs, args->gpu_pairs, request.pair_count * sizeof *args->gpu_pairs);
  }
  sim::Reply reply{};
  return sim::perform(pid, request, reply);
}

ICEBOX_SIM_EXPORT Result cuCheckpointProcessUnlock(int pid, UnlockArgs* args) {
  if (args != nullptr && !sim::all_zero(*args)) return Result::invalid_value;
  sim::Request request{};
  sim::Reply reply{};
  request.operation = Operation::unlock;
  return sim::perform(pid, request, reply);
}

}  // namespace icebox::cu
