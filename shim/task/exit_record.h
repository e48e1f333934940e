// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <chrono>
#include <string>
#include <string_view>

#include "oci/base/result.h"

namespace icebox::shim {

// How a process ended, as State, Wait and Delete report it.
struct ExitInfo {
  pid_t pid = 0;
  unsigned status = 0;  // exit code, or 128 + signal
  std::chrono::system_clock::time_point at{};
};

// File in the bundle that holds the ExitInfo of init, so that `delete` can tell the truth after the
// daemon was killed.
inline constexpr std::string_view kExitFile = "init.exit";

// Files in the bundle for `delete` too: that Delete has been done completely, and the directory
// that containerd unpacked a checkpoint into and will not remove (is_temporary_checkpoint).
inline constexpr std::string_view kRemovedFile = "removed";
inline constexpr std::string_view kTempCheckpointFile = "temp-checkpoint";

// One line "pid status seconds nanoseconds" and back. Pure.
[[nodiscard]] std::string format_exit(const ExitInfo& exit);
[[nodiscard]] Result<ExitInfo> parse_exit(std::string_view text);

}  // namespace icebox::shim
