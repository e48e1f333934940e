// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "oci/base/result.h"

namespace icebox {

using Json = nlohmann::json;

// Parses a whole JSON document of at most 16 MiB and 64 levels; `what` names it in the error, which
// also gives the byte offset. Never throws. Duplicate keys keep the last value (RFC 8259 leaves it
// open; encoding/json does the same).
Result<Json> parse_json(std::string_view text, std::string_view what);

// Reads and parses a file. not_found when it is missing.
Result<Json> read_json_file(const std::string& path);

// Checked access to a member of an object: the Error names `key` and what was expected. No
// exception, no insertion.
Result<std::string> json_string(const Json& object, const char* key);
Result<std::int64_t> json_int(const Json& object, const char* key);
Result<std::uint64_t> json_uint(const Json& object, const char* key);
Result<bool> json_bool(const Json& object, const char* key);
Result<std::vector<std::string>> json_strings(const Json& object, const char* key);
Result<std::vector<std::int64_t>> json_ints(const Json& object, const char* key);

// The member, or nullptr when `object` is no object or has no such member.
const Json* json_find(const Json& object, const char* key);

// One line of text, invalid UTF-8 replaced. Never throws.
std::string json_text(const Json& value);
// Indented by two spaces with a final newline, for files that people read.
std::string json_pretty(const Json& value);

}  // namespace icebox
