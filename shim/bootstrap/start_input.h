// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

#include "oci/base/result.h"
#include "shim/bootstrap/grouping.h"
#include "shim/runtime/options.h"

namespace icebox::shim {

// What `start` learns from its standard input.
struct StartInput {
  RuntimeOptions options;  // defaults when containerd sent none
  std::string socket_dir = std::string(kDefaultSocketDir);
  bool debug = false;  // log level debug or trace was asked for
};

// Decodes the standard input of `start`: nothing, a google.protobuf.Any with the runtime's options
// (containerd before 2.3), or BootstrapParams (2.3 and later). An Any also parses as
// BootstrapParams: what decides is whether fields 1 and 2 are this very task's id and namespace.
// Bytes that are neither are an error: containerd would not be talking to the program it thinks it
// is.
[[nodiscard]] Result<StartInput> decode_start_input(std::string_view data, std::string_view id,
                                                    std::string_view ns);

}  // namespace icebox::shim
