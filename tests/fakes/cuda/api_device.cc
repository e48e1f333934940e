// SPDX-License-Identifier: Apache-2.0
//
// Exported functions: initialisation, versions, devices, contexts, streams.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <string_view>

#include "tests/fakes/cuda/driver_state.h"
#include "tests/fakes/cuda/export.h"

namespace icebox::cu {
namespace {

using sim::driver;
using sim::DriverState;

void show_all_gpus(DriverState& self) {
  self.visible_count = self.host.gpu_count;
  for (int i = 0; i < self.host.gpu_count; ++i) self.visible[i] = i;
}

/// The GPU that one item of CUDA_VISIBLE_DEVICES names, by index or UUID; -1 if none.
int named_gpu(const DriverState& self, std::string_view item) {
  Uuid uuid{};
  if (sim::parse_uuid(item, uuid)) {
    for (int i = 0; i < self.host.gpu_count; ++i)
      if (self.host.gpus[i].uuid == uuid) return i;
    return -1;
  }
  char* end = nullptr;
  const std::string text(item);
  const long index = std::strtol(text.c_str(), &end, 10);
  return !text.empty() && *end == '\0' && index >= 0 && index < self.host.gpu_count
             ? static_cast<int>(index)
             : -1;
}

/// Like the real driver, stops at the first item that names no GPU.
void apply_visible_devices(DriverState& self) {
  const char* variable = std::getenv("CUDA_VISIBLE_DEVICES");
  if (variable == nullptr) return show_all_gpus(self);
  self.visible_count = 0;
  std::string_view rest = variable;
  while (!rest.empty() && self.visible_count < sim::kMaxGpus) {
    const auto comma = rest.find(',');
    const int gpu = named_gpu(self, rest.substr(0, comma));
    if (gpu < 0) return;
    self.visible[self.visible_count++] = gpu;
    rest.remove_prefix(comma == std::string_view::npos ? rest.size() : comma + 1);
  }
}

const sim::Gpu* gpu_of(Device device) {
  const DriverState& self = driver();
  return device >= 0 && device < self.visible_count ? &self.host.gpus[self.visible[device]]
                                                    : nullptr;
}

Result copy_uuid(Uuid* uuid, Device device) {
  ICEBOX_SIM_CALL();
  const sim::Gpu* gpu = gpu_of(device);
  if (uuid == nullptr) return Result::invalid_value;
  if (gpu == nullptr) return Result::invalid_device;
  *uuid = gpu->uuid;
  return Result::success;
}

/// The context objects: one primary per GPU, then those that applications create.
ContextObject& primary_context(int gpu) { return driver().contexts[gpu]; }

ContextObject* unused_context() {
  for (int i = sim::kMaxGpus; i < sim::kMaxContexts; ++i)
    if (driver().contexts[i].references == 0) return &driver().contexts[i];
  return nullptr;
}

bool is_context(Context context) {
  const auto* first = driver().contexts;
  return context >= first && context < first + sim::kMaxContexts && context->references > 0;
}

Result create_context(Context* context, Device device) {
  ICEBOX_SIM_CALL();
  if (context == nullptr) return Result::invalid_value;
  if (gpu_of(device) == nullptr) return Result::invalid_device;
  DriverState& self = driver();
  const std::lock_guard guard(self.lock);
  ContextObject* made = unused_context();
  if (made == nullptr) return Result::out_of_memory;
  made->gpu = self.visible[device];
  made->device = device;
  made->primary = false;
  const Result result = sim::add_context(*made);
  if (result != Result::success) return result;
  sim::set_current_context(made);
  *context = made;
  return Result::success;
}

}  // namespace

ICEBOX_SIM_EXPORT Result cuInit(unsigned int flags) {
  DriverState& self = driver();
  const std::lock_guard guard(self.lock);
  if (flags != 0) return Result::invalid_value;
  if (self.initialized) return self.pid == ::getpid() ? Result::success : Result::not_initialized;
  if (const std::string error = sim::load_host(self.host); !error.empty()) {
    std::fprintf(stderr, "simulated CUDA driver: %s\n", error.c_str());
    return Result::unknown;
  }
  apply_visible_devices(self);
  if (self.visible_count == 0 || !sim::open_device()) return Result::no_device;
  sim::mailbox().usage_count = static_cast<std::uint32_t>(self.host.gpu_count);
  for (int i = 0; i < self.host.gpu_count; ++i)
    sim::mailbox().usage[i].uuid = self.host.gpus[i].uuid;
  if (!sim::start_restore_thread()) return Result::operating_system;
  self.pid = ::getpid();
  self.initialized = true;
  return Result::success;
}

ICEBOX_SIM_EXPORT Result cuDriverGetVersion(int* version) {
  if (version == nullptr) return Result::invalid_value;
  sim::Host host;
  if (const std::string error = sim::load_host(host); !error.empty()) {
    std::fprintf(stderr, "simulated CUDA driver: %s\n", error.c_str());
    return Result::unknown;
  }
  *version = host.cuda_version;
  return Result::success;
}

ICEBOX_SIM_EXPORT Result cuDeviceGetCount(int* count) {
  ICEBOX_SIM_CALL();
  if (count == nullptr) return Result::invalid_value;
  *count = driver().visible_count;
  return Result::success;
}

ICEBOX_SIM_EXPORT Result cuDeviceGet(Device* device, int ordinal) {
  ICEBOX_SIM_CALL();
  if (device == nullptr) return Result::invalid_value;
  if (gpu_of(ordinal) == nullptr) return Result::invalid_device;
  *device = ordinal;
  return Result::success;
}

ICEBOX_SIM_EXPORT Result cuDeviceGetName(char* name, int length, Device device) {
  ICEBOX_SIM_CALL();
  const sim::Gpu* gpu = gpu_of(device);
  if (name == nullptr || length <= 0) return Result::invalid_value;
  if (gpu == nullptr) return Result::invalid_device;
  std::snprintf(name, static_cast<std::size_t>(length), "%s", gpu->name);
  return Result::success;
}

ICEBOX_SIM_EXPORT Result cuDeviceGetUuid(Uuid* uuid, Device device) {
  return copy_uuid(uuid, device);
}

ICEBOX_SIM_EXPORT Result cuDeviceGetUuid_v2(Uuid* uuid, Device device) {
  return copy_uuid(uuid, device);
}

ICEBOX_SIM_EXPORT Result cuDeviceTotalMem_v2(std::size_t* bytes, Device device) {
  ICEBOX_SIM_CALL();
  const sim::Gpu* gpu = gpu_of(device);
  if (bytes == nullptr) return Result::invalid_value;
  if (gpu == nullptr) return Result::invalid_device;
  *bytes = gpu->memory_bytes;
  return Result::success;
}

ICEBOX_SIM_EXPORT Result cuDeviceGetAttribute(int* value, Attribute attribute, Device device) {
  ICEBOX_SIM_CALL();
  const sim::Gpu* gpu = gpu_of(device);
  if (value == nullptr) return Result::invalid_value;
  if (gpu == nullptr) return Result::invalid_device;
  switch (attribute) {
    case Attribute::multiprocessor_count: *value = 1; return Result::success;
    case Attribute::integrated:
    case Attribute::pci_device_id:
    case Attribute::pci_domain_id: *value = 0; return Result::success;
    case Attribute::pci_bus_id: *value = driver().visible[device] + 1; return Result::success;
    case Attribute::unified_addressing: *value = 1; return Result::success;
    case Attribute::compute_capability_major: *value = gpu->compute_major; return Result::success;
    case Attribute::compute_capability_minor: *value = gpu->compute_minor; return Result::success;
  }
  return Result::invalid_value;
}

ICEBOX_SIM_EXPORT Result cuDevicePrimaryCtxRetain(Context* context, Device device) {
  ICEBOX_SIM_CALL();
  if (context == nullptr) return Result::invalid_value;
  if (gpu_of(device) == nullptr) return Result::invalid_device;
  DriverState& self = driver();
  const std::lock_guard guard(self.lock);
  ContextObject& primary = primary_context(self.visible[device]);
  primary.gpu = self.visible[device];
  primary.device = device;
  primary.primary = true;
  const Result result = sim::add_context(primary);
  if (result == Result::success) *context = &primary;
  return result;
}

ICEBOX_SIM_EXPORT Result cuDevicePrimaryCtxRelease_v2(Device device) {
  ICEBOX_SIM_CALL();
  if (gpu_of(device) == nullptr) return Result::invalid_device;
  DriverState& self = driver();
  const std::lock_guard guard(self.lock);
  ContextObject& primary = primary_context(self.visible[device]);
  if (primary.references == 0) return Result::invalid_context;
  sim::drop_context(primary);
  return Result::success;
}

ICEBOX_SIM_EXPORT Result cuCtxCreate_v2(Context* context, unsigned int, Device device) {
  return create_context(context, device);
}

ICEBOX_SIM_EXPORT Result cuCtxCreate_v4(Context* context, void*, unsigned int, Device device) {
  return create_context(context, device);
}

ICEBOX_SIM_EXPORT Result cuCtxDestroy_v2(Context context) {
  ICEBOX_SIM_CALL();
  const std::lock_guard guard(driver().lock);
  if (!is_context(context) || context->primary) return Result::invalid_context;
  sim::drop_context(*context);
  return Result::success;
}

ICEBOX_SIM_EXPORT Result cuCtxSetCurrent(Context context) {
  ICEBOX_SIM_CALL();
  if (context != nullptr && !is_context(context)) return Result::invalid_context;
  sim::set_current_context(context);
  return Result::success;
}

ICEBOX_SIM_EXPORT Result cuCtxGetCurrent(Context* context) {
  ICEBOX_SIM_CALL();
  if (context == nullptr) return Result::invalid_value;
  *context = sim::current_context();
  return Result::success;
}

ICEBOX_SIM_EXPORT Result cuCtxGetDevice(Device* device) {
  ICEBOX_SIM_CALL();
  const ContextObject* context = sim::current_context();
  if (device == nullptr) return Result::invalid_value;
  if (context == nullptr) return Result::invalid_context;
  *device = context->device;
  return Result::success;
}

ICEBOX_SIM_EXPORT Result cuCtxSynchronize() {
  ICEBOX_SIM_CALL();
  return sim::current_context() == nullptr ? Result::invalid_context : Result::success;
}

ICEBOX_SIM_EXPORT Result cuStreamCreate(Stream* stream, unsigned int) {
  ICEBOX_SIM_CALL();
  if (stream == nullptr) return Result::invalid_value;
  if (sim::current_context() == nullptr) return Result::invalid_context;
  *stream = new (std::nothrow) StreamObject{sim::current_context()};
  return *stream == nullptr ? Result::out_of_memory : Result::success;
}

ICEBOX_SIM_EXPORT Result cuStreamDestroy_v2(Stream stream) {
  ICEBOX_SIM_CALL();
  if (stream == nullptr) return Result::invalid_handle;
  delete stream;
  return Result::success;
}

ICEBOX_SIM_EXPORT Result cuStreamSynchronize(Stream) {
  ICEBOX_SIM_CALL();
  return Result::success;
}

// Runs the function before it returns, and counts as submitted work meanwhile: Lock waits for it.
ICEBOX_SIM_EXPORT Result cuLaunchHostFunc(Stream, void (*function)(void*), void* data) {
  ICEBOX_SIM_CALL();
  if (function == nullptr) return Result::invalid_value;
  if (sim::current_context() == nullptr) return Result::invalid_context;
  function(data);
  return Result::success;
}

}  // namespace icebox::cu
