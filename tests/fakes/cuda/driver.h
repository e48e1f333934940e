// SPDX-License-Identifier: Apache-2.0
//
// The part of the CUDA driver API that the simulated driver exports and the samples call, declared
// here so that both build without the CUDA Toolkit. abi_check.cc compares every type, value and
// signature with <cuda.h> where one is found. A program built against this header runs on the real
// driver (r580, CUDA 13) and on the simulated one alike.
//
// Deliberately not shared with runtime-hooks/cuda/driver_api.h: a wrong layout there must not be
// hidden by the same wrong layout here.
#pragma once

#include <cstddef>
#include <cstdint>

namespace icebox::cu {

/// CUresult. The values are those of cuda.h 13.0; a newer driver may return others.
enum class Result : int {
  success = 0,
  invalid_value = 1,
  out_of_memory = 2,
  not_initialized = 3,
  no_device = 100,
  invalid_device = 101,
  invalid_context = 201,
  operating_system = 304,
  invalid_handle = 400,
  illegal_state = 401,
  not_found = 500,
  not_ready = 600,
  not_permitted = 800,
  not_supported = 801,
  system_driver_mismatch = 803,
  unknown = 999,
};

/// CUprocessState.
enum class ProcessState : int { running = 0, locked = 1, checkpointed = 2, failed = 3 };

/// CUdevice_attribute, those that the simulated driver answers.
enum class Attribute : int {
  multiprocessor_count = 16,
  integrated = 18,
  pci_bus_id = 33,
  pci_device_id = 34,
  unified_addressing = 41,
  pci_domain_id = 50,
  compute_capability_major = 75,
  compute_capability_minor = 76,
};

using Device = int;
using DevicePtr = unsigned long long;
struct ContextObject;
using Context = ContextObject*;
struct StreamObject;
using Stream = StreamObject*;

/// CUuuid.
struct Uuid {
  unsigned char bytes[16];
  bool operator==(const Uuid&) const = default;
};

/// CUcheckpointLockArgs.
struct LockArgs {
  unsigned int timeout_ms;
  unsigned int reserved0;
  std::uint64_t reserved1[7];
};

/// CUcheckpointCheckpointArgs.
struct CheckpointArgs {
  std::uint64_t reserved[8];
};

/// CUcheckpointGpuPair.
struct GpuPair {
  Uuid old_uuid;
  Uuid new_uuid;
};

/// CUcheckpointRestoreArgs.
struct RestoreArgs {
  GpuPair* gpu_pairs;
  unsigned int gpu_pairs_count;
  char reserved[52 - sizeof(void*)];
  std::uint64_t reserved1;
};

/// CUcheckpointUnlockArgs.
struct UnlockArgs {
  std::uint64_t reserved[8];
};

// abi_check.cc sees these beside cuda.h's, which differ in their types: no C linkage there.
#ifndef ICEBOX_ABI_CHECK
extern "C" {
#endif
Result cuInit(unsigned int flags);
Result cuDriverGetVersion(int* version);
Result cuGetErrorName(Result error, const char** text);
Result cuGetErrorString(Result error, const char** text);
Result cuGetProcAddress_v2(const char* symbol, void** function, int cuda_version,
                           std::uint64_t flags, int* status);

Result cuDeviceGetCount(int* count);
Result cuDeviceGet(Device* device, int ordinal);
Result cuDeviceGetName(char* name, int length, Device device);
Result cuDeviceGetUuid_v2(Uuid* uuid, Device device);
Result cuDeviceTotalMem_v2(std::size_t* bytes, Device device);
Result cuDeviceGetAttribute(int* value, Attribute attribute, Device device);

Result cuDevicePrimaryCtxRetain(Context* context, Device device);
Result cuDevicePrimaryCtxRelease_v2(Device device);
Result cuCtxCreate_v2(Context* context, unsigned int flags, Device device);
Result cuCtxCreate_v4(Context* context, void* parameters, unsigned int flags, Device device);
Result cuCtxDestroy_v2(Context context);
Result cuCtxSetCurrent(Context context);
Result cuCtxGetCurrent(Context* context);
Result cuCtxGetDevice(Device* device);
Result cuCtxSynchronize();

Result cuMemGetInfo_v2(std::size_t* free, std::size_t* total);
Result cuMemAlloc_v2(DevicePtr* address, std::size_t bytes);
Result cuMemFree_v2(DevicePtr address);
Result cuMemHostAlloc(void** address, std::size_t bytes, unsigned int flags);
Result cuMemFreeHost(void* address);
Result cuMemcpyHtoD_v2(DevicePtr to, const void* from, std::size_t bytes);
Result cuMemcpyDtoH_v2(void* to, DevicePtr from, std::size_t bytes);
Result cuMemcpyDtoD_v2(DevicePtr to, DevicePtr from, std::size_t bytes);
Result cuMemsetD8_v2(DevicePtr to, unsigned char value, std::size_t count);
Result cuMemsetD32_v2(DevicePtr to, unsigned int value, std::size_t count);

Result cuStreamCreate(Stream* stream, unsigned int flags);
Result cuStreamDestroy_v2(Stream stream);
Result cuStreamSynchronize(Stream stream);
Result cuLaunchHostFunc(Stream stream, void (*function)(void*), void* data);

Result cuCheckpointProcessGetRestoreThreadId(int pid, int* tid);
Result cuCheckpointProcessGetState(int pid, ProcessState* state);
Result cuCheckpointProcessLock(int pid, LockArgs* args);
Result cuCheckpointProcessCheckpoint(int pid, CheckpointArgs* args);
Result cuCheckpointProcessRestore(int pid, RestoreArgs* args);
Result cuCheckpointProcessUnlock(int pid, UnlockArgs* args);
#ifndef ICEBOX_ABI_CHECK
}
#endif

}  // namespace icebox::cu
