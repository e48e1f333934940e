// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

namespace icebox::shim {

// Lower-case hexadecimal SHA-256 (FIPS 180-4) of `data`. The shim needs one digest of a short
// string per start, which does not justify a crypto library in a process that lives as long as a
// container (libcrypto alone costs more memory than the whole budget).
[[nodiscard]] std::string sha256_hex(std::string_view data);

}  // namespace icebox::shim
