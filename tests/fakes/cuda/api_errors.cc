// SPDX-License-Identifier: Apache-2.0
//
// Exported functions: error texts and symbol look-up.
#include <cstring>

#include "tests/fakes/cuda/driver_state.h"
#include "tests/fakes/cuda/export.h"

namespace icebox::cu {
namespace {

struct ErrorText {
  Result code;
  const char* name;
  const char* text;
};

// Texts as driver 580 gives them.
constexpr ErrorText kErrors[] = {
    {Result::success, "CUDA_SUCCESS", "no error"},
    {Result::invalid_value, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {Result::out_of_memory, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {Result::not_initialized, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {Result::no_device, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {Result::invalid_device, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {Result::invalid_context, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {Result::operating_system, "CUDA_ERROR_OPERATING_SYSTEM",
     "OS call failed or operation not supported on this OS"},
    {Result::invalid_handle, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {Result::illegal_state, "CUDA_ERROR_ILLEGAL_STATE",
     "the operation cannot be performed in the present state"},
    {Result::not_found, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {Result::not_ready, "CUDA_ERROR_NOT_READY", "device not ready"},
    {Result::not_permitted, "CUDA_ERROR_NOT_PERMITTED", "operation not permitted"},
    {Result::not_supported, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
    {Result::system_driver_mismatch, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
     "system has unsupported display driver / cuda driver combination"},
    {Result::unknown, "CUDA_ERROR_UNKNOWN", "unknown error"},
};

const ErrorText* find_error(Result error) {
  for (const ErrorText& each : kErrors)
    if (each.code == error) return &each;
  return nullptr;
}

struct Symbol {
  const char* name;  // without a version suffix, as cuGetProcAddress takes it
  void* function;
};

template <typename Function>
void* address_of(Function* function) {
  return reinterpret_cast<void*>(function);
}

#define PLAIN(name) \
  Symbol { #name, address_of(name) }
#define VERSIONED(name, version) \
  Symbol { #name, address_of(name##_##version) }
const Symbol kSymbols[] = {
    PLAIN(cuInit),
    PLAIN(cuDriverGetVersion),
    PLAIN(cuGetErrorName),
    PLAIN(cuGetErrorString),
    VERSIONED(cuGetProcAddress, v2),
    PLAIN(cuDeviceGetCount),
    PLAIN(cuDeviceGet),
    PLAIN(cuDeviceGetName),
    VERSIONED(cuDeviceGetUuid, v2),
    VERSIONED(cuDeviceTotalMem, v2),
    PLAIN(cuDeviceGetAttribute),
    PLAIN(cuDevicePrimaryCtxRetain),
    VERSIONED(cuDevicePrimaryCtxRelease, v2),
    VERSIONED(cuCtxCreate, v4),
    VERSIONED(cuCtxDestroy, v2),
    PLAIN(cuCtxSetCurrent),
    PLAIN(cuCtxGetCurrent),
    PLAIN(cuCtxGetDevice),
    PLAIN(cuCtxSynchronize),
    VERSIONED(cuMemGetInfo, v2),
    VERSIONED(cuMemAlloc, v2),
    VERSIONED(cuMemFree, v2),
    PLAIN(cuMemHostAlloc),
    PLAIN(cuMemFreeHost),
    VERSIONED(cuMemcpyHtoD, v2),
    VERSIONED(cuMemcpyDtoH, v2),
    VERSIONED(cuMemcpyDtoD, v2),
    VERSIONED(cuMemsetD8, v2),
    VERSIONED(cuMemsetD32, v2),
    PLAIN(cuStreamCreate),
    VERSIONED(cuStreamDestroy, v2),
    PLAIN(cuStreamSynchronize),
    PLAIN(cuLaunchHostFunc),
#ifndef ICEBOX_SIM_OLD
    PLAIN(cuCheckpointProcessGetRestoreThreadId),
    PLAIN(cuCheckpointProcessGetState),
    PLAIN(cuCheckpointProcessLock),
    PLAIN(cuCheckpointProcessCheckpoint),
    PLAIN(cuCheckpointProcessRestore),
    PLAIN(cuCheckpointProcessUnlock),
#endif
};
#undef PLAIN
#undef VERSIONED

}  // namespace

ICEBOX_SIM_EXPORT Result cuGetErrorName(Result error, const char** text) {
  const ErrorText* found = find_error(error);
  if (text == nullptr) return Result::invalid_value;
  *text = found == nullptr ? nullptr : found->name;
  return found == nullptr ? Result::invalid_value : Result::success;
}

ICEBOX_SIM_EXPORT Result cuGetErrorString(Result error, const char** text) {
  const ErrorText* found = find_error(error);
  if (text == nullptr) return Result::invalid_value;
  *text = found == nullptr ? nullptr : found->text;
  return found == nullptr ? Result::invalid_value : Result::success;
}

ICEBOX_SIM_EXPORT Result cuGetProcAddress_v2(const char* symbol, void** function, int,
                                             std::uint64_t, int* status) {
  if (symbol == nullptr || function == nullptr) return Result::invalid_value;
  *function = nullptr;
  for (const Symbol& each : kSymbols)
    if (std::strcmp(each.name, symbol) == 0) *function = each.function;
  // CU_GET_PROC_ADDRESS_SUCCESS and _SYMBOL_NOT_FOUND.
  if (status != nullptr) *status = *function != nullptr ? 0 : 1;
  return *function != nullptr ? Result::success : Result::not_found;
}

}  // namespace icebox::cu
