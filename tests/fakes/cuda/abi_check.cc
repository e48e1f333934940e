// SPDX-License-Identifier: Apache-2.0
//
// Compares driver.h with the toolkit's cuda.h at compile time. Built only where cuda.h is found; it
// defines nothing.
#include <cuda.h>

#define ICEBOX_ABI_CHECK 1
#include <cstddef>
#include <type_traits>

#include "tests/fakes/cuda/driver.h"

namespace {

namespace cu = icebox::cu;

/// The same register or stack slot in the ABI: equal size, and both pointers or neither.
template <typename A, typename B>
constexpr bool kSameSlot = sizeof(A) == sizeof(B) && std::is_pointer_v<A> == std::is_pointer_v<B>;

template <typename A, typename B>
struct SameCall : std::false_type {};
template <typename RA, typename... A, typename RB, typename... B>
requires(sizeof...(A) == sizeof...(B)) struct SameCall<RA(A...), RB(B...)>
    : std::bool_constant<kSameSlot<RA, RB> && (... && kSameSlot<A, B>)> {
};

#define SAME_CALL(name) static_assert(SameCall<decltype(::name), decltype(cu::name)>::value)
SAME_CALL(cuInit);
SAME_CALL(cuDriverGetVersion);
SAME_CALL(cuGetErrorName);
SAME_CALL(cuGetErrorString);
SAME_CALL(cuGetProcAddress_v2);
SAME_CALL(cuDeviceGetCount);
SAME_CALL(cuDeviceGet);
SAME_CALL(cuDeviceGetName);
SAME_CALL(cuDeviceGetUuid_v2);
SAME_CALL(cuDeviceTotalMem_v2);
SAME_CALL(cuDeviceGetAttribute);
SAME_CALL(cuDevicePrimaryCtxRetain);
SAME_CALL(cuDevicePrimaryCtxRelease_v2);
SAME_CALL(cuCtxCreate_v4);
SAME_CALL(cuCtxDestroy_v2);
SAME_CALL(cuCtxSetCurrent);
SAME_CALL(cuCtxGetCurrent);
SAME_CALL(cuCtxGetDevice);
SAME_CALL(cuCtxSynchronize);
SAME_CALL(cuMemGetInfo_v2);
SAME_CALL(cuMemAlloc_v2);
SAME_CALL(cuMemFree_v2);
SAME_CALL(cuMemHostAlloc);
SAME_CALL(cuMemFreeHost);
SAME_CALL(cuMemcpyHtoD_v2);
SAME_CALL(cuMemcpyDtoH_v2);
SAME_CALL(cuMemcpyDtoD_v2);
SAME_CALL(cuMemsetD8_v2);
SAME_CALL(cuMemsetD32_v2);
SAME_CALL(cuStreamCreate);
SAME_CALL(cuStreamDestroy_v2);
SAME_CALL(cuStreamSynchronize);
SAME_CALL(cuLaunchHostFunc);
SAME_CALL(cuCheckpointProcessGetRestoreThreadId);
SAME_CALL(cuCheckpointProcessGetState);
SAME_CALL(cuCheckpointProcessLock);
SAME_CALL(cuCheckpointProcessCheckpoint);
SAME_CALL(cuCheckpointProcessRestore);
SAME_CALL(cuCheckpointProcessUnlock);

#define SAME_SIZE(theirs, ours) \
  static_assert(sizeof(theirs) == sizeof(ours) && alignof(theirs) == alignof(ours))
SAME_SIZE(CUresult, cu::Result);
SAME_SIZE(CUprocessState, cu::ProcessState);
SAME_SIZE(CUdevice, cu::Device);
SAME_SIZE(CUdeviceptr, cu::DevicePtr);
SAME_SIZE(CUcontext, cu::Context);
SAME_SIZE(CUstream, cu::Stream);
static_assert(sizeof(CUuuid) == sizeof(cu::Uuid));
SAME_SIZE(CUcheckpointLockArgs, cu::LockArgs);
SAME_SIZE(CUcheckpointCheckpointArgs, cu::CheckpointArgs);
SAME_SIZE(CUcheckpointRestoreArgs, cu::RestoreArgs);
SAME_SIZE(CUcheckpointUnlockArgs, cu::UnlockArgs);
static_assert(sizeof(CUcheckpointGpuPair) == sizeof(cu::GpuPair));
static_assert(offsetof(CUcheckpointGpuPair, newUuid) == offsetof(cu::GpuPair, new_uuid));
static_assert(offsetof(CUcheckpointLockArgs, timeoutMs) == offsetof(cu::LockArgs, timeout_ms));
static_assert(offsetof(CUcheckpointRestoreArgs, gpuPairs) == offsetof(cu::RestoreArgs, gpu_pairs));
static_assert(offsetof(CUcheckpointRestoreArgs, gpuPairsCount) ==
              offsetof(cu::RestoreArgs, gpu_pairs_count));

#define SAME_VALUE(theirs, ours) static_assert(static_cast<int>(theirs) == static_cast<int>(ours))
SAME_VALUE(CUDA_SUCCESS, cu::Result::success);
SAME_VALUE(CUDA_ERROR_INVALID_VALUE, cu::Result::invalid_value);
SAME_VALUE(CUDA_ERROR_OUT_OF_MEMORY, cu::Result::out_of_memory);
SAME_VALUE(CUDA_ERROR_NOT_INITIALIZED, cu::Result::not_initialized);
SAME_VALUE(CUDA_ERROR_NO_DEVICE, cu::Result::no_device);
SAME_VALUE(CUDA_ERROR_INVALID_DEVICE, cu::Result::invalid_device);
SAME_VALUE(CUDA_ERROR_INVALID_CONTEXT, cu::Result::invalid_context);
SAME_VALUE(CUDA_ERROR_OPERATING_SYSTEM, cu::Result::operating_system);
SAME_VALUE(CUDA_ERROR_INVALID_HANDLE, cu::Result::invalid_handle);
SAME_VALUE(CUDA_ERROR_ILLEGAL_STATE, cu::Result::illegal_state);
SAME_VALUE(CUDA_ERROR_NOT_FOUND, cu::Result::not_found);
SAME_VALUE(CUDA_ERROR_NOT_READY, cu::Result::not_ready);
SAME_VALUE(CUDA_ERROR_NOT_PERMITTED, cu::Result::not_permitted);
SAME_VALUE(CUDA_ERROR_NOT_SUPPORTED, cu::Result::not_supported);
SAME_VALUE(CUDA_ERROR_SYSTEM_DRIVER_MISMATCH, cu::Result::system_driver_mismatch);
SAME_VALUE(CUDA_ERROR_UNKNOWN, cu::Result::unknown);
SAME_VALUE(CU_PROCESS_STATE_RUNNING, cu::ProcessState::running);
SAME_VALUE(CU_PROCESS_STATE_LOCKED, cu::ProcessState::locked);
SAME_VALUE(CU_PROCESS_STATE_CHECKPOINTED, cu::ProcessState::checkpointed);
SAME_VALUE(CU_PROCESS_STATE_FAILED, cu::ProcessState::failed);
SAME_VALUE(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, cu::Attribute::multiprocessor_count);
SAME_VALUE(CU_DEVICE_ATTRIBUTE_INTEGRATED, cu::Attribute::integrated);
SAME_VALUE(CU_DEVICE_ATTRIBUTE_PCI_BUS_ID, cu::Attribute::pci_bus_id);
SAME_VALUE(CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID, cu::Attribute::pci_device_id);
SAME_VALUE(CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, cu::Attribute::unified_addressing);
SAME_VALUE(CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID, cu::Attribute::pci_domain_id);
SAME_VALUE(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, cu::Attribute::compute_capability_major);
SAME_VALUE(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, cu::Attribute::compute_capability_minor);

}  // namespace
