// SPDX-License-Identifier: Apache-2.0
//
// Proves the declarations of driver_api.h against NVIDIA's own headers, where CMake found them
// (ICEBOX_HAVE_CUDA_H, ICEBOX_HAVE_NVML_H). Nothing here makes code: a wrong layout fails the
// build.
#include "runtime-hooks/cuda/driver_api.h"

#ifdef ICEBOX_HAVE_CUDA_H
#include <cuda.h>
#endif
#ifdef ICEBOX_HAVE_NVML_H
#include <nvml.h>
#endif

#include <type_traits>

// Both types have the same size and alignment.
#define SAME_LAYOUT(ours, theirs) \
  static_assert(sizeof(ours) == sizeof(theirs) && alignof(ours) == alignof(theirs), #theirs)
// A member sits at the same offset and has the same size.
#define SAME_MEMBER(ours, member, theirs, their_member)                                       \
  static_assert(                                                                              \
      offsetof(ours, member) == offsetof(theirs, their_member) &&                             \
          sizeof(std::declval<ours>().member) == sizeof(std::declval<theirs>().their_member), \
      #theirs "::" #their_member)
#define SAME_VALUE(ours, theirs) static_assert((ours) == static_cast<int>(theirs), #theirs)

namespace icebox::cuda {
namespace {

// Sizes that hold without any header: 64 bytes each in every release so far.
static_assert(sizeof(driver::LockArgs) == 64);
static_assert(sizeof(driver::CheckpointArgs) == 64);
static_assert(sizeof(driver::RestoreArgs) == 64);
static_assert(sizeof(driver::UnlockArgs) == 64);
static_assert(sizeof(driver::Uuid) == 16 && sizeof(driver::GpuPair) == 32);
static_assert(sizeof(nvml::Memory) == 24);
static_assert(sizeof(nvml::ProcessInfo) == 24);
static_assert(sizeof(nvml::PciInfo) == 68);

// Whether two function pointer types are called alike: as many arguments, each of the same size and
// kind. Pointees and the enum behind an int may differ.
template <typename Ours, typename Theirs>
struct SameCall : std::false_type {};
template <typename OurReturn, typename... Ours, typename TheirReturn, typename... Theirs>
struct SameCall<OurReturn (*)(Ours...), TheirReturn (*)(Theirs...)> {
  template <typename A, typename B>
  static constexpr bool kSame =
      sizeof(A) == sizeof(B) && std::is_pointer_v<A> == std::is_pointer_v<B>;
  static constexpr bool value =  // NOLINT(readability-identifier-naming): a type trait
      sizeof...(Ours) == sizeof...(Theirs) && sizeof(OurReturn) == sizeof(TheirReturn) &&
      (kSame<Ours, Theirs> && ...);
};
#define SAME_CALL(ours, theirs) static_assert(SameCall<ours, decltype(&(theirs))>::value, #theirs)

#ifdef ICEBOX_HAVE_CUDA_H
SAME_VALUE(driver::kSuccess, CUDA_SUCCESS);
SAME_VALUE(driver::kErrorInvalidValue, CUDA_ERROR_INVALID_VALUE);
SAME_VALUE(driver::kErrorOutOfMemory, CUDA_ERROR_OUT_OF_MEMORY);
SAME_VALUE(driver::kErrorNotInitialized, CUDA_ERROR_NOT_INITIALIZED);
SAME_VALUE(driver::kErrorStubLibrary, CUDA_ERROR_STUB_LIBRARY);
SAME_VALUE(driver::kErrorNoDevice, CUDA_ERROR_NO_DEVICE);
SAME_VALUE(driver::kErrorOperatingSystem, CUDA_ERROR_OPERATING_SYSTEM);
SAME_VALUE(driver::kErrorIllegalState, CUDA_ERROR_ILLEGAL_STATE);
SAME_VALUE(driver::kErrorNotFound, CUDA_ERROR_NOT_FOUND);
SAME_VALUE(driver::kErrorNotReady, CUDA_ERROR_NOT_READY);
SAME_VALUE(driver::kErrorNotPermitted, CUDA_ERROR_NOT_PERMITTED);
SAME_VALUE(driver::kErrorNotSupported, CUDA_ERROR_NOT_SUPPORTED);
SAME_VALUE(driver::kErrorSystemNotReady, CUDA_ERROR_SYSTEM_NOT_READY);
SAME_VALUE(driver::kErrorSystemDriverMismatch, CUDA_ERROR_SYSTEM_DRIVER_MISMATCH);
SAME_VALUE(driver::kErrorCompatNotSupportedOnDevice, CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE);
SAME_VALUE(driver::kErrorUnknown, CUDA_ERROR_UNKNOWN);
static_assert(sizeof(driver::Code) == sizeof(CUresult));
SAME_LAYOUT(driver::Uuid, CUuuid);
SAME_CALL(driver::InitFn, cuInit);
SAME_CALL(driver::DriverGetVersionFn, cuDriverGetVersion);
SAME_CALL(driver::GetErrorNameFn, cuGetErrorName);
SAME_CALL(driver::GetErrorStringFn, cuGetErrorString);
#if CUDA_VERSION >= 12000
SAME_CALL(driver::GetProcAddressFn, cuGetProcAddress);  // a macro for cuGetProcAddress_v2
#endif
#if CUDA_VERSION >= 12080
SAME_VALUE(driver::kStateRunning, CU_PROCESS_STATE_RUNNING);
SAME_VALUE(driver::kStateLocked, CU_PROCESS_STATE_LOCKED);
SAME_VALUE(driver::kStateCheckpointed, CU_PROCESS_STATE_CHECKPOINTED);
SAME_VALUE(driver::kStateFailed, CU_PROCESS_STATE_FAILED);
static_assert(sizeof(driver::RawState) == sizeof(CUprocessState));
SAME_LAYOUT(driver::LockArgs, CUcheckpointLockArgs);
SAME_MEMBER(driver::LockArgs, timeout_ms, CUcheckpointLockArgs, timeoutMs);
SAME_MEMBER(driver::LockArgs, reserved0, CUcheckpointLockArgs, reserved0);
SAME_MEMBER(driver::LockArgs, reserved1, CUcheckpointLockArgs, reserved1);
SAME_LAYOUT(driver::CheckpointArgs, CUcheckpointCheckpointArgs);
SAME_LAYOUT(driver::RestoreArgs, CUcheckpointRestoreArgs);
SAME_LAYOUT(driver::UnlockArgs, CUcheckpointUnlockArgs);
SAME_CALL(driver::GetRestoreThreadIdFn, cuCheckpointProcessGetRestoreThreadId);
SAME_CALL(driver::GetStateFn, cuCheckpointProcessGetState);
SAME_CALL(driver::LockFn, cuCheckpointProcessLock);
SAME_CALL(driver::CheckpointFn, cuCheckpointProcessCheckpoint);
SAME_CALL(driver::RestoreFn, cuCheckpointProcessRestore);
SAME_CALL(driver::UnlockFn, cuCheckpointProcessUnlock);
#endif
#if CUDA_VERSION >= 13000
SAME_LAYOUT(driver::GpuPair, CUcheckpointGpuPair);
SAME_MEMBER(driver::GpuPair, old_uuid, CUcheckpointGpuPair, oldUuid);
SAME_MEMBER(driver::GpuPair, new_uuid, CUcheckpointGpuPair, newUuid);
// NOLINTNEXTLINE(bugprone-sizeof-expression): the size of the pointer is meant
SAME_MEMBER(driver::RestoreArgs, gpu_pairs, CUcheckpointRestoreArgs, gpuPairs);
SAME_MEMBER(driver::RestoreArgs, gpu_pairs_count, CUcheckpointRestoreArgs, gpuPairsCount);
SAME_MEMBER(driver::RestoreArgs, reserved1, CUcheckpointRestoreArgs, reserved1);
#endif
#endif  // ICEBOX_HAVE_CUDA_H

#ifdef ICEBOX_HAVE_NVML_H
SAME_VALUE(nvml::kSuccess, NVML_SUCCESS);
SAME_VALUE(nvml::kErrorNotSupported, NVML_ERROR_NOT_SUPPORTED);
SAME_VALUE(nvml::kErrorInsufficientSize, NVML_ERROR_INSUFFICIENT_SIZE);
SAME_VALUE(nvml::kErrorDriverNotLoaded, NVML_ERROR_DRIVER_NOT_LOADED);
SAME_VALUE(nvml::kErrorLibRmVersionMismatch, NVML_ERROR_LIB_RM_VERSION_MISMATCH);
static_assert(sizeof(nvml::Code) == sizeof(nvmlReturn_t));
SAME_LAYOUT(nvml::Memory, nvmlMemory_t);
SAME_MEMBER(nvml::Memory, total, nvmlMemory_t, total);
SAME_MEMBER(nvml::Memory, free, nvmlMemory_t, free);
SAME_LAYOUT(nvml::ProcessInfo, nvmlProcessInfo_t);
SAME_MEMBER(nvml::ProcessInfo, pid, nvmlProcessInfo_t, pid);
SAME_MEMBER(nvml::ProcessInfo, used_gpu_memory, nvmlProcessInfo_t, usedGpuMemory);
SAME_LAYOUT(nvml::PciInfo, nvmlPciInfo_t);
SAME_MEMBER(nvml::PciInfo, bus_id, nvmlPciInfo_t, busId);
static_assert(nvml::kUuidBufferSize >= NVML_DEVICE_UUID_BUFFER_SIZE);
static_assert(nvml::kVersionBufferSize >= NVML_SYSTEM_DRIVER_VERSION_BUFFER_SIZE);
SAME_CALL(nvml::InitFn, nvmlInit_v2);
SAME_CALL(nvml::ShutdownFn, nvmlShutdown);
SAME_CALL(nvml::ErrorStringFn, nvmlErrorString);
SAME_CALL(nvml::SystemGetDriverVersionFn, nvmlSystemGetDriverVersion);
SAME_CALL(nvml::DeviceGetCountFn, nvmlDeviceGetCount_v2);
SAME_CALL(nvml::DeviceGetHandleByIndexFn, nvmlDeviceGetHandleByIndex_v2);
SAME_CALL(nvml::DeviceGetUuidFn, nvmlDeviceGetUUID);
SAME_CALL(nvml::DeviceGetNameFn, nvmlDeviceGetName);
SAME_CALL(nvml::DeviceGetMemoryInfoFn, nvmlDeviceGetMemoryInfo);
SAME_CALL(nvml::DeviceGetPciInfoFn, nvmlDeviceGetPciInfo_v3);
SAME_CALL(nvml::DeviceGetCudaComputeCapabilityFn, nvmlDeviceGetCudaComputeCapability);
SAME_CALL(nvml::DeviceGetMigModeFn, nvmlDeviceGetMigMode);
SAME_CALL(nvml::DeviceGetPersistenceModeFn, nvmlDeviceGetPersistenceMode);
SAME_CALL(nvml::DeviceGetComputeRunningProcessesFn, nvmlDeviceGetComputeRunningProcesses_v3);
#endif  // ICEBOX_HAVE_NVML_H

}  // namespace
}  // namespace icebox::cuda
