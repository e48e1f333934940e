// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "oci/base/result.h"

namespace icebox::shim {

// Where a container is in the cgroup file systems. A value; captured while init lives (at Create
// and at the end of a restoring Start), because /proc/PID/cgroup is gone when statistics are asked
// for.
struct CgroupPaths {
  bool unified = false;  // pure cgroup v2
  std::string v2;        // directory in the v2 file system, "" if none
  std::map<std::string, std::string, std::less<>> v1;  // controller -> directory, e.g. "memory"

  [[nodiscard]] bool empty() const { return v2.empty() && v1.empty(); }

  // The v1 directory of a controller, "" if it is not mounted.
  [[nodiscard]] std::string controller(std::string_view name) const;
};

// Combines the texts of /proc/PID/cgroup and /proc/self/mountinfo. `unified` as of
// is_unified_hierarchy(). A path that is the root of its hierarchy is left out: listing or killing
// "the container's processes" there would mean the whole host. Pure.
[[nodiscard]] CgroupPaths parse_cgroup_paths(std::string_view proc_cgroup,
                                             std::string_view mountinfo, bool unified);

// `paths` without those that `own` has too. A process that is where the daemon itself is has no
// cgroup of its own: listing or killing "the container" there would mean the daemon and whatever it
// runs beside. Pure.
[[nodiscard]] CgroupPaths without_shared(CgroupPaths paths, const CgroupPaths& own);

// The cgroup of `pid`, without what it shares with this process. not_found when the process is
// gone. Does not block.
[[nodiscard]] Result<CgroupPaths> cgroup_of(pid_t pid);

// Whether /sys/fs/cgroup is cgroup v2 (statfs(2)). False on v1 and on hybrid machines.
[[nodiscard]] bool is_unified_hierarchy();

// All processes of the cgroup and its sub-cgroups, ascending. A missing cgroup has none. Does not
// block.
[[nodiscard]] std::vector<pid_t> processes_of(const CgroupPaths& paths);

// Moves `pid` into the cgroup `path` (as in Options.shim_cgroup) of every
// hierarchy, creating it where needed.
[[nodiscard]] Result<void> join_cgroup(std::string_view path, pid_t pid);

}  // namespace icebox::shim
