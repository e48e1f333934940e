// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "oci/base/result.h"

namespace icebox::shim {

// One entry of CreateTaskRequest.rootfs (containerd.types.Mount).
struct RootfsMount {
  std::string type;
  std::string source;
  std::string target;  // sub-path inside rootfs, "" = rootfs itself (containerd 2.x sends it)
  std::vector<std::string> options;
};

// What mount(2) has to be told.
struct MountCall {
  unsigned long flags = 0;        // MS_* without the propagation type
  unsigned long propagation = 0;  // MS_SHARED, ... and MS_REC: a call of its own
  std::string data;               // what the file system itself understands, comma separated
  std::string chdir;              // not "": mount with this working directory (see below)
};

// Splits mount options into flags and data as containerd does. The kernel takes one page of data;
// an overlay with many layers exceeds it, so its lowerdir entries are then shortened to paths
// relative to their longest common directory, which `chdir` names. Pure. invalid_argument for
// `loop` and id-mapping options, and for data that stays too long: each says so.
[[nodiscard]] Result<MountCall> plan_mount(const RootfsMount& mount, std::size_t page_size);

}  // namespace icebox::shim
