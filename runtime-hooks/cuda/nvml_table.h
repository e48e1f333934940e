// SPDX-License-Identifier: Apache-2.0
//
// libnvidia-ml.so.1 in the agent: the GPUs of the host and what processes use of them. Read only.
#pragma once

#include <string>
#include <vector>

#include "oci/base/result.h"
#include "runtime-hooks/cuda/driver_api.h"
#include "runtime-hooks/cuda/target.h"

namespace icebox::cuda {

class NvmlTable {
 public:
  /// Loads the library (name or path as for dlopen) and calls nvmlInit. The Error names the library
  /// and the way out. The session stays open until the process ends.
  static Result<NvmlTable> load(const std::string& libnvidia_ml);

  /// "580.159.04".
  [[nodiscard]] Result<std::string> driver_version() const;
  /// All GPUs, in NVML's order (by PCI address).
  [[nodiscard]] Result<std::vector<Gpu>> gpus() const;
  /// All compute processes on all GPUs, pids as this process's pid namespace numbers them.
  [[nodiscard]] Result<std::vector<GpuProcess>> processes() const;

 private:
  NvmlTable() = default;
  [[nodiscard]] Error failure(const char* function, nvml::Code code) const;
  [[nodiscard]] Result<std::vector<nvml::Device>> devices() const;
  [[nodiscard]] Result<std::string> uuid_of(nvml::Device device) const;
  [[nodiscard]] Result<Gpu> describe(nvml::Device device) const;

  std::string path_;
  nvml::InitFn init_ = nullptr;
  nvml::ErrorStringFn error_string_ = nullptr;
  nvml::SystemGetDriverVersionFn get_driver_version_ = nullptr;
  nvml::DeviceGetCountFn get_count_ = nullptr;
  nvml::DeviceGetHandleByIndexFn get_handle_ = nullptr;
  nvml::DeviceGetUuidFn get_uuid_ = nullptr;
  nvml::DeviceGetNameFn get_name_ = nullptr;
  nvml::DeviceGetMemoryInfoFn get_memory_ = nullptr;
  nvml::DeviceGetPciInfoFn get_pci_ = nullptr;
  nvml::DeviceGetCudaComputeCapabilityFn get_capability_ = nullptr;
  nvml::DeviceGetMigModeFn get_mig_ = nullptr;                  // may be missing
  nvml::DeviceGetPersistenceModeFn get_persistence_ = nullptr;  // may be missing
  nvml::DeviceGetComputeRunningProcessesFn get_processes_ = nullptr;
};

}  // namespace icebox::cuda
