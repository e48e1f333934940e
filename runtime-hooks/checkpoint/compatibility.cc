// SPDX-License-Identifier: Apache-2.0
#include "runtime-hooks/checkpoint/compatibility.h"

#include <sys/utsname.h>

#include <algorithm>
#include <array>
#include <map>

#include "oci/base/file.h"
#include "oci/base/strings.h"

namespace icebox::engine {
namespace {

// Extensions that a program finds with CPUID and then uses directly.
constexpr std::array kFeaturePrefixes = {
    std::string_view("sse"),       std::string_view("ssse"),       std::string_view("pni"),
    std::string_view("avx"),       std::string_view("amx"),        std::string_view("aes"),
    std::string_view("vaes"),      std::string_view("pclmul"),     std::string_view("vpclmul"),
    std::string_view("bmi"),       std::string_view("fma"),        std::string_view("f16c"),
    std::string_view("sha_ni"),    std::string_view("sha512"),     std::string_view("gfni"),
    std::string_view("popcnt"),    std::string_view("movbe"),      std::string_view("adx"),
    std::string_view("rdrand"),    std::string_view("rdseed"),     std::string_view("xsave"),
    std::string_view("abm"),       std::string_view("lzcnt"),      std::string_view("cx16"),
    std::string_view("fsgsbase"),  std::string_view("clflushopt"), std::string_view("clwb"),
    std::string_view("movdir"),    std::string_view("rdpid"),      std::string_view("pku"),
    std::string_view("serialize"), std::string_view("waitpkg"),    std::string_view("rtm"),
    std::string_view("prefetchw"), std::string_view("sm3"),        std::string_view("sm4"),
};

const CheckpointGpu* find_gpu(const CheckpointInfo& info, const std::string& uuid) {
  const auto found = std::find_if(info.gpus.begin(), info.gpus.end(),
                                  [&](const auto& gpu) { return gpu.uuid == uuid; });
  return found == info.gpus.end() ? nullptr : &*found;
}

const cuda::Gpu* find_gpu(const cuda::DriverInfo& driver, const std::string& uuid) {
  const auto found = std::find_if(driver.gpus.begin(), driver.gpus.end(),
                                  [&](const auto& gpu) { return gpu.uuid == uuid; });
  return found == driver.gpus.end() ? nullptr : &*found;
}

// Device memory that the checkpoint needs, by the UUID it had.
std::map<std::string, std::uint64_t> needed_bytes(const CheckpointInfo& info) {
  std::map<std::string, std::uint64_t> needed;
  for (const auto& process : info.processes) {
    for (const auto& [uuid, bytes] : process.gpu_bytes_by_uuid) needed[uuid] += bytes;
  }
  return needed;
}

void compare_gpus(const CheckpointInfo& info, const cuda::DriverInfo& driver,
                  std::vector<std::string>& reasons) {
  if (driver.driver_version != info.driver_version) {
    reasons.push_back("the NVIDIA driver here is " + driver.driver_version +
                      ", the checkpoint was made with " + info.driver_version);
  }
  const auto map = plan_gpu_map(info, driver);
  if (!map.ok()) {
    reasons.push_back(map.error().message);
    return;
  }
  for (const auto& [old_uuid, bytes] : needed_bytes(info)) {
    std::string uuid = old_uuid;
    for (const auto& pair : *map) {
      if (pair.old_uuid == old_uuid) uuid = pair.new_uuid;
    }
    const CheckpointGpu* then = find_gpu(info, old_uuid);
    const cuda::Gpu* now = find_gpu(driver, uuid);
    if (then == nullptr || now == nullptr) continue;
    if (then->model != now->name) {
      reasons.push_back("GPU " + uuid + " here is a " + now->name +
                        ", the checkpoint was made on a " + then->model);
    }
    if (now->total_bytes < then->memory_bytes && now->total_bytes < bytes) {
      reasons.push_back("GPU " + uuid + " here has " + human_bytes(now->total_bytes) +
                        " of memory, the checkpoint needs " + human_bytes(bytes));
    } else if (now->free_bytes < bytes) {
      reasons.push_back("GPU " + uuid + " has " + human_bytes(now->free_bytes) +
                        " free, the checkpoint needs " + human_bytes(bytes) +
                        ": free memory there first");
    }
  }
}

}  // namespace

std::vector<std::string> instruction_features(std::string_view cpuinfo) {
  std::vector<std::string> features;
  for (const auto line : split(cpuinfo, '\n', SplitEmpty::drop)) {
    const auto colon = line.find(':');
    if (colon == std::string_view::npos || trim(line.substr(0, colon)) != "flags") continue;
    for (const auto flag : split(line.substr(colon + 1), ' ', SplitEmpty::drop)) {
      const bool wanted =
          std::any_of(kFeaturePrefixes.begin(), kFeaturePrefixes.end(),
                      [&](std::string_view prefix) { return flag.starts_with(prefix); });
      if (wanted) features.emplace_back(flag);
    }
    break;  // the same on every processor
  }
  std::sort(features.begin(), features.end());
  return features;
}

Result<HostFacts> read_host_facts() {
  HostFacts facts;
  struct utsname name = {};
  if (::uname(&name) != 0) return errno_error("uname");
  facts.kernel = name.release;
  facts.architecture = name.machine;
  constexpr std::size_t kMaxCpuinfo = 64 * 1024 * 1024;
  facts.cpu_features = instruction_features(ICEBOX_TRY(read_file("/proc/cpuinfo", kMaxCpuinfo)));
  return facts;
}

std::vector<std::string> incompatibilities(const CheckpointInfo& info, const HostFacts& host) {
  std::vector<std::string> reasons;
  if (info.architecture != host.architecture) {
    reasons.push_back("this host is " + host.architecture + ", the checkpoint was made on " +
                      info.architecture);
  }
  std::vector<std::string> missing;
  std::set_difference(info.cpu_features.begin(), info.cpu_features.end(), host.cpu_features.begin(),
                      host.cpu_features.end(), std::back_inserter(missing));
  if (!missing.empty()) {
    reasons.push_back("this CPU lacks " + join(missing, ", ") +
                      ", which the checkpointed processes may use");
  }
  const auto dumped_with = criu::parse_version(info.criu_version);
  if (!dumped_with.ok()) {
    reasons.push_back("the CRIU version of the checkpoint cannot be read ('" + info.criu_version +
                      "')");
  } else if (host.criu < *dumped_with) {
    reasons.push_back("CRIU here is " + criu::to_string(host.criu) +
                      ", the checkpoint was made with " + info.criu_version +
                      ": install that or a later one");
  }
  if (!info.processes.empty() && host.driver) compare_gpus(info, *host.driver, reasons);
  return reasons;
}

Result<std::vector<cuda::GpuPair>> plan_gpu_map(const CheckpointInfo& info,
                                                const cuda::DriverInfo& driver) {
  const auto needed = needed_bytes(info);
  const bool all_here = std::all_of(needed.begin(), needed.end(), [&](const auto& entry) {
    return find_gpu(driver, entry.first) != nullptr;
  });
  if (all_here) return std::vector<cuda::GpuPair>();
  if (driver.gpus.size() != info.gpus.size()) {
    return make_error(Code::failed_precondition,
                      "this host has " + std::to_string(driver.gpus.size()) +
                          " GPUs, the host of the checkpoint had " +
                          std::to_string(info.gpus.size()) +
                          ": the driver moves GPU state only between hosts with as many");
  }
  std::vector<cuda::GpuPair> map;
  for (std::size_t i = 0; i < info.gpus.size(); ++i)
    map.push_back({info.gpus[i].uuid, driver.gpus[i].uuid});
  return map;
}

}  // namespace icebox::engine
