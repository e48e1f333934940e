// SPDX-License-Identifier: Apache-2.0
//
// The part of NVIDIA's driver API (libcuda.so.1) and management library (libnvidia-ml.so.1) that
// Icebox calls, declared here so that it builds without the CUDA Toolkit. driver_api.cc checks
// every type and value below against <cuda.h> and <nvml.h> where they are found at configure time.
//
// Sources: cuda.h of CUDA 12.8 (checkpoint API, driver 570) and 13.0 (gpuPairs, driver 580), and
// nvml.h of NVML 13. All structs of the checkpoint API have reserved bytes that must be zero: they
// are zeroed by their member initialisers here, so `LockArgs args;` is always valid to pass.
#pragma once

#include <cstddef>
#include <cstdint>

namespace icebox::cuda::driver {

/// CUresult. An int-sized enum in the ABI; kept open because newer drivers add values.
using Code = int;
inline constexpr Code kSuccess = 0;
inline constexpr Code kErrorInvalidValue = 1;
inline constexpr Code kErrorOutOfMemory = 2;
inline constexpr Code kErrorNotInitialized = 3;
inline constexpr Code kErrorStubLibrary = 34;
inline constexpr Code kErrorNoDevice = 100;
inline constexpr Code kErrorOperatingSystem = 304;
inline constexpr Code kErrorIllegalState = 401;
inline constexpr Code kErrorNotFound = 500;
inline constexpr Code kErrorNotReady = 600;
inline constexpr Code kErrorNotPermitted = 800;
inline constexpr Code kErrorNotSupported = 801;
inline constexpr Code kErrorSystemNotReady = 802;
inline constexpr Code kErrorSystemDriverMismatch = 803;
inline constexpr Code kErrorCompatNotSupportedOnDevice = 804;
inline constexpr Code kErrorUnknown = 999;

/// CUprocessState. Newer headers add 4 (CHECKPOINTING) and 5 (RESTORING); any value that is not
/// listed here is treated as "busy".
using RawState = int;
inline constexpr RawState kStateRunning = 0;
inline constexpr RawState kStateLocked = 1;
inline constexpr RawState kStateCheckpointed = 2;
inline constexpr RawState kStateFailed = 3;

/// CUuuid: the 16 bytes of a GPU's UUID, in the order in which "GPU-xxxxxxxx-..." prints them.
struct Uuid {
  unsigned char bytes[16] = {};
};

/// CUcheckpointLockArgs.
struct LockArgs {
  unsigned int timeout_ms = 0;  // 0 waits without limit: Icebox never passes it
  unsigned int reserved0 = 0;
  std::uint64_t reserved1[7] = {};
};

/// CUcheckpointCheckpointArgs.
struct CheckpointArgs {
  std::uint64_t reserved[8] = {};
};

/// CUcheckpointGpuPair.
struct GpuPair {
  Uuid old_uuid;
  Uuid new_uuid;
};

/// CUcheckpointRestoreArgs as of CUDA 13.0 (driver 580). In CUDA 12.8 all 64 bytes are reserved, so
/// with no pairs the same struct is right for both; pairs need kRemapDriverVersion.
struct RestoreArgs {
  GpuPair* gpu_pairs = nullptr;
  unsigned int gpu_pairs_count = 0;
  char reserved[52 - sizeof(void*)] = {};
  std::uint64_t reserved1 = 0;
};

/// CUcheckpointUnlockArgs.
struct UnlockArgs {
  std::uint64_t reserved[8] = {};
};

/// Smallest cuDriverGetVersion() whose driver (r570) has the checkpoint API.
inline constexpr int kCheckpointDriverVersion = 12080;
/// Smallest cuDriverGetVersion() whose driver (r580) reads RestoreArgs::gpu_pairs.
inline constexpr int kRemapDriverVersion = 13000;

using InitFn = Code (*)(unsigned int flags);
using DriverGetVersionFn = Code (*)(int* version);
using GetErrorNameFn = Code (*)(Code code, const char** text);
using GetErrorStringFn = Code (*)(Code code, const char** text);
/// cuGetProcAddress_v2; `status` gets CUdriverProcAddressQueryResult, 0 = found.
using GetProcAddressFn = Code (*)(const char* symbol, void** function, int cuda_version,
                                  std::uint64_t flags, int* status);
using GetRestoreThreadIdFn = Code (*)(int pid, int* tid);
using GetStateFn = Code (*)(int pid, RawState* state);
using LockFn = Code (*)(int pid, LockArgs* args);
using CheckpointFn = Code (*)(int pid, CheckpointArgs* args);
using RestoreFn = Code (*)(int pid, RestoreArgs* args);
using UnlockFn = Code (*)(int pid, UnlockArgs* args);

}  // namespace icebox::cuda::driver

