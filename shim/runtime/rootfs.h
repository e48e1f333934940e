// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "oci/base/result.h"
#include "shim/runtime/mount_options.h"

namespace icebox::shim {

// Mounts the entries in order on `rootfs` (or on entry.target inside it), in the caller's mount
// namespace: containerd looks at these mounts. On failure what was mounted is unmounted again, in
// reverse. Blocks as long as mount(2) does, which is long only on dead network storage. Changes the
// working directory for a moment when an overlay has too many layers: for a single-threaded
// process.
[[nodiscard]] Result<void> mount_rootfs(const std::vector<RootfsMount>& mounts,
                                        const std::string& rootfs);

// Unmounts everything that is mounted at `path` or below, last mounted first. A busy mount is
// detached (MNT_DETACH): it goes when its last user does. Nothing mounted is success.
[[nodiscard]] Result<void> unmount_tree(const std::string& path);

// The mount points in `mountinfo` (the text of /proc/self/mountinfo) at `path` or below, in mount
// order, with the kernel's octal escapes undone. Pure.
[[nodiscard]] std::vector<std::string> mount_points_under(std::string_view mountinfo,
                                                          std::string_view path);

}  // namespace icebox::shim
