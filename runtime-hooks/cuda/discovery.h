// SPDX-License-Identifier: Apache-2.0
//
// Which processes of a container use a GPU, told from /proc alone, and what is to be done with
// each: ignore it, suspend it through the driver, or refuse the checkpoint. Reads only; never
// blocks on the driver, and works on frozen processes.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "oci/base/result.h"
#include "runtime-hooks/cuda/target.h"

namespace icebox::cuda {

/// Character device majors that belong to NVIDIA's driver: 195, and whatever /proc/devices lists
/// under a name that starts with "nvidia" (nvidia-uvm, nvidia-caps, ... are dynamic).
struct NvidiaMajors {
  std::vector<unsigned> majors;
  [[nodiscard]] bool contains(unsigned major) const;
};

/// Reads <proc_root>/devices. A missing or unreadable file is an Error.
Result<NvidiaMajors> read_nvidia_majors(const std::string& proc_root = "/proc");

/// An open descriptor on a character device.
struct DeviceFd {
  int fd = -1;
  std::string path;  // as /proc/PID/fd shows it
  unsigned major = 0;
  unsigned minor = 0;
};

/// What /proc tells about one process's use of GPUs.
struct GpuUse {
  Target process;
  pid_t parent = 0;
  std::string
      command_line;   // arguments joined by spaces, at most 256 bytes; [comm] if there is none
  bool gone = false;  // ended or is a zombie: nothing else is filled in

  std::vector<DeviceFd> nvidia_fds;          // the rule is at inspect_process()
  std::vector<std::string> nvidia_mappings;  // device nodes in maps, each once
  std::string libcuda;                       // mapped libcuda.so* (path), empty if none
  bool nvml = false;                         // libnvidia-ml.so* is mapped
  /// Device nodes the driver cannot save: RDMA verbs, GPUDirect (gdrdrv, nvidia-fs).
  std::vector<std::string> unsupported_devices;

  /// True if the driver must be asked about this process (or it must be refused). False for every
  /// process of a container that has nothing to do with GPUs: then no agent is needed at all.
  [[nodiscard]] bool uses_gpu() const {
    return !gone && (!nvidia_fds.empty() || !nvidia_mappings.empty() || !libcuda.empty());
  }
  /// True if something of the device is still held. Must be false once the process is checkpointed.
  [[nodiscard]] bool holds_device() const {
    return !nvidia_fds.empty() || !nvidia_mappings.empty();
  }
};

/// Looks at one process. An nvidia descriptor is a character device whose node's base name starts
/// with "nvidia", or whose major is in `majors`; regular files of such a name are not. A process
/// that ends while it is being read, and a zombie, give `gone`, not an Error. An Error means that
/// it could not be looked at (permission, unreadable text): it must not be taken for a process
/// without a GPU.
Result<GpuUse> inspect_process(pid_t pid, const NvidiaMajors& majors,
                               const std::string& proc_root = "/proc");

/// What the agent said to Operation::restore_thread.
enum class RestoreThread {
  found,    // a CUDA process
  absent,   // the driver said: not a CUDA process
  unknown,  // no answer, or not asked
};
RestoreThread restore_thread_answer(const Outcome& outcome);

enum class Treatment { ignore, suspend, refuse };

struct Classification {
  Treatment treatment = Treatment::ignore;
  std::string reason;  // for refuse: names pid and command line, and the way out
};

/// Decides what to do with a process. Pure.
Classification classify(const GpuUse& use, RestoreThread answer);

}  // namespace icebox::cuda