namespace icebox::cuda::nvml {

/// nvmlReturn_t.
using Code = int;
inline constexpr Code kSuccess = 0;
inline constexpr Code kErrorNotSupported = 3;
inline constexpr Code kErrorInsufficientSize = 7;
inline constexpr Code kErrorDriverNotLoaded = 9;
inline constexpr Code kErrorLibRmVersionMismatch = 18;

/// nvmlDevice_t: an opaque pointer.
using Device = struct nvmlDevice_st*;

/// nvmlMemory_t, bytes.
struct Memory {
  unsigned long long total = 0;
  unsigned long long free = 0;
  unsigned long long used = 0;
};

/// nvmlProcessInfo_t as read by nvmlDeviceGetComputeRunningProcesses_v3.
struct ProcessInfo {
  unsigned int pid = 0;
  unsigned long long used_gpu_memory = 0;  // kValueNotAvailable where the driver does not know
  unsigned int gpu_instance_id = 0;
  unsigned int compute_instance_id = 0;
};
inline constexpr unsigned long long kValueNotAvailable = ~0ULL;

/// nvmlPciInfo_t as read by nvmlDeviceGetPciInfo_v3.
struct PciInfo {
  char bus_id_legacy[16] = {};
  unsigned int domain = 0;
  unsigned int bus = 0;
  unsigned int device = 0;
  unsigned int pci_device_id = 0;
  unsigned int pci_sub_system_id = 0;
  char bus_id[32] = {};
};

/// Buffer sizes that nvml.h promises to be enough.
inline constexpr std::size_t kUuidBufferSize = 96;
inline constexpr std::size_t kNameBufferSize = 96;
inline constexpr std::size_t kVersionBufferSize = 80;

using InitFn = Code (*)();
using ShutdownFn = Code (*)();
using ErrorStringFn = const char* (*)(Code code);
using SystemGetDriverVersionFn = Code (*)(char* version, unsigned int length);
using DeviceGetCountFn = Code (*)(unsigned int* count);
using DeviceGetHandleByIndexFn = Code (*)(unsigned int index, Device* device);
using DeviceGetUuidFn = Code (*)(Device device, char* uuid, unsigned int length);
using DeviceGetNameFn = Code (*)(Device device, char* name, unsigned int length);
using DeviceGetMemoryInfoFn = Code (*)(Device device, Memory* memory);
using DeviceGetPciInfoFn = Code (*)(Device device, PciInfo* pci);
using DeviceGetCudaComputeCapabilityFn = Code (*)(Device device, int* major, int* minor);
using DeviceGetMigModeFn = Code (*)(Device device, unsigned int* current, unsigned int* pending);
/// The mode is nvmlEnableState_t: 0 off, 1 on.
using DeviceGetPersistenceModeFn = Code (*)(Device device, int* mode);
using DeviceGetComputeRunningProcessesFn = Code (*)(Device device, unsigned int* count,
                                                    ProcessInfo* infos);

}  // namespace icebox::cuda::nvml
