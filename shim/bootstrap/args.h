// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "oci/base/result.h"

namespace icebox::shim {

// The shim's command line (shim contract, section 2).
struct Args {
  std::string ns;              // -namespace
  std::string id;              // -id
  std::string address;         // -address: containerd's gRPC socket, a plain path
  std::string publish_binary;  // -publish-binary: containerd itself
  std::string bundle;          // -bundle: given to `delete` only
  std::string socket;          // -socket: serve here instead of on the inherited fd 3
  bool debug = false;          // -debug
  bool version = false;        // -v, -version
  bool info = false;           // -info
  std::string action;          // first non-flag: "start", "delete", or "" for the daemon
};

// Parses Go `flag` syntax: one or two dashes, "-x v" or "-x=v", booleans alone or "-x=BOOL";
// parsing stops at "--" or at the first word that is not a flag, which is the action. Unknown flags
// are skipped, with their value only when it is attached, so that a newer containerd can still
// start us. Fails on a flag without its value and on a malformed boolean.
[[nodiscard]] Result<Args> parse_args(int argc, const char* const* argv);

}  // namespace icebox::shim
