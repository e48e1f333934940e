// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "oci/base/result.h"

namespace icebox::shim {

// The runtime name under which containerd finds this binary.
inline constexpr const char* kRuntimeName = "io.containerd.runc.icebox.v1";

// -v: the text to print.
[[nodiscard]] std::string version_text();

// -info (containerd 2.x; shim contract, 2.4): the serialized RuntimeInfo to print. Reads runtime
// options from standard input. The features of the OCI runtime are left out when it has no such
// command. Blocks until that command ends, at most 5 s.
[[nodiscard]] Result<std::string> runtime_info();

}  // namespace icebox::shim
