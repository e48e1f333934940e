// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

#include "shim/runtime/bundle_config.h"

namespace icebox::shim {

// Directory of shim sockets when containerd names none (BootstrapParams.socket_dir does).
inline constexpr std::string_view kDefaultSocketDir = "/run/containerd/s";

// Which shim serves a task: all tasks with one key share one daemon. The order of the sources is
// containerd's: the explicit annotation, the CRI pod, else the task alone.
[[nodiscard]] std::string grouping_key(const BundleConfig& config, std::string_view id);

// Path of the socket of a group: <dir>/<sha256 of path.Join(address, namespace, key)>. This exact
// derivation is part of the contract: containerd's tests compute it, and a stock shim that starts
// for a member of our group has to find our socket (shim contract, 2.1 and T11).
[[nodiscard]] std::string socket_path(std::string_view dir, std::string_view address,
                                      std::string_view ns, std::string_view key);

// Go's path.Join of three elements: joined by '/', empty ones dropped, lexically cleaned.
[[nodiscard]] std::string go_path_join(std::string_view a, std::string_view b, std::string_view c);

}  // namespace icebox::shim
