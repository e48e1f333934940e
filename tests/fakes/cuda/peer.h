// SPDX-License-Identifier: Apache-2.0
//
// Other processes that run the simulated driver, seen through /proc: for the checkpoint API's
// caller, for the accounting of device memory, and for the simulated NVML.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "oci/base/unique_fd.h"
#include "tests/fakes/cuda/mailbox.h"

namespace icebox::sim {

/// The mailbox of a process, through /proc/PID/mem. The descriptor stays with the memory that was
/// opened: after an exec or the end of the process every access fails, whatever its pid becomes.
class Peer {
 public:
  enum class Found {
    yes,
    no_driver,      // not a process, or none that runs the simulated driver
    not_the_owner,  // a child forked from a CUDA process: the mailbox is its parent's
    not_permitted,  // no right to the process's memory
    other_version,  // another build of the simulated driver
  };

  /// Finds the mailbox of `pid` (a pid of the caller's /proc). Never blocks on the process.
  static Found open(pid_t pid, Peer& peer);

  /// Copies `size` bytes at `offset` of the mailbox. False: the process has ended.
  bool read(std::size_t offset, void* to, std::size_t size) const;
  bool write(std::size_t offset, const void* from, std::size_t size) const;

  pid_t pid() const { return pid_; }

 private:
  pid_t pid_ = 0;
  UniqueFd memory_;
  std::uint64_t address_ = 0;
};

/// Device memory of one process, and whether it is on the GPU or in the host memory of a
/// CHECKPOINTED process.
struct PeerUsage {
  pid_t pid;
  bool on_gpu;
  std::uint32_t context_count;
  std::uint32_t usage_count;
  Usage usage[kMaxGpus];
};

/// Every process of /proc that runs the simulated driver and may be read.
std::vector<PeerUsage> all_usage();

/// Bytes of the GPU that all processes but `except` hold.
std::uint64_t used_bytes(const std::vector<PeerUsage>& all, const cu::Uuid& uuid, pid_t except);

/// The thread of process `pid` whose id in its own pid namespace is `inner_tid`; 0 if none.
pid_t outer_thread_id(pid_t pid, pid_t inner_tid);

/// The process that thread `tid` belongs to (itself for a process's first thread); 0 if there is no
/// such thread.
pid_t process_of(pid_t tid);

}  // namespace icebox::sim
