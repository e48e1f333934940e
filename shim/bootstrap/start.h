// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "oci/base/result.h"
#include "oci/base/unique_fd.h"
#include "shim/bootstrap/args.h"

namespace icebox::shim {

// The `start` action (shim contract, 2.1): finds or makes the socket of the task's group, starts
// the daemon on it and returns the address to print. Run in the bundle, whose files and standard
// input it reads. On failure nothing is left: no socket, no daemon. Writes nothing to stdout or
// stderr, which containerd takes for the address.
[[nodiscard]] Result<std::string> start(const Args& args);

// The listening socket of a group: either made here, or none because a living daemon has it.
struct GroupSocket {
  UniqueFd listener;  // invalid: another daemon answers on `path`
  std::string path;
};

// Binds and listens on `path` (directories made 0700, socket 0600). A socket file that nobody
// answers on is replaced. Starts of one group that run at the same time wait for each other, so
// that none takes the other's socket for a dead one.
[[nodiscard]] Result<GroupSocket> claim_socket(const std::string& path);

// Whether somebody accepts connections on the unix socket `path`. Does not block.
[[nodiscard]] bool answers(const std::string& path);

}  // namespace icebox::shim
