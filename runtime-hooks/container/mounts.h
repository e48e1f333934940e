// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "oci/base/result.h"

namespace icebox::container {

// One line of /proc/PID/mountinfo (proc(5)), octal escapes decoded; only what this project looks
// at.
struct Mount {
  std::uint64_t device =
      0;              // st_dev of what is mounted: tells whether a later mount covers the point
  std::string root;   // directory of the file system that is mounted
  std::string point;  // where, seen from the process's root
  std::string type;   // file system type, e.g. "cgroup2"
  std::string super_options;  // e.g. "rw,freezer"
};

// Parses the text of a mountinfo file; lines that are not mounts are left out. Never fails.
std::vector<Mount> parse_mountinfo(std::string_view text);

// The mounts of this process's mount namespace, in the order of mounting.
Result<std::vector<Mount>> read_mounts();

// Mount points strictly below or at `directory` in this process's mount namespace, deepest first
// and, of several on one point, the topmost first. Links in `directory` are resolved if it exists.
Result<std::vector<std::string>> mounts_below(const std::string& directory);

// Unmounts everything at or below `directory`, deepest first, lazily (MNT_DETACH) where busy. Used
// before any recursive removal: a killed `runc restore` leaves a bind of the root file system below
// its state directory, and runc's own `delete --force` would empty it. The mounts are made private
// first, so that nothing is unmounted below the original of a bind. Fails naming a mount that
// stays.
Result<void> unmount_below(const std::string& directory);

}  // namespace icebox::container
