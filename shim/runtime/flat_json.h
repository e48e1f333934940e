// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <variant>

#include "oci/base/result.h"

namespace icebox::shim {

using FlatValue = std::variant<bool, std::uint64_t, std::string>;

// Calls `visit` for every member of the outermost object of `json` that is a string, a boolean or a
// number >= 0, in order, without building a document; nested values are passed over. Fails on
// malformed JSON, possibly after some calls. For the small files that the shim and the engine
// exchange.
[[nodiscard]] Result<void> for_each_member(
    std::string_view json, const std::function<void(std::string_view, FlatValue)>& visit);

}  // namespace icebox::shim
