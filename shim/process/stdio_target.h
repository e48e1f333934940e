// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "oci/base/result.h"

namespace icebox::shim {

// Where one standard stream goes, as containerd writes it: nothing, a path, or a URI.
struct StdioTarget {
  enum class Kind { null, path, file, binary, binary_v2 };
  Kind kind = Kind::null;
  std::string path;
  // Of binary://, percent-decoded, in the order of the URI.
  std::vector<std::pair<std::string, std::string>> parameters;
};

// "" -> null, "/x" and "fifo:///x" -> path, "file:///x", "binary:///x?k=v", "binary-v2:///x?k=v".
// invalid_argument "unknown STDIO scheme NAME" for another scheme (the text that clients know), or
// when the path is missing or not absolute. Pure.
Result<StdioTarget> parse_stdio(std::string_view text);

}  // namespace icebox::shim
