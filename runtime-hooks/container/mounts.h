// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "oci/base/result.h"

namespace icebox::container {

// Mount points strictly below or at `directory` in this process's mount namespace, deepest first
// (/proc/self/mountinfo, octal escapes decoded).
Result<std::vector<std::string>> mounts_below(const std::string& directory);

// Unmounts everything at or below `directory`, deepest first, lazily (MNT_DETACH) where busy. Used before any recursive
// removal: a killed `runc restore` leaves a bind of the root file system below its state directory, and runc's own
// `delete --force` would empty it.
Result<void> unmount_below(const std::string& directory);

}  // namespace icebox::container
