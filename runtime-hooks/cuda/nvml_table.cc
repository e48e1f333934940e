// SPDX-License-Identifier: Apache-2.0
#include "runtime-hooks/cuda/nvml_table.h"

#include <dlfcn.h>

#include <array>
#include <cstring>

namespace icebox::cuda {
namespace {

template <typename Function>
bool find(void* library, const char* symbol, Function& function) {
  function = reinterpret_cast<Function>(::dlsym(library, symbol));
  return function != nullptr;
}

// The text in a buffer that a C function filled, even if it forgot the final zero.
template <std::size_t kSize>
std::string text_in(const std::array<char, kSize>& buffer) {
  return {buffer.data(), ::strnlen(buffer.data(), buffer.size())};
}

}  // namespace

Result<NvmlTable> NvmlTable::load(const std::string& libnvidia_ml) {
  void* library = ::dlopen(libnvidia_ml.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* reason = ::dlerror();
    return make_error(Code::failed_precondition,
                      "cannot load NVIDIA's management library " + libnvidia_ml +
                          " on the host: " + (reason != nullptr ? reason : "unknown reason") +
                          "; install the NVIDIA driver, or set `libnvidia_ml` in Icebox's "
                          "configuration to where it is");
  }
  NvmlTable table;
  table.path_ = libnvidia_ml;
  const bool complete =
      find(library, "nvmlInit_v2", table.init_) &&
      find(library, "nvmlErrorString", table.error_string_) &&
      find(library, "nvmlSystemGetDriverVersion", table.get_driver_version_) &&
      find(library, "nvmlDeviceGetCount_v2", table.get_count_) &&
      find(library, "nvmlDeviceGetHandleByIndex_v2", table.get_handle_) &&
      find(library, "nvmlDeviceGetUUID", table.get_uuid_) &&
      find(library, "nvmlDeviceGetName", table.get_name_) &&
      find(library, "nvmlDeviceGetMemoryInfo", table.get_memory_) &&
      find(library, "nvmlDeviceGetPciInfo_v3", table.get_pci_) &&
      find(library, "nvmlDeviceGetCudaComputeCapability", table.get_capability_) &&
      find(library, "nvmlDeviceGetComputeRunningProcesses_v3", table.get_processes_);
  if (!complete) {
    return make_error(Code::failed_precondition,
                      libnvidia_ml + " lacks functions of NVIDIA driver 570 or newer");
  }
  find(library, "nvmlDeviceGetMigMode", table.get_mig_);
  find(library, "nvmlDeviceGetPersistenceMode", table.get_persistence_);
  if (const nvml::Code code = table.init_(); code != nvml::kSuccess) {
    return table.failure("nvmlInit_v2", code);
  }
  return table;
}

Error NvmlTable::failure(const char* function, nvml::Code code) const {
  const char* text = error_string_(code);
  std::string message = std::string(function) + " of " + path_ +
                        " failed on the host: " + (text != nullptr ? text : "unknown error") +
                        " (" + std::to_string(code) + ")";
  if (code == nvml::kErrorDriverNotLoaded) message += "; load the nvidia kernel module";
  if (code == nvml::kErrorLibRmVersionMismatch) {
    message += "; the library and the loaded kernel module differ: reload the module or reboot";
  }
  return make_error(Code::failed_precondition, std::move(message));
}

Result<std::string> NvmlTable::driver_version() const {
  std::array<char, nvml::kVersionBufferSize> version = {};
  const nvml::Code code = get_driver_version_(version.data(), version.size());
  if (code != nvml::kSuccess) return failure("nvmlSystemGetDriverVersion", code);
  return text_in(version);
}

Result<std::vector<nvml::Device>> NvmlTable::devices() const {
  unsigned int count = 0;
  nvml::Code code = get_count_(&count);
  if (code != nvml::kSuccess) return failure("nvmlDeviceGetCount_v2", code);
  std::vector<nvml::Device> devices;
  for (unsigned int i = 0; i < count; ++i) {
    nvml::Device device = nullptr;
    code = get_handle_(i, &device);
    if (code != nvml::kSuccess) return failure("nvmlDeviceGetHandleByIndex_v2", code);
    devices.push_back(device);
  }
  return devices;
}

Result<std::string> NvmlTable::uuid_of(nvml::Device device) const {
  std::array<char, nvml::kUuidBufferSize> uuid = {};
  const nvml::Code code = get_uuid_(device, uuid.data(), uuid.size());
  if (code != nvml::kSuccess) return failure("nvmlDeviceGetUUID", code);
  return text_in(uuid);
}

Result<Gpu> NvmlTable::describe(nvml::Device device) const {
  Gpu gpu;
  gpu.uuid = ICEBOX_TRY(uuid_of(device));
  std::array<char, nvml::kNameBufferSize> name = {};
  nvml::Code code = get_name_(device, name.data(), name.size());
  if (code != nvml::kSuccess) return failure("nvmlDeviceGetName", code);
  gpu.name = text_in(name);
  nvml::Memory memory;
  code = get_memory_(device, &memory);
  if (code != nvml::kSuccess) return failure("nvmlDeviceGetMemoryInfo", code);
  gpu.total_bytes = memory.total;
  gpu.free_bytes = memory.free;
  nvml::PciInfo pci;
  code = get_pci_(device, &pci);
  if (code != nvml::kSuccess) return failure("nvmlDeviceGetPciInfo_v3", code);
  gpu.pci_bus_id.assign(pci.bus_id, ::strnlen(pci.bus_id, sizeof pci.bus_id));
  code = get_capability_(device, &gpu.compute_major, &gpu.compute_minor);
  if (code != nvml::kSuccess) return failure("nvmlDeviceGetCudaComputeCapability", code);
  // Both are NOT_SUPPORTED on GPUs without the feature, which means off.
  unsigned int mig = 0;
  unsigned int pending = 0;
  gpu.mig_enabled =
      get_mig_ != nullptr && get_mig_(device, &mig, &pending) == nvml::kSuccess && mig != 0;
  int persistence = 0;
  gpu.persistence_mode = get_persistence_ != nullptr &&
                         get_persistence_(device, &persistence) == nvml::kSuccess &&
                         persistence != 0;
  return gpu;
}

Result<std::vector<Gpu>> NvmlTable::gpus() const {
  std::vector<Gpu> gpus;
  const auto handles = ICEBOX_TRY(devices());
  gpus.reserve(handles.size());
  for (nvml::Device device : handles) gpus.push_back(ICEBOX_TRY(describe(device)));
  return gpus;
}

Result<std::vector<GpuProcess>> NvmlTable::processes() const {
  std::vector<GpuProcess> processes;
  const auto handles = ICEBOX_TRY(devices());
  for (nvml::Device device : handles) {
    const std::string uuid = ICEBOX_TRY(uuid_of(device));
    // The list may grow between two calls, so the buffer starts roomy and grows a few times.
    std::vector<nvml::ProcessInfo> infos(64);
    nvml::Code code = nvml::kErrorInsufficientSize;
    for (int attempt = 0; attempt < 5 && code == nvml::kErrorInsufficientSize; ++attempt) {
      auto count = static_cast<unsigned int>(infos.size());
      code = get_processes_(device, &count, infos.data());
      infos.resize(code == nvml::kErrorInsufficientSize ? count + 64 : count);
    }
    if (code != nvml::kSuccess) return failure("nvmlDeviceGetComputeRunningProcesses_v3", code);
    for (const nvml::ProcessInfo& info : infos) {
      GpuProcess process;
      process.gpu_uuid = uuid;
      process.pid = static_cast<pid_t>(info.pid);
      if (info.used_gpu_memory != nvml::kValueNotAvailable) {
        process.used_bytes = info.used_gpu_memory;
      }
      processes.push_back(std::move(process));
    }
  }
  return processes;
}

}  // namespace icebox::cuda
