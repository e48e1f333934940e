// SPDX-License-Identifier: Apache-2.0
//
// The deciding half of discovery.h.
#include "oci/base/strings.h"
#include "runtime-hooks/cuda/discovery.h"
#include "runtime-hooks/cuda/driver_api.h"

namespace icebox::cuda {
namespace {

std::string name_process(const GpuUse& use) {
  return "process " + std::to_string(use.process.pid) + " (" + use.command_line + ")";
}

// What of the device it holds, for messages: "/dev/nvidia0, /dev/nvidiactl".
std::string devices_of(const GpuUse& use) {
  std::vector<std::string> paths;
  const auto add = [&paths](const std::string& path) {
    for (const std::string& known : paths) {
      if (known == path) return;
    }
    paths.push_back(path);
  };
  for (const DeviceFd& fd : use.nvidia_fds) add(fd.path);
  for (const std::string& path : use.nvidia_mappings) add(path);
  return join(paths, ", ");
}

// Why a process holds a device without being a CUDA process, and what to do about it.
std::string explain_holder(const GpuUse& use) {
  if (!use.libcuda.empty()) {
    std::string text =
        "probably forked from CUDA process " + std::to_string(use.parent) +
        " without an exec, which no driver can checkpoint; start such workers with spawn or "
        "forkserver (PyTorch: multiprocessing_context=\"spawn\")";
    if (use.nvml) text += ", or call nvmlShutdown if it uses NVML only";
    return text;
  }
  if (use.nvml) {
    return "it uses NVML only, which the driver saves just with CUDA; call nvmlShutdown or end it "
           "before the checkpoint";
  }
  return "it does not use the CUDA driver's library; let it close the device before the checkpoint";
}

Classification refuse(std::string reason) { return {Treatment::refuse, std::move(reason)}; }

}  // namespace

RestoreThread restore_thread_answer(const Outcome& outcome) {
  if (outcome.ok()) return RestoreThread::found;
  // The agent has called cuInit, so NOT_INITIALIZED is about the target. Every other error may be a
  // trouble of the host side and says nothing about the process.
  const bool said_no =
      outcome.ending == Ending::driver_error &&
      (outcome.code == driver::kErrorInvalidValue || outcome.code == driver::kErrorNotInitialized);
  return said_no ? RestoreThread::absent : RestoreThread::unknown;
}

Classification classify(const GpuUse& use, RestoreThread answer) {
  if (!use.uses_gpu()) return {};
  switch (answer) {
    case RestoreThread::unknown:
      return refuse(
          name_process(use) +
          ": the driver did not say whether it is a CUDA process; try again, and check the "
          "driver with nvidia-smi");
    case RestoreThread::absent:
      if (!use.holds_device()) return {};  // the library is mapped, but CUDA was never initialised
      return refuse(name_process(use) + " holds " + devices_of(use) +
                    " but has no restore thread of the driver: " + explain_holder(use));
    case RestoreThread::found: break;
  }
  if (!use.unsupported_devices.empty()) {
    return refuse(name_process(use) + " uses " + join(use.unsupported_devices, ", ") +
                  ", which neither the driver nor CRIU can save; run it without RDMA and GPUDirect "
                  "(NCCL_IB_DISABLE=1, UCX_TLS without ib)");
  }
  Classification result;
  result.treatment = Treatment::suspend;
  return result;
}

}  // namespace icebox::cuda
