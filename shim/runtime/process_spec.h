// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

#include "oci/base/result.h"

namespace icebox::shim {

// The OCI Process of an Exec request with its `terminal` set to what the request says, which wins
// over the JSON (containerd's rule). Everything else is kept, unknown members included.
// invalid_argument when `json` is not an object.
[[nodiscard]] Result<std::string> with_terminal(std::string_view json, bool terminal);

}  // namespace icebox::shim
