// SPDX-License-Identifier: Apache-2.0
//
// The simulated driver of the process that loaded this library: contexts, device memory, the gate
// and the restore thread. One per process, like the real one.
//
// Threads: the application's threads change the tables under `lock` and inside `gate`. The restore
// thread changes them only while the gate is closed and idle, and takes no lock and allocates
// nothing: the other threads may be stopped anywhere then.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

#include "tests/fakes/cuda/driver.h"
#include "tests/fakes/cuda/gate.h"
#include "tests/fakes/cuda/host.h"
#include "tests/fakes/cuda/mailbox.h"

namespace icebox::cu {
/// CUcontext points to one of these.
struct ContextObject {
  int gpu = 0;         // index in Host::gpus
  Device device = 0;   // ordinal in the process, after CUDA_VISIBLE_DEVICES
  int references = 0;  // 0: not in use
  bool primary = false;
};
/// CUstream points to one of these. Work is done when it is submitted, so it holds nothing.
struct StreamObject {
  ContextObject* context;
};
}  // namespace icebox::cu

namespace icebox::sim {

/// A piece of device memory. `size` is rounded up to pages.
struct Allocation {
  std::uint64_t address;
  std::uint64_t size;
  cu::ContextObject* context;
  bool context_image;  // belongs to the context itself and cannot be freed by the application
};

inline constexpr int kMaxContexts = 64;

struct DriverState {
  // Set by cuInit.
  std::atomic<bool> initialized{false};
  std::atomic<pid_t> pid{0};
  Host host;
  int visible[kMaxGpus] = {};  // device ordinal -> index in host.gpus
  int visible_count = 0;

  Gate gate;
  std::mutex lock;
  std::vector<Allocation> allocations;  // by address
  cu::ContextObject contexts[kMaxContexts];
  int device_fd = -1;
  bool device_is_open = false;  // false: device_fd, if any, is the eventfd that keeps its number

  // Restore thread only.
  char* saved = nullptr;  // the region that holds device memory while CHECKPOINTED
  std::size_t saved_size = 0;
  bool restore_is_lost = false;  // after an out-of-memory Restore: 304 for ever

  cu::ProcessState state() const;
  void set_state(cu::ProcessState next);
};

/// The driver of this process.
DriverState& driver();

/// The page through which other processes reach it.
Mailbox& mailbox();

/// One CUDA call: waits at the gate while the process is LOCKED. Go on only if `result` is success.
class Call {
 public:
  Call();
  ~Call();
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;
  cu::Result result = cu::Result::not_initialized;

 private:
  bool inside_ = false;
};

/// The context that is current in the calling thread; nullptr if none or if it was destroyed.
cu::ContextObject* current_context();
void set_current_context(cu::ContextObject* context);

/// Counts a reference to `context`; the first one gives it its own device memory. Inside a Call,
/// with `lock` held.
cu::Result add_context(cu::ContextObject& context);

/// Drops one reference; the last one frees the context's device memory. Inside a Call, with `lock`
/// held.
void drop_context(cu::ContextObject& context);

/// Device memory of `context`. Inside a Call, with `lock` held. Fails with out_of_memory when the
/// GPU has no room, as far as the processes of this /proc show.
cu::Result allocate(cu::ContextObject& context, std::size_t bytes, bool context_image,
                    std::uint64_t& address);

/// Frees one allocation of the application. Inside a Call, with `lock` held.
cu::Result release(std::uint64_t address);

/// True if [address, address + bytes) lies inside one allocation. Inside a Call; takes `lock`.
bool is_device_range(std::uint64_t address, std::size_t bytes);

/// Maps zeroed device memory at `address`, which reserve_addresses or unmap_device gave. No locks,
/// no allocator. False: errno says why.
bool map_device(std::uint64_t address, std::size_t size);

/// Throws the content away and keeps the addresses reserved. No locks, no allocator.
bool unmap_device(std::uint64_t address, std::size_t size);

/// Opens the device node, from cuInit to the end of the process but for the time of a checkpoint.
/// No locks, no allocator.
bool open_device();

/// Closes it and puts an eventfd on its number, as the real driver does: the application must not
/// get that number meanwhile. No locks, no allocator.
void close_device();

/// Starts the restore thread, for cuInit; returns when it can be found through the mailbox.
bool start_restore_thread();

}  // namespace icebox::sim
