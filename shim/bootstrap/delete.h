// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "oci/base/result.h"
#include "shim/bootstrap/args.h"

namespace icebox::shim {

// The `delete` action (shim contract, 2.3): whatever is left of the task is removed from the
// machine, whether its daemon ended in order or was killed; the bundle itself is containerd's.
// Returns the serialized DeleteResponse to print: init's true exit status if the daemon saw its
// end, else 137. Idempotent. Ends within the 5 s that containerd gives, failing if the engine needs
// longer.
[[nodiscard]] Result<std::string> delete_task(const Args& args);

}  // namespace icebox::shim
