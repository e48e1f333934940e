// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <string>
#include <string_view>

#include "cgroups/v1.pb.h"
#include "oci/base/strings.h"
#include "shim/runtime/cgroup_files.h"
#include "shim/runtime/cgroup_stats.h"

namespace icebox::shim {
namespace {

using io::containerd::cgroups::v1::BlkIOEntry;
using io::containerd::cgroups::v1::BlkIOStat;
using io::containerd::cgroups::v1::CPUStat;
using io::containerd::cgroups::v1::MemoryEntry;
using io::containerd::cgroups::v1::MemoryStat;
using io::containerd::cgroups::v1::Metrics;

constexpr std::uint64_t kNanosPerSecond = 1'000'000'000;

void fill_cpu(const CgroupPaths& paths, CPUStat& cpu) {
  const std::string accounting = paths.controller("cpuacct");
  if (!accounting.empty()) {
    auto& usage = *cpu.mutable_usage();
    usage.set_total(read_cgroup_value(accounting + "/cpuacct.usage"));
    // cpuacct.stat counts in clock ticks (USER_HZ).
    const CgroupTable ticks = parse_cgroup_table(read_cgroup_text(accounting + "/cpuacct.stat"));
    const auto hertz = static_cast<std::uint64_t>(::sysconf(_SC_CLK_TCK));
    usage.set_user(value_in(ticks, "user") * kNanosPerSecond / hertz);
    usage.set_kernel(value_in(ticks, "system") * kNanosPerSecond / hertz);
    const std::string each = read_cgroup_text(accounting + "/cpuacct.usage_percpu");
    for (const std::string_view word : split(trim(each), ' ', SplitEmpty::drop)) {
      usage.add_per_cpu(parse_u64(word).value_or(0));
    }
  }
  const std::string scheduler = paths.controller("cpu");
  if (!scheduler.empty()) {
    const CgroupTable stat = parse_cgroup_table(read_cgroup_text(scheduler + "/cpu.stat"));
    auto& throttling = *cpu.mutable_throttling();
    throttling.set_periods(value_in(stat, "nr_periods"));
    throttling.set_throttled_periods(value_in(stat, "nr_throttled"));
    throttling.set_throttled_time(value_in(stat, "throttled_time"));
  }
}

struct MemoryField {
  std::string_view key;
  void (MemoryStat::*set)(std::uint64_t);
};

constexpr MemoryField kMemoryFields[] = {
    {"cache", &MemoryStat::set_cache},
    {"rss", &MemoryStat::set_rss},
    {"rss_huge", &MemoryStat::set_rss_huge},
    {"mapped_file", &MemoryStat::set_mapped_file},
    {"dirty", &MemoryStat::set_dirty},
    {"writeback", &MemoryStat::set_writeback},
    {"pgpgin", &MemoryStat::set_pg_pg_in},
    {"pgpgout", &MemoryStat::set_pg_pg_out},
    {"pgfault", &MemoryStat::set_pg_fault},
    {"pgmajfault", &MemoryStat::set_pg_maj_fault},
    {"inactive_anon", &MemoryStat::set_inactive_anon},
    {"active_anon", &MemoryStat::set_active_anon},
    {"inactive_file", &MemoryStat::set_inactive_file},
    {"active_file", &MemoryStat::set_active_file},
    {"unevictable", &MemoryStat::set_unevictable},
    {"hierarchical_memory_limit", &MemoryStat::set_hierarchical_memory_limit},
    {"hierarchical_memsw_limit", &MemoryStat::set_hierarchical_swap_limit},
    {"total_cache", &MemoryStat::set_total_cache},
    {"total_rss", &MemoryStat::set_total_rss},
    {"total_rss_huge", &MemoryStat::set_total_rss_huge},
    {"total_mapped_file", &MemoryStat::set_total_mapped_file},
    {"total_dirty", &MemoryStat::set_total_dirty},
    {"total_writeback", &MemoryStat::set_total_writeback},
    {"total_pgpgin", &MemoryStat::set_total_pg_pg_in},
    {"total_pgpgout", &MemoryStat::set_total_pg_pg_out},
    {"total_pgfault", &MemoryStat::set_total_pg_fault},
    {"total_pgmajfault", &MemoryStat::set_total_pg_maj_fault},
    {"total_inactive_anon", &MemoryStat::set_total_inactive_anon},
    {"total_active_anon", &MemoryStat::set_total_active_anon},
    {"total_inactive_file", &MemoryStat::set_total_inactive_file},
    {"total_active_file", &MemoryStat::set_total_active_file},
    {"total_unevictable", &MemoryStat::set_total_unevictable},
};

// `name` is "" for memory itself, else "memsw.", "kmem.", "kmem.tcp.".
void fill_entry(const std::string& directory, std::string_view name, MemoryEntry& entry) {
  const std::string prefix = directory + "/memory." + std::string(name);
  entry.set_usage(read_cgroup_value(prefix + "usage_in_bytes"));
  entry.set_max(read_cgroup_value(prefix + "max_usage_in_bytes"));
  entry.set_failcnt(read_cgroup_value(prefix + "failcnt"));
  entry.set_limit(read_cgroup_value(prefix + "limit_in_bytes"));
}

void fill_memory(const std::string& directory, Metrics& metrics) {
  auto& memory = *metrics.mutable_memory();
  const CgroupTable stat = parse_cgroup_table(read_cgroup_text(directory + "/memory.stat"));
  for (const MemoryField& field : kMemoryFields) (memory.*field.set)(value_in(stat, field.key));
  fill_entry(directory, "", *memory.mutable_usage());
  fill_entry(directory, "memsw.", *memory.mutable_swap());
  fill_entry(directory, "kmem.", *memory.mutable_kernel());
  fill_entry(directory, "kmem.tcp.", *memory.mutable_kernel_tcp());

  const CgroupTable oom = parse_cgroup_table(read_cgroup_text(directory + "/memory.oom_control"));
  auto& control = *metrics.mutable_memory_oom_control();
  control.set_oom_kill_disable(value_in(oom, "oom_kill_disable"));
  control.set_under_oom(value_in(oom, "under_oom"));
  control.set_oom_kill(value_in(oom, "oom_kill"));
}

// Lines "MAJOR:MINOR OP VALUE" (or without OP); the last one, "Total VALUE", names no device.
void fill_block_entries(const std::string& path,
                        google::protobuf::RepeatedPtrField<BlkIOEntry>& entries) {
  const std::string text = read_cgroup_text(path);
  for (const std::string_view line : split(text, '\n', SplitEmpty::drop)) {
    const std::vector<std::string_view> words = split(line, ' ', SplitEmpty::drop);
    if (words.size() < 2) continue;
    const std::vector<std::string_view> device = split(words[0], ':', SplitEmpty::keep);
    if (device.size() != 2) continue;
    BlkIOEntry& entry = *entries.Add();
    entry.set_major(parse_u64(device[0]).value_or(0));
    entry.set_minor(parse_u64(device[1]).value_or(0));
    if (words.size() > 2) entry.set_op(std::string(words[1]));
    entry.set_value(parse_u64(words.back()).value_or(0));
  }
}

void fill_block(const std::string& directory, BlkIOStat& block) {
  const std::string prefix = directory + "/blkio.";
  fill_block_entries(prefix + "throttle.io_service_bytes_recursive",
                     *block.mutable_io_service_bytes_recursive());
  fill_block_entries(prefix + "throttle.io_serviced_recursive",
                     *block.mutable_io_serviced_recursive());
  fill_block_entries(prefix + "io_queued_recursive", *block.mutable_io_queued_recursive());
  fill_block_entries(prefix + "io_service_time_recursive",
                     *block.mutable_io_service_time_recursive());
  fill_block_entries(prefix + "io_wait_time_recursive", *block.mutable_io_wait_time_recursive());
  fill_block_entries(prefix + "io_merged_recursive", *block.mutable_io_merged_recursive());
  fill_block_entries(prefix + "time_recursive", *block.mutable_io_time_recursive());
  fill_block_entries(prefix + "sectors_recursive", *block.mutable_sectors_recursive());
}

void fill_hugetlb(const std::string& directory, Metrics& metrics) {
  for (const std::string& size : hugetlb_sizes(directory, ".usage_in_bytes")) {
    const std::string prefix = directory + "/hugetlb." + size + ".";
    auto& entry = *metrics.add_hugetlb();
    entry.set_pagesize(size);
    entry.set_usage(read_cgroup_value(prefix + "usage_in_bytes"));
    entry.set_max(read_cgroup_value(prefix + "max_usage_in_bytes"));
    entry.set_failcnt(read_cgroup_value(prefix + "failcnt"));
  }
}

}  // namespace

std::string collect_stats_v1(const CgroupPaths& paths) {
  Metrics metrics;
  if (const std::string directory = paths.controller("pids"); !directory.empty()) {
    metrics.mutable_pids()->set_current(read_cgroup_value(directory + "/pids.current"));
    // "max" is 0 here, as containerd's own collector has it for v1.
    metrics.mutable_pids()->set_limit(
        parse_u64(trim(read_cgroup_text(directory + "/pids.max"))).value_or(0));
  }
  fill_cpu(paths, *metrics.mutable_cpu());
  if (const std::string directory = paths.controller("memory"); !directory.empty()) {
    fill_memory(directory, metrics);
  }
  if (const std::string directory = paths.controller("blkio"); !directory.empty()) {
    fill_block(directory, *metrics.mutable_blkio());
  }
  if (const std::string directory = paths.controller("hugetlb"); !directory.empty()) {
    fill_hugetlb(directory, metrics);
  }
  return metrics.SerializeAsString();
}

}  // namespace icebox::shim
