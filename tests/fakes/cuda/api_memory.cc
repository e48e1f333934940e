// SPDX-License-Identifier: Apache-2.0
//
// Exported functions: device and pinned host memory.
#include <sys/mman.h>

#include <cstdlib>
#include <cstring>
#include <mutex>

#include "tests/fakes/cuda/driver_state.h"
#include "tests/fakes/cuda/export.h"
#include "tests/fakes/cuda/peer.h"

namespace icebox::cu {
namespace {

using sim::driver;

char* device_bytes(DevicePtr address) { return reinterpret_cast<char*>(address); }

Result check_range(DevicePtr address, std::size_t bytes) {
  if (sim::current_context() == nullptr) return Result::invalid_context;
  return sim::is_device_range(address, bytes) ? Result::success : Result::invalid_value;
}

}  // namespace

ICEBOX_SIM_EXPORT Result cuMemGetInfo_v2(std::size_t* free, std::size_t* total) {
  ICEBOX_SIM_CALL();
  const ContextObject* context = sim::current_context();
  if (free == nullptr || total == nullptr) return Result::invalid_value;
  if (context == nullptr) return Result::invalid_context;
  const sim::Gpu& gpu = driver().host.gpus[context->gpu];
  const std::uint64_t used = sim::used_bytes(sim::all_usage(), gpu.uuid, 0);
  *total = gpu.memory_bytes;
  *free = used < gpu.memory_bytes ? gpu.memory_bytes - used : 0;
  return Result::success;
}

ICEBOX_SIM_EXPORT Result cuMemAlloc_v2(DevicePtr* address, std::size_t bytes) {
  ICEBOX_SIM_CALL();
  if (address == nullptr) return Result::invalid_value;
  const std::lock_guard guard(driver().lock);
  ContextObject* context = sim::current_context();
  if (context == nullptr) return Result::invalid_context;
  std::uint64_t made = 0;
  const Result result = sim::allocate(*context, bytes, false, made);
  if (result == Result::success) *address = made;
  return result;
}

ICEBOX_SIM_EXPORT Result cuMemFree_v2(DevicePtr address) {
  ICEBOX_SIM_CALL();
  if (address == 0) return Result::success;
  const std::lock_guard guard(driver().lock);
  return sim::release(address);
}

ICEBOX_SIM_EXPORT Result cuMemHostAlloc(void** address, std::size_t bytes, unsigned int) {
  ICEBOX_SIM_CALL();
  if (address == nullptr || bytes == 0) return Result::invalid_value;
  if (sim::current_context() == nullptr) return Result::invalid_context;
  return ::posix_memalign(address, 4096, bytes) == 0 ? Result::success : Result::out_of_memory;
}

ICEBOX_SIM_EXPORT Result cuMemFreeHost(void* address) {
  ICEBOX_SIM_CALL();
  std::free(address);
  return Result::success;
}

ICEBOX_SIM_EXPORT Result cuMemcpyHtoD_v2(DevicePtr to, const void* from, std::size_t bytes) {
  ICEBOX_SIM_CALL();
  if (const Result range = check_range(to, bytes); range != Result::success) return range;
  std::memcpy(device_bytes(to), from, bytes);
  return Result::success;
}

ICEBOX_SIM_EXPORT Result cuMemcpyDtoH_v2(void* to, DevicePtr from, std::size_t bytes) {
  ICEBOX_SIM_CALL();
  if (const Result range = check_range(from, bytes); range != Result::success) return range;
  std::memcpy(to, device_bytes(from), bytes);
  return Result::success;
}

ICEBOX_SIM_EXPORT Result cuMemcpyDtoD_v2(DevicePtr to, DevicePtr from, std::size_t bytes) {
  ICEBOX_SIM_CALL();
  if (const Result range = check_range(to, bytes); range != Result::success) return range;
  if (const Result range = check_range(from, bytes); range != Result::success) return range;
  std::memmove(device_bytes(to), device_bytes(from), bytes);
  return Result::success;
}

ICEBOX_SIM_EXPORT Result cuMemsetD8_v2(DevicePtr to, unsigned char value, std::size_t count) {
  ICEBOX_SIM_CALL();
  if (const Result range = check_range(to, count); range != Result::success) return range;
  std::memset(device_bytes(to), value, count);
  return Result::success;
}

ICEBOX_SIM_EXPORT Result cuMemsetD32_v2(DevicePtr to, unsigned int value, std::size_t count) {
  ICEBOX_SIM_CALL();
  if (to % sizeof value != 0 || count > SIZE_MAX / sizeof value) return Result::invalid_value;
  if (const Result range = check_range(to, count * sizeof value); range != Result::success)
    return range;
  auto* words = reinterpret_cast<unsigned int*>(device_bytes(to));
  for (std::size_t i = 0; i < count; ++i) words[i] = value;
  return Result::success;
}

}  // namespace icebox::cu
