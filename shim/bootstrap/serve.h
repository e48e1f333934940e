// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "oci/base/result.h"
#include "shim/bootstrap/args.h"

namespace icebox::shim {

// The daemon (shim contract, 2.2): serves the Task API on the inherited fd 3 (or on args.socket) in
// the bundle it is run in, until Shutdown or a signal. Blocks until then. Containers that still run
// when a signal ends it stay.
[[nodiscard]] Result<void> serve(const Args& args);

}  // namespace icebox::shim
