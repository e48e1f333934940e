// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "oci/base/result.h"

namespace icebox {

enum class SplitEmpty { keep, drop };

// The parts of `text` between separators; views into `text`.
std::vector<std::string_view> split(std::string_view text, char separator, SplitEmpty empty);

// `text` without white space at both ends; a view into it.
std::string_view trim(std::string_view text);

// Parts joined by `separator`.
std::string join(const std::vector<std::string>& parts, std::string_view separator);

// A decimal number with nothing before or after it; invalid_argument otherwise or when it does not
// fit.
Result<std::uint64_t> parse_u64(std::string_view text);
Result<std::int64_t> parse_i64(std::string_view text);

// 1536 -> "1.5 KiB", for messages.
std::string human_bytes(std::uint64_t bytes);

}  // namespace icebox
