// SPDX-License-Identifier: Apache-2.0
#include "oci/json.h"

#include <limits>

#include <nlohmann/json.hpp>

#include "oci/base/file.h"

namespace icebox {
namespace {

constexpr std::size_t kMaxDocument = 16 * 1024 * 1024;
constexpr int kMaxDepth = 64;

Error wrong(const char* key, const char* expected) {
  return make_error(Code::invalid_argument,
                    std::string("'") + key + "' is missing or not " + expected);
}

}  // namespace

Result<Json> parse_json(std::string_view text, std::string_view what) {
  if (text.size() > kMaxDocument)
    return make_error(Code::resource_exhausted, std::string(what) + ": too large");
  bool too_deep = false;
  const auto watch_depth = [&](int depth, Json::parse_event_t, Json&) {
    if (depth > kMaxDepth) too_deep = true;
    return !too_deep;
  };
  Json document = Json::parse(text.begin(), text.end(), watch_depth, /*allow_exceptions=*/false);
  if (too_deep)
    return make_error(Code::invalid_argument, std::string(what) + ": nested too deeply");
  if (document.is_discarded()) {
    return make_error(Code::invalid_argument, std::string(what) + ": not a complete JSON document");
  }
  return document;
}

Result<Json> read_json_file(const std::string& path) {
  const auto text = ICEBOX_TRY(read_file(path, kMaxDocument));
  return parse_json(text, path);
}

const Json* json_find(const Json& object, const char* key) {
  if (!object.is_object()) return nullptr;
  const auto found = object.find(key);
  return found == object.end() ? nullptr : &*found;
}

Result<std::string> json_string(const Json& object, const char* key) {
  const Json* value = json_find(object, key);
  if (value == nullptr || !value->is_string()) return wrong(key, "a string");
  return *value->get_ptr<const std::string*>();
}

Result<std::int64_t> json_int(const Json& object, const char* key) {
  const Json* value = json_find(object, key);
  if (value == nullptr || !value->is_number_integer()) return wrong(key, "an integer");
  if (const auto* u = value->get_ptr<const std::uint64_t*>()) {
    if (*u > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()))
      return wrong(key, "an integer");
    return static_cast<std::int64_t>(*u);
  }
  return *value->get_ptr<const std::int64_t*>();
}

Result<std::uint64_t> json_uint(const Json& object, const char* key) {
  const Json* value = json_find(object, key);
  if (value == nullptr || !value->is_number_integer()) return wrong(key, "an unsigned integer");
  if (const auto* u = value->get_ptr<const std::uint64_t*>()) return *u;
  const auto signed_value = *value->get_ptr<const std::int64_t*>();
  if (signed_value < 0) return wrong(key, "an unsigned integer");
  return static_cast<std::uint64_t>(signed_value);
}

Result<bool> json_bool(const Json& object, const char* key) {
  const Json* value = json_find(object, key);
  if (value == nullptr || !value->is_boolean()) return wrong(key, "true or false");
  return *value->get_ptr<const bool*>();
}

Result<std::vector<std::string>> json_strings(const Json& object, const char* key) {
  const Json* value = json_find(object, key);
  if (value == nullptr || !value->is_array()) return wrong(key, "a list of strings");
  std::vector<std::string> result;
  for (const auto& item : *value) {
    if (!item.is_string()) return wrong(key, "a list of strings");
    result.push_back(*item.get_ptr<const std::string*>());
  }
  return result;
}

Result<std::vector<std::int64_t>> json_ints(const Json& object, const char* key) {
  const Json* value = json_find(object, key);
  if (value == nullptr || !value->is_array()) return wrong(key, "a list of integers");
  std::vector<std::int64_t> result;
  for (const auto& item : *value) {
    const Json wrapped = {{key, item}};
    result.push_back(ICEBOX_TRY(json_int(wrapped, key)));
  }
  return result;
}

std::string json_text(const Json& value) {
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string json_pretty(const Json& value) {
  return value.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace icebox
