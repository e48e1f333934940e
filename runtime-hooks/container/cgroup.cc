// SPDX-License-Identifier: Apache-2.0
#include "runtime-hooks/container/cgroup.h"

#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string_view>
#include <utility>

#include <nlohmann/json.hpp>

#include "oci/base/fault.h"
#include "oci/base/file.h"
#include "oci/base/strings.h"
#include "oci/json.h"
#include "runtime-hooks/container/mounts.h"

namespace icebox::container {
namespace {

constexpr std::size_t kMaxControl = 64 * 1024;  // one value or a few lines
constexpr std::size_t kMaxProcesses =
    64 * 1024 * 1024;  // cgroup.procs: 4 million pids of 8 bytes fit

bool on_unified(const std::string& path) {
  struct statfs info = {};
  return ::statfs(path.c_str(), &info) == 0 && info.f_type == CGROUP2_SUPER_MAGIC;
}

// Where the hierarchy that `type` and `option` select is mounted; empty when it is not.
struct HierarchyMount {
  std::string point;
  std::string root;  // the cgroup that is mounted there: not "/" for a bind or a cgroup namespace's
};

HierarchyMount find_hierarchy(const std::vector<Mount>& mounts, std::string_view type,
                              std::string_view option) {
  HierarchyMount found;
  for (const auto& mount : mounts) {
    if (mount.type != type) continue;
    const auto options = split(mount.super_options, ',', SplitEmpty::drop);
    if (!option.empty() && std::find(options.begin(), options.end(), option) == options.end())
      continue;
    struct stat info = {};
    if (::stat(mount.point.c_str(), &info) != 0 || info.st_dev != mount.device)
      continue;  // covered by another mount
    // Of several points the shortest is the usual one.
    if (found.point.empty() || mount.point.size() < found.point.size())
      found = {mount.point, mount.root};
  }
  return found;
}

// The directory of cgroup `path` (as /proc/PID/cgroup and crun write it) below a mounted hierarchy.
std::string below_mount(const HierarchyMount& mount, const std::string& path) {
  if (mount.point.empty() || path.empty() || path[0] != '/') return {};
  std::string_view rest = path;
  const std::size_t root = mount.root.size();
  if (mount.root != "/" && rest.starts_with(mount.root) &&
      (rest.size() == root || rest[root] == '/')) {
    rest.remove_prefix(root);
  }
  return mount.point + (rest == "/" ? "" : std::string(rest));
}

struct Paths {
  std::string freezer;
  std::string memory;
};

// The paths of one cgroup name that is the same in every hierarchy, as crun keeps it.
Result<Paths> paths_by_name(const std::string& freezer_name, const std::string& memory_name,
                            const std::string& unified_name) {
  const auto mounts = ICEBOX_TRY(read_mounts());
  // Hybrid machines have v1 controllers and an empty v2 hierarchy: a mounted v1 freezer is the one
  // runtimes use. Where /sys/fs/cgroup is v2 they use that, whatever else is mounted (CRIU mounts
  // every hierarchy for itself).
  const auto freezer = find_hierarchy(mounts, "cgroup", "freezer");
  if (!freezer.point.empty() && !unified_hierarchy()) {
    return Paths{below_mount(freezer, freezer_name),
                 below_mount(find_hierarchy(mounts, "cgroup", "memory"), memory_name)};
  }
  const std::string unified = below_mount(find_hierarchy(mounts, "cgroup2", ""), unified_name);
  return Paths{unified, unified};
}

// runc: "cgroup_paths" maps v1 controllers, or "" for v2, to absolute directories.
Paths paths_from_runc(const Json& state) {
  const Json* paths = json_find(state, "cgroup_paths");
  if (paths == nullptr) return {};
  const std::string freezer = json_string(*paths, "freezer").value_or("");
  if (!freezer.empty()) return {freezer, json_string(*paths, "memory").value_or("")};
  const std::string unified = json_string(*paths, "").value_or("");
  return {unified, unified};
}

// The lines of /proc/PID/cgroup are "id:controllers:path"; v2's is "0::path".
Result<Paths> paths_from_proc(pid_t init) {
  const auto text = ICEBOX_TRY(read_file("/proc/" + std::to_string(init) + "/cgroup", kMaxControl));
  std::string freezer;
  std::string memory;
  std::string unified;
  for (const auto line : split(text, '\n', SplitEmpty::drop)) {
    const auto first = line.find(':');
    const auto second = line.find(':', first + 1);
    if (first == std::string_view::npos || second == std::string_view::npos) continue;
    const auto path = std::string(line.substr(second + 1));
    const auto controllers =
        split(line.substr(first + 1, second - first - 1), ',', SplitEmpty::drop);
    if (controllers.empty()) unified = path;
    for (const auto controller : controllers) {
      if (controller == "freezer") freezer = path;
      if (controller == "memory") memory = path;
    }
  }
  return paths_by_name(freezer, memory, unified);
}

Result<Paths> find_paths(const std::string& runtime_root, const std::string& id, pid_t init) {
  const std::string directory = runtime_root + "/" + id;
  const auto runc = read_json_file(directory + "/state.json");
  if (runc.ok()) {
    auto paths = paths_from_runc(*runc);
    if (!paths.freezer.empty()) return paths;
  } else if (runc.error().code != Code::not_found) {
    return runc.error();
  }
  const auto crun = read_json_file(directory + "/status");
  if (crun.ok()) {
    const std::string name = json_string(*crun, "cgroup-path").value_or("");
    if (!name.empty()) return paths_by_name(name, name, name);
  } else if (crun.error().code != Code::not_found) {
    return crun.error();
  }
  if (init <= 0) return make_error(Code::not_found, "neither a runtime's state nor a process");
  return paths_from_proc(init);
}

// Appends the processes of `directory` and of the cgroups below it.
Result<void> collect_processes(const std::string& directory, bool unified, bool skip_frozen,
                               bool top, std::vector<pid_t>& pids) {
  const auto text = read_file(directory + "/cgroup.procs", kMaxProcesses);
  if (text.ok()) {
    for (const auto line : split(*text, '\n', SplitEmpty::drop)) {
      const auto pid = static_cast<pid_t>(ICEBOX_TRY(parse_i64(line)));
      if (pid == 0) {
        return make_error(
            Code::failed_precondition,
            "a process of " + directory + " is outside of this pid namespace: run on the host");
      }
      pids.push_back(pid);
    }
  } else if (text.error().sys_errno != EOPNOTSUPP || top) {
    // EOPNOTSUPP: a threaded v2 cgroup, whose processes its domain lists. ENODEV: removed since it
    // was opened.
    const bool gone = text.error().code == Code::not_found || text.error().sys_errno == ENODEV;
    if (gone && !top) return {};
    if (gone) return make_error(Code::not_found, "cgroup " + directory + " is gone");
    return text.error();
  }
  const auto names = list_directory(directory);
  if (!names.ok()) return top ? Result<void>(names.error()) : Result<void>();
  for (const auto& name : *names) {
    const std::string child = directory + "/" + name;
    struct stat info = {};
    if (::lstat(child.c_str(), &info) != 0 || !S_ISDIR(info.st_mode)) continue;
    if (skip_frozen) {
      const auto own =
          read_file(child + (unified ? "/cgroup.freeze" : "/freezer.self_freezing"), kMaxControl);
      if (own.ok() && trim(*own) == "1") continue;
    }
    ICEBOX_TRY(collect_processes(child, unified, skip_frozen, false, pids));
  }
  return {};
}

Result<std::vector<pid_t>> list_processes(const std::string& directory, bool unified,
                                          bool skip_frozen) {
  std::vector<pid_t> pids;
  ICEBOX_TRY(collect_processes(directory, unified, skip_frozen, true, pids));
  std::sort(pids.begin(), pids.end());
  pids.erase(std::unique(pids.begin(), pids.end()), pids.end());
  return pids;
}

// The control file that a cgroup which can be frozen has, and a root has not.
std::string freeze_file(const std::string& directory, bool unified) {
  return directory + (unified ? "/cgroup.freeze" : "/freezer.state");
}

}  // namespace

bool unified_hierarchy() { return on_unified("/sys/fs/cgroup"); }

Result<std::string> Cgroup::freezer_directory_of(pid_t pid) {
  const auto paths = ICEBOX_TRY(paths_from_proc(pid));
  if (paths.freezer.empty()) {
    return make_error(Code::failed_precondition,
                      "process " + std::to_string(pid) + " is in no cgroup that can be frozen");
  }
  return paths.freezer;
}

Result<Cgroup> Cgroup::of_container(const std::string& runtime_root, const std::string& id,
                                    pid_t init) {
  const std::string what = "cgroup of container " + id;
  auto found = find_paths(runtime_root, id, init);
  if (!found.ok()) return std::move(found).error().context(what);
  Paths paths = std::move(found).value();
  while (paths.freezer.size() > 1 && paths.freezer.back() == '/') paths.freezer.pop_back();
  if (paths.freezer.empty()) {
    return make_error(Code::not_found, what + ": no freezer hierarchy holds it");
  }
  if (!exists(paths.freezer))
    return make_error(Code::not_found, what + ": " + paths.freezer + " is gone");
  const bool unified = on_unified(paths.freezer);
  if (!exists(freeze_file(paths.freezer, unified))) {
    return make_error(Code::failed_precondition,
                      what + ": " + paths.freezer +
                          " is the root cgroup, freezing it would freeze the machine: give "
                          "the container a cgroup of its own");
  }
  const Cgroup cgroup = from_paths(unified, paths.freezer, paths.memory);
  const auto pids = cgroup.processes();
  if (!pids.ok()) return pids.error().context(what);
  if (std::binary_search(pids->begin(), pids->end(), ::getpid())) {
    return make_error(Code::failed_precondition,
                      what + ": " + paths.freezer +
                          " holds this program too, which would freeze itself: give the "
                          "container a cgroup of its own");
  }
  return cgroup;
}

Cgroup Cgroup::from_paths(bool unified, std::string freezer, std::string memory) {
  Cgroup cgroup;
  cgroup.unified_ = unified;
  cgroup.freezer_ = std::move(freezer);
  cgroup.memory_ = std::move(memory);
  return cgroup;
}

Result<std::vector<pid_t>> Cgroup::processes() const {
  return list_processes(freezer_, unified_, false);
}

Result<std::vector<pid_t>> Cgroup::processes_thawed_with() const {
  return list_processes(freezer_, unified_, true);
}

Result<void> Cgroup::move_process(const std::string& cgroup_dir, pid_t pid) {
  return write_control_file(cgroup_dir + "/cgroup.procs", std::to_string(pid))
      .context("move process " + std::to_string(pid));
}

}  // namespace icebox::container
