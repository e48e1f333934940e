// SPDX-License-Identifier: Apache-2.0
#include "shim/runtime/cgroup.h"

#include <linux/magic.h>
#include <sys/vfs.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "oci/base/file.h"
#include "oci/base/strings.h"

namespace icebox::shim {
namespace {

constexpr std::size_t kMaxProcBytes = 16UL << 20;
constexpr int kMaxDepth = 16;  // sub-cgroups below a container, against loops that cannot exist

struct CgroupMount {
  bool v2 = false;
  std::string root;   // the part of the hierarchy that is mounted
  std::string point;  // where
  std::vector<std::string> controllers;
};

// proc_pid_mountinfo(5): "id parent dev root point options [optional...] - type source superopts".
std::optional<CgroupMount> parse_mount(std::string_view line) {
  const std::size_t dash = line.find(" - ");
  if (dash == std::string_view::npos) return std::nullopt;
  const std::vector<std::string_view> before = split(line.substr(0, dash), ' ', SplitEmpty::drop);
  const std::vector<std::string_view> after = split(line.substr(dash + 3), ' ', SplitEmpty::drop);
  if (before.size() < 6 || after.size() < 3) return std::nullopt;
  if (after[0] != "cgroup" && after[0] != "cgroup2") return std::nullopt;
  CgroupMount mount;
  mount.v2 = after[0] == "cgroup2";
  mount.root = std::string(before[3]);
  mount.point = std::string(before[4]);
  for (const std::string_view option : split(after[2], ',', SplitEmpty::drop)) {
    mount.controllers.emplace_back(option);
  }
  return mount;
}

// The directory of cgroup `path` under `mount`; "" when it is the root of the hierarchy or outside
// of what is mounted.
std::string directory_in(const CgroupMount& mount, std::string_view path) {
  if (path == "/" || path.starts_with("/..")) return "";
  if (mount.root != "/") {
    if (!path.starts_with(mount.root)) return "";
    path.remove_prefix(mount.root.size());
    if (path.empty()) return "";
    if (path.front() != '/') return "";
  }
  return mount.point + std::string(path);
}

void collect_processes(const std::string& directory, int depth, std::vector<pid_t>& pids) {
  const Result<std::string> text = read_file(directory + "/cgroup.procs", kMaxProcBytes);
  if (text.ok()) {
    for (const std::string_view line : split(*text, '\n', SplitEmpty::drop)) {
      const Result<std::int64_t> pid = parse_i64(line);
      if (pid.ok() && *pid > 0) pids.push_back(static_cast<pid_t>(*pid));
    }
  }
  if (depth == kMaxDepth) return;
  const Result<std::vector<std::string>> names = list_directory(directory);
  if (!names.ok()) return;
  for (const std::string& name : *names) {
    const std::string below = directory + "/" + name;
    if (exists(below + "/cgroup.procs")) collect_processes(below, depth + 1, pids);
  }
}

}  // namespace

std::string CgroupPaths::controller(std::string_view name) const {
  const auto found = v1.find(name);
  return found == v1.end() ? "" : found->second;
}

CgroupPaths parse_cgroup_paths(std::string_view proc_cgroup, std::string_view mountinfo,
                               bool unified) {
  std::vector<CgroupMount> mounts;
  for (const std::string_view line : split(mountinfo, '\n', SplitEmpty::drop)) {
    if (std::optional<CgroupMount> mount = parse_mount(line)) mounts.push_back(*std::move(mount));
  }
  CgroupPaths paths;
  paths.unified = unified;
  for (const std::string_view line : split(proc_cgroup, '\n', SplitEmpty::drop)) {
    // cgroups(7): "hierarchy-ID:controller-list:cgroup-path"; the path may itself hold colons.
    const std::size_t first = line.find(':');
    const std::size_t second = first == std::string_view::npos ? first : line.find(':', first + 1);
    if (second == std::string_view::npos) continue;
    const std::string_view names = line.substr(first + 1, second - first - 1);
    const std::string_view path = line.substr(second + 1);
    if (names.empty()) {
      const auto mount = std::find_if(mounts.begin(), mounts.end(),
                                      [](const CgroupMount& each) { return each.v2; });
      if (mount != mounts.end()) paths.v2 = directory_in(*mount, path);
      continue;
    }
    for (const std::string_view name : split(names, ',', SplitEmpty::drop)) {
      for (const CgroupMount& mount : mounts) {
        if (mount.v2 || std::find(mount.controllers.begin(), mount.controllers.end(), name) ==
                            mount.controllers.end()) {
          continue;
        }
        std::string directory = directory_in(mount, path);
        if (!directory.empty()) paths.v1.emplace(name, std::move(directory));
        break;
      }
    }
  }
  return paths;
}

bool is_unified_hierarchy() {
  struct statfs info {};
  return ::statfs("/sys/fs/cgroup", &info) == 0 && info.f_type == CGROUP2_SUPER_MAGIC;
}

CgroupPaths without_shared(CgroupPaths paths, const CgroupPaths& own) {
  if (paths.v2 == own.v2) paths.v2.clear();
  std::erase_if(paths.v1,
                [&](const auto& each) { return own.controller(each.first) == each.second; });
  return paths;
}

Result<CgroupPaths> cgroup_of(pid_t pid) {
  const std::string theirs =
      ICEBOX_TRY(read_file("/proc/" + std::to_string(pid) + "/cgroup", kMaxProcBytes));
  const std::string ours = ICEBOX_TRY(read_file("/proc/self/cgroup", kMaxProcBytes));
  const std::string mountinfo = ICEBOX_TRY(read_file("/proc/self/mountinfo", kMaxProcBytes));
  const bool unified = is_unified_hierarchy();
  return without_shared(parse_cgroup_paths(theirs, mountinfo, unified),
                        parse_cgroup_paths(ours, mountinfo, unified));
}

std::vector<pid_t> processes_of(const CgroupPaths& paths) {
  std::string directory = paths.v2;
  if (!paths.unified) {
    // On v1 every hierarchy lists the same processes; runc itself asks `devices`.
    for (const std::string_view name : {"devices", "freezer", "pids", "memory", "cpu"}) {
      directory = paths.controller(name);
      if (!directory.empty()) break;
    }
  }
  std::vector<pid_t> pids;
  if (!directory.empty()) collect_processes(directory, 0, pids);
  std::sort(pids.begin(), pids.end());
  pids.erase(std::unique(pids.begin(), pids.end()), pids.end());
  return pids;
}

Result<void> join_cgroup(std::string_view path, pid_t pid) {
  const std::string mountinfo = ICEBOX_TRY(read_file("/proc/self/mountinfo", kMaxProcBytes));
  const bool unified = is_unified_hierarchy();
  const std::string relative = path.starts_with('/') ? std::string(path) : "/" + std::string(path);
  for (const std::string_view line : split(mountinfo, '\n', SplitEmpty::drop)) {
    const std::optional<CgroupMount> mount = parse_mount(line);
    // On a hybrid machine the v2 hierarchy has no controllers and belongs to systemd.
    if (!mount || mount->v2 != unified) continue;
    const std::string directory = mount->point + relative;
    ICEBOX_TRY(make_directories(directory, 0755));
    ICEBOX_TRY(write_control_file(directory + "/cgroup.procs", std::to_string(pid)));
  }
  return {};
}

}  // namespace icebox::shim
