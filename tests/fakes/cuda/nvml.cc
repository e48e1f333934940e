// SPDX-License-Identifier: Apache-2.0
//
// The simulated libnvidia-ml.so.1: describes the machine of the host file, and the memory that live
// processes of the simulated driver hold. Signatures and layouts are those of nvml.h 13.
#include <cstdio>
#include <cstring>
#include <vector>

#include "tests/fakes/cuda/export.h"
#include "tests/fakes/cuda/host.h"
#include "tests/fakes/cuda/peer.h"

namespace icebox::nvml {

/// nvmlReturn_t.
enum class Return : int {
  success = 0,
  uninitialized = 1,
  invalid_argument = 2,
  not_supported = 3,
  not_found = 6,
  insufficient_size = 7,
  driver_not_loaded = 9,
  version_mismatch = 25,
  unknown = 999,
};

struct DeviceObject;
using Device = DeviceObject*;

struct Memory {
  unsigned long long total;
  unsigned long long free;
  unsigned long long used;
};

struct MemoryV2 {
  unsigned int version;
  unsigned long long total;
  unsigned long long reserved;
  unsigned long long free;
  unsigned long long used;
};
constexpr unsigned int kMemoryV2 = sizeof(MemoryV2) | 2U << 24;  // NVML_STRUCT_VERSION(Memory, 2)

struct ProcessInfo {
  unsigned int pid;
  unsigned long long used_gpu_memory;
  unsigned int gpu_instance_id;
  unsigned int compute_instance_id;
};
static_assert(sizeof(ProcessInfo) == 24);

struct PciInfo {
  char bus_id_legacy[16];
  unsigned int domain;
  unsigned int bus;
  unsigned int device;
  unsigned int pci_device_id;
  unsigned int pci_sub_system_id;
  char bus_id[32];
};
static_assert(sizeof(PciInfo) == 68);

namespace {

constexpr unsigned int kNoInstance = 0xFFFFFFFF;  // of a GPU without MIG

/// The machine, between nvmlInit and nvmlShutdown.
struct State {
  int initialized = 0;
  sim::Host host;
};

State& state() {
  static State* the = new State;
  return *the;
}

/// Handles are addresses of the machine's GPUs.
const sim::Gpu* gpu_of(Device device) {
  const auto* gpu = reinterpret_cast<const sim::Gpu*>(device);
  const sim::Host& host = state().host;
  return gpu >= host.gpus && gpu < host.gpus + host.gpu_count ? gpu : nullptr;
}

/// The GPU of a handle; an error as well if there is no place for the answer.
Return find_gpu(Device device, const void* out, const sim::Gpu*& gpu) {
  if (state().initialized == 0) return Return::uninitialized;
  gpu = gpu_of(device);
  return gpu == nullptr || out == nullptr ? Return::invalid_argument : Return::success;
}

Return copy_text(const char* text, char* out, unsigned int size) {
  if (state().initialized == 0) return Return::uninitialized;
  if (out == nullptr) return Return::invalid_argument;
  if (std::strlen(text) >= size) return Return::insufficient_size;
  std::memcpy(out, text, std::strlen(text) + 1);
  return Return::success;
}

Device handle_of(int index) { return reinterpret_cast<Device>(&state().host.gpus[index]); }

Memory memory_of(const sim::Gpu& gpu) {
  const auto used = sim::used_bytes(sim::all_usage(), gpu.uuid, 0);
  return {gpu.memory_bytes, used < gpu.memory_bytes ? gpu.memory_bytes - used : 0, used};
}

}  // namespace

ICEBOX_SIM_EXPORT Return nvmlInit_v2() {
  State& self = state();
  if (self.initialized++ > 0) return Return::success;
  if (const std::string error = sim::load_host(self.host); !error.empty()) {
    std::fprintf(stderr, "simulated NVML: %s\n", error.c_str());
    self.initialized = 0;
    return Return::unknown;
  }
  return Return::success;
}

ICEBOX_SIM_EXPORT Return nvmlShutdown() {
  if (state().initialized == 0) return Return::uninitialized;
  --state().initialized;
  return Return::success;
}

ICEBOX_SIM_EXPORT const char* nvmlErrorString(Return code) {
  switch (code) {
    case Return::success: return "Success";
    case Return::uninitialized: return "Uninitialized";
    case Return::invalid_argument: return "Invalid Argument";
    case Return::not_supported: return "Not Supported";
    case Return::not_found: return "Not Found";
    case Return::insufficient_size: return "Insufficient Size";
    case Return::driver_not_loaded: return "Driver Not Loaded";
    case Return::version_mismatch: return "Argument version mismatch";
    case Return::unknown: break;
  }
  return "Unknown Error";
}

ICEBOX_SIM_EXPORT Return nvmlSystemGetDriverVersion(char* version, unsigned int size) {
  return copy_text(state().host.driver_version, version, size);
}

ICEBOX_SIM_EXPORT Return nvmlSystemGetCudaDriverVersion_v2(int* version) {
  if (state().initialized == 0) return Return::uninitialized;
  if (version == nullptr) return Return::invalid_argument;
  *version = state().host.cuda_version;
  return Return::success;
}

ICEBOX_SIM_EXPORT Return nvmlDeviceGetCount_v2(unsigned int* count) {
  if (state().initialized == 0) return Return::uninitialized;
  if (count == nullptr) return Return::invalid_argument;
  *count = static_cast<unsigned int>(state().host.gpu_count);
  return Return::success;
}

ICEBOX_SIM_EXPORT Return nvmlDeviceGetHandleByIndex_v2(unsigned int index, Device* device) {
  if (state().initialized == 0) return Return::uninitialized;
  if (device == nullptr || index >= static_cast<unsigned int>(state().host.gpu_count))
    return Return::invalid_argument;
  *device = handle_of(static_cast<int>(index));
  return Return::success;
}

ICEBOX_SIM_EXPORT Return nvmlDeviceGetHandleByUUID(const char* uuid, Device* device) {
  if (state().initialized == 0) return Return::uninitialized;
  cu::Uuid wanted{};
  if (device == nullptr || uuid == nullptr || !sim::parse_uuid(uuid, wanted))
    return Return::invalid_argument;
  for (int i = 0; i < state().host.gpu_count; ++i) {
    if (state().host.gpus[i].uuid != wanted) continue;
    *device = handle_of(i);
    return Return::success;
  }
  return Return::not_found;
}

ICEBOX_SIM_EXPORT Return nvmlDeviceGetUUID(Device device, char* uuid, unsigned int size) {
  const sim::Gpu* gpu = nullptr;
  if (const Return error = find_gpu(device, uuid, gpu); error != Return::success) return error;
  return copy_text(sim::uuid_text(gpu->uuid).c_str(), uuid, size);
}

ICEBOX_SIM_EXPORT Return nvmlDeviceGetName(Device device, char* name, unsigned int size) {
  const sim::Gpu* gpu = nullptr;
  if (const Return error = find_gpu(device, name, gpu); error != Return::success) return error;
  return copy_text(gpu->name, name, size);
}

ICEBOX_SIM_EXPORT Return nvmlDeviceGetMemoryInfo(Device device, Memory* memory) {
  const sim::Gpu* gpu = nullptr;
  if (const Return error = find_gpu(device, memory, gpu); error != Return::success) return error;
  *memory = memory_of(*gpu);
  return Return::success;
}

ICEBOX_SIM_EXPORT Return nvmlDeviceGetMemoryInfo_v2(Device device, MemoryV2* memory) {
  const sim::Gpu* gpu = nullptr;
  if (const Return error = find_gpu(device, memory, gpu); error != Return::success) return error;
  if (memory->version != kMemoryV2) return Return::version_mismatch;
  const Memory simple = memory_of(*gpu);
  *memory = {kMemoryV2, simple.total, 0, simple.free, simple.used};
  return Return::success;
}

ICEBOX_SIM_EXPORT Return nvmlDeviceGetPersistenceMode(Device device, int* mode) {
  const sim::Gpu* gpu = nullptr;
  if (const Return error = find_gpu(device, mode, gpu); error != Return::success) return error;
  *mode = gpu->persistence ? 1 : 0;
  return Return::success;
}

ICEBOX_SIM_EXPORT Return nvmlDeviceGetCudaComputeCapability(Device device, int* major, int* minor) {
  const sim::Gpu* gpu = nullptr;
  if (const Return error = find_gpu(device, major, gpu); error != Return::success) return error;
  if (minor == nullptr) return Return::invalid_argument;
  *major = gpu->compute_major;
  *minor = gpu->compute_minor;
  return Return::success;
}

ICEBOX_SIM_EXPORT Return nvmlDeviceGetPciInfo_v3(Device device, PciInfo* pci) {
  const sim::Gpu* gpu = nullptr;
  if (const Return error = find_gpu(device, pci, gpu); error != Return::success) return error;
  const auto index = static_cast<unsigned int>(gpu - state().host.gpus);
  *pci = {};
  pci->bus = index + 1;
  pci->pci_device_id = 0x233510DE;  // an H200's device and NVIDIA's vendor id
  std::snprintf(pci->bus_id_legacy, sizeof pci->bus_id_legacy, "0000:%02X:00.0", pci->bus);
  std::snprintf(pci->bus_id, sizeof pci->bus_id, "00000000:%02X:00.0", pci->bus);
  return Return::success;
}

ICEBOX_SIM_EXPORT Return nvmlDeviceGetMigMode(Device device, unsigned int* current,
                                              unsigned int* pending) {
  const sim::Gpu* gpu = nullptr;
  if (const Return error = find_gpu(device, current, gpu); error != Return::success) return error;
  if (pending == nullptr) return Return::invalid_argument;
  *current = 0;
  *pending = 0;
  return Return::success;
}

ICEBOX_SIM_EXPORT Return nvmlDeviceGetComputeRunningProcesses_v3(Device device, unsigned int* count,
                                                                 ProcessInfo* infos) {
  const sim::Gpu* gpu = nullptr;
  if (const Return error = find_gpu(device, count, gpu); error != Return::success) return error;
  std::vector<ProcessInfo> found;
  for (const sim::PeerUsage& one : sim::all_usage()) {
    if (!one.on_gpu || one.context_count == 0) continue;
    for (std::uint32_t i = 0; i < one.usage_count && i < sim::kMaxGpus; ++i) {
      if (one.usage[i].uuid == gpu->uuid && one.usage[i].bytes > 0) {
        found.push_back(
            {static_cast<unsigned int>(one.pid), one.usage[i].bytes, kNoInstance, kNoInstance});
      }
    }
  }
  const auto room = *count;
  *count = static_cast<unsigned int>(found.size());
  if (found.size() > room || (room > 0 && infos == nullptr)) return Return::insufficient_size;
  for (std::size_t i = 0; i < found.size(); ++i) infos[i] = found[i];
  return Return::success;
}

}  // namespace icebox::nvml
