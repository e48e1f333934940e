// SPDX-License-Identifier: Apache-2.0
#include "runtime-hooks/cuda/protocol_json.h"

#include <algorithm>

namespace icebox::cuda::protocol {

using nlohmann::json;

Result<Fields> Fields::of(const json& value, std::string path,
                          std::initializer_list<std::string_view> known) {
  if (!value.is_object()) {
    return make_error(Code::invalid_argument,
                      (path.empty() ? std::string("message") : path) + " is not a JSON object");
  }
  const Fields fields(value, std::move(path));
  for (const auto& item : value.items()) {
    if (std::find(known.begin(), known.end(), item.key()) == known.end()) {
      return make_error(Code::invalid_argument,
                        "unknown field " + fields.path_of(item.key().substr(0, 64)));
    }
  }
  return fields;
}

std::string Fields::path_of(std::string_view key) const {
  return path_.empty() ? std::string(key) : path_ + "." + std::string(key);
}

Error Fields::wrong(const char* key, std::string_view expected) const {
  return make_error(Code::invalid_argument,
                    "field " + path_of(key) + " must be " + std::string(expected));
}

Result<const json*> Fields::any(const char* key) const {
  const auto found = object_->find(key);
  if (found == object_->end()) {
    return make_error(Code::invalid_argument, "field " + path_of(key) + " is missing");
  }
  return &*found;
}

Result<bool> Fields::boolean(const char* key) const {
  const json* value = ICEBOX_TRY(any(key));
  if (!value->is_boolean()) return wrong(key, "true or false");
  return value->get<bool>();
}

Result<std::string> Fields::text(const char* key, std::size_t max_size) const {
  const json* value = ICEBOX_TRY(any(key));
  if (!value->is_string()) return wrong(key, "a string");
  const auto& string = value->get_ref<const std::string&>();
  if (string.size() > max_size) {
    return wrong(key, "at most " + std::to_string(max_size) + " bytes long");
  }
  return string;
}

Result<std::uint64_t> Fields::number(const char* key, std::uint64_t minimum,
                                     std::uint64_t maximum) const {
  const json* value = ICEBOX_TRY(any(key));
  // nlohmann parses every non-negative integer as unsigned; a float of integral value is no
  // integer.
  const bool fits = value->is_number_unsigned() && value->get<std::uint64_t>() >= minimum &&
                    value->get<std::uint64_t>() <= maximum;
  if (!fits) {
    return wrong(
        key, "a whole number from " + std::to_string(minimum) + " to " + std::to_string(maximum));
  }
  return value->get<std::uint64_t>();
}

Result<const json*> Fields::list(const char* key, std::size_t max_size) const {
  const json* value = ICEBOX_TRY(any(key));
  if (!value->is_array()) return wrong(key, "a list");
  if (value->size() > max_size) {
    return wrong(key, "a list of at most " + std::to_string(max_size) + " items");
  }
  return value;
}

}  // namespace icebox::cuda::protocol
