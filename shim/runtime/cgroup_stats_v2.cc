// SPDX-License-Identifier: Apache-2.0
#include <cstdlib>
#include <string>
#include <string_view>

#include "cgroups/v2.pb.h"
#include "oci/base/file.h"
#include "oci/base/strings.h"
#include "shim/runtime/cgroup_files.h"
#include "shim/runtime/cgroup_stats.h"

namespace icebox::shim {
namespace {

using io::containerd::cgroups::v2::CPUStat;
using io::containerd::cgroups::v2::IOStat;
using io::containerd::cgroups::v2::MemoryStat;
using io::containerd::cgroups::v2::Metrics;
using io::containerd::cgroups::v2::PSIData;
using io::containerd::cgroups::v2::PSIStats;

double number_in(const CgroupRow& row, std::string_view key) {
  const auto found = row.values.find(key);
  return found == row.values.end() ? 0 : std::strtod(found->second.c_str(), nullptr);
}

std::uint64_t count_in(const CgroupRow& row, std::string_view key) {
  const auto found = row.values.find(key);
  return found == row.values.end() ? 0 : parse_u64(found->second).value_or(0);
}

// False, and nothing set, when the kernel keeps no pressure figures.
bool fill_pressure(const std::string& path, PSIStats& stats) {
  const std::string text = read_cgroup_text(path);
  if (text.empty()) return false;
  for (const CgroupRow& row : parse_cgroup_rows(text)) {
    PSIData& data = row.name == "full" ? *stats.mutable_full() : *stats.mutable_some();
    data.set_avg10(number_in(row, "avg10"));
    data.set_avg60(number_in(row, "avg60"));
    data.set_avg300(number_in(row, "avg300"));
    data.set_total(count_in(row, "total"));
  }
  return true;
}

void fill_cpu(const std::string& directory, CPUStat& cpu) {
  const CgroupTable stat = parse_cgroup_table(read_cgroup_text(directory + "/cpu.stat"));
  cpu.set_usage_usec(value_in(stat, "usage_usec"));
  cpu.set_user_usec(value_in(stat, "user_usec"));
  cpu.set_system_usec(value_in(stat, "system_usec"));
  cpu.set_nr_periods(value_in(stat, "nr_periods"));
  cpu.set_nr_throttled(value_in(stat, "nr_throttled"));
  cpu.set_throttled_usec(value_in(stat, "throttled_usec"));
  cpu.set_nr_bursts(value_in(stat, "nr_bursts"));
  cpu.set_burst_usec(value_in(stat, "burst_usec"));
  PSIStats pressure;
  if (fill_pressure(directory + "/cpu.pressure", pressure)) *cpu.mutable_psi() = pressure;
}

struct MemoryField {
  std::string_view key;
  void (MemoryStat::*set)(std::uint64_t);
};

constexpr MemoryField kMemoryFields[] = {
    {"anon", &MemoryStat::set_anon},
    {"file", &MemoryStat::set_file},
    {"kernel_stack", &MemoryStat::set_kernel_stack},
    {"slab", &MemoryStat::set_slab},
    {"sock", &MemoryStat::set_sock},
    {"shmem", &MemoryStat::set_shmem},
    {"file_mapped", &MemoryStat::set_file_mapped},
    {"file_dirty", &MemoryStat::set_file_dirty},
    {"file_writeback", &MemoryStat::set_file_writeback},
    {"anon_thp", &MemoryStat::set_anon_thp},
    {"inactive_anon", &MemoryStat::set_inactive_anon},
    {"active_anon", &MemoryStat::set_active_anon},
    {"inactive_file", &MemoryStat::set_inactive_file},
    {"active_file", &MemoryStat::set_active_file},
    {"unevictable", &MemoryStat::set_unevictable},
    {"slab_reclaimable", &MemoryStat::set_slab_reclaimable},
    {"slab_unreclaimable", &MemoryStat::set_slab_unreclaimable},
    {"pgfault", &MemoryStat::set_pgfault},
    {"pgmajfault", &MemoryStat::set_pgmajfault},
    {"workingset_refault", &MemoryStat::set_workingset_refault},
    {"workingset_activate", &MemoryStat::set_workingset_activate},
    {"workingset_nodereclaim", &MemoryStat::set_workingset_nodereclaim},
    {"pgrefill", &MemoryStat::set_pgrefill},
    {"pgscan", &MemoryStat::set_pgscan},
    {"pgsteal", &MemoryStat::set_pgsteal},
    {"pgactivate", &MemoryStat::set_pgactivate},
    {"pgdeactivate", &MemoryStat::set_pgdeactivate},
    {"pglazyfree", &MemoryStat::set_pglazyfree},
    {"pglazyfreed", &MemoryStat::set_pglazyfreed},
    {"thp_fault_alloc", &MemoryStat::set_thp_fault_alloc},
    {"thp_collapse_alloc", &MemoryStat::set_thp_collapse_alloc},
    {"workingset_refault_anon", &MemoryStat::set_workingset_refault_anon},
    {"workingset_refault_file", &MemoryStat::set_workingset_refault_file},
    {"workingset_activate_anon", &MemoryStat::set_workingset_activate_anon},
    {"workingset_activate_file", &MemoryStat::set_workingset_activate_file},
};

void fill_memory(const std::string& directory, MemoryStat& memory) {
  const std::string prefix = directory + "/memory.";
  const CgroupTable stat = parse_cgroup_table(read_cgroup_text(prefix + "stat"));
  for (const MemoryField& field : kMemoryFields) (memory.*field.set)(value_in(stat, field.key));
  memory.set_usage(read_cgroup_value(prefix + "current"));
  memory.set_usage_limit(read_cgroup_value(prefix + "max"));
  memory.set_max_usage(read_cgroup_value(prefix + "peak"));
  memory.set_swap_usage(read_cgroup_value(prefix + "swap.current"));
  memory.set_swap_limit(read_cgroup_value(prefix + "swap.max"));
  memory.set_swap_max_usage(read_cgroup_value(prefix + "swap.peak"));
  PSIStats pressure;
  if (fill_pressure(prefix + "pressure", pressure)) *memory.mutable_psi() = pressure;
}

void fill_io(const std::string& directory, IOStat& io) {
  for (const CgroupRow& row : parse_cgroup_rows(read_cgroup_text(directory + "/io.stat"))) {
    const std::vector<std::string_view> device = split(row.name, ':', SplitEmpty::keep);
    if (device.size() != 2) continue;
    auto& entry = *io.add_usage();
    entry.set_major(parse_u64(device[0]).value_or(0));
    entry.set_minor(parse_u64(device[1]).value_or(0));
    entry.set_rbytes(count_in(row, "rbytes"));
    entry.set_wbytes(count_in(row, "wbytes"));
    entry.set_rios(count_in(row, "rios"));
    entry.set_wios(count_in(row, "wios"));
  }
  PSIStats pressure;
  if (fill_pressure(directory + "/io.pressure", pressure)) *io.mutable_psi() = pressure;
}

void fill_memory_events(const std::string& directory, Metrics& metrics) {
  const CgroupTable events = parse_cgroup_table(read_cgroup_text(directory + "/memory.events"));
  auto& counts = *metrics.mutable_memory_events();
  counts.set_low(value_in(events, "low"));
  counts.set_high(value_in(events, "high"));
  counts.set_max(value_in(events, "max"));
  counts.set_oom(value_in(events, "oom"));
  counts.set_oom_kill(value_in(events, "oom_kill"));
  counts.set_oom_group_kill(value_in(events, "oom_group_kill"));
}

void fill_hugetlb(const std::string& directory, Metrics& metrics) {
  for (const std::string& size : hugetlb_sizes(directory, ".max")) {
    const std::string prefix = directory + "/hugetlb." + size + ".";
    auto& entry = *metrics.add_hugetlb();
    entry.set_pagesize(size);
    entry.set_current(read_cgroup_value(prefix + "current"));
    entry.set_max(read_cgroup_value(prefix + "max"));
    const CgroupTable events = parse_cgroup_table(read_cgroup_text(prefix + "events"));
    entry.set_failcnt(value_in(events, "max"));
  }
}

}  // namespace

std::string collect_stats_v2(const CgroupPaths& paths) {
  Metrics metrics;
  const std::string& directory = paths.v2;
  metrics.mutable_pids()->set_current(read_cgroup_value(directory + "/pids.current"));
  metrics.mutable_pids()->set_limit(read_cgroup_value(directory + "/pids.max"));
  fill_cpu(directory, *metrics.mutable_cpu());
  fill_memory(directory, *metrics.mutable_memory());
  fill_io(directory, *metrics.mutable_io());
  fill_memory_events(directory, metrics);
  fill_hugetlb(directory, metrics);
  return metrics.SerializeAsString();
}

Result<google::protobuf::Any> collect_stats(const CgroupPaths& paths) {
  std::string probe = paths.v2;
  if (!paths.unified) {
    probe = paths.controller("memory");
    if (probe.empty() && !paths.v1.empty()) probe = paths.v1.begin()->second;
  }
  if (probe.empty() || !exists(probe)) {
    return make_error(Code::not_found, "the container's cgroup does not exist (any more)");
  }
  google::protobuf::Any any;
  any.set_type_url(paths.unified ? "io.containerd.cgroups.v2.Metrics"
                                 : "io.containerd.cgroups.v1.Metrics");
  any.set_value(paths.unified ? collect_stats_v2(paths) : collect_stats_v1(paths));
  return any;
}

}  // namespace icebox::shim
