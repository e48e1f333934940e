// SPDX-License-Identifier: Apache-2.0
#include "tests/fakes/cuda/restore_plan.h"

#include <cstring>

namespace icebox::sim {
namespace {

const HostGpu* find_host_gpu(const Request& request, const cu::Uuid& uuid) {
  for (std::uint32_t i = 0; i < request.host_gpu_count; ++i)
    if (request.host_gpus[i].uuid == uuid) return &request.host_gpus[i];
  return nullptr;
}

bool is_new_uuid_of_earlier_pair(const Request& request, std::uint32_t pair) {
  for (std::uint32_t i = 0; i < pair; ++i)
    if (request.pairs[i].new_uuid == request.pairs[pair].new_uuid) return true;
  return false;
}

/// The index of the one pair whose old GPU is `uuid`; -1 if there is none or more than one.
int only_pair_of(const Request& request, const cu::Uuid& uuid) {
  int found = -1;
  for (std::uint32_t i = 0; i < request.pair_count; ++i) {
    if (request.pairs[i].old_uuid != uuid) continue;
    if (found >= 0) return -1;
    found = static_cast<int>(i);
  }
  return found;
}

cu::Result apply_pairs(const Gpu* gpus, int gpu_count, const Request& request, cu::Uuid* target) {
  if (request.pair_count != static_cast<std::uint32_t>(gpu_count)) return cu::Result::invalid_value;
  for (int i = 0; i < gpu_count; ++i) {
    const int pair = only_pair_of(request, gpus[i].uuid);
    if (pair < 0 || is_new_uuid_of_earlier_pair(request, static_cast<std::uint32_t>(pair)))
      return cu::Result::invalid_value;
    target[i] = request.pairs[pair].new_uuid;
    const HostGpu* host = find_host_gpu(request, target[i]);
    if (host == nullptr || std::strncmp(host->name, gpus[i].name, sizeof host->name) != 0)
      return cu::Result::invalid_value;
  }
  return cu::Result::success;
}

}  // namespace

cu::Result plan_restore(const Gpu* gpus, int gpu_count, const Usage* usage, const Request& request,
                        cu::Uuid* target) {
  for (int i = 0; i < gpu_count; ++i) target[i] = gpus[i].uuid;
  if (request.pair_count > 0) {
    const cu::Result result = apply_pairs(gpus, gpu_count, request, target);
    if (result != cu::Result::success) return result;
  }
  for (int i = 0; i < gpu_count; ++i) {
    if (usage[i].bytes == 0) continue;
    const HostGpu* host = find_host_gpu(request, target[i]);
    if (host == nullptr) return cu::Result::invalid_device;
    if (host->free_bytes < usage[i].bytes) return cu::Result::out_of_memory;
  }
  return cu::Result::success;
}

}  // namespace icebox::sim
