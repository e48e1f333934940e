// SPDX-License-Identifier: Apache-2.0
//
// Checked access to JSON objects for protocol.cc: each getter returns an Error that names the
// field, and none throws.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include "oci/base/result.h"

namespace icebox::cuda::protocol {

/// View of one JSON object with the path at which it stands in the message ("outcomes[2]"). Borrows
/// the document.
class Fields {
 public:
  /// Fails unless `value` is an object that has only fields out of `known`.
  static Result<Fields> of(const nlohmann::json& value, std::string path,
                           std::initializer_list<std::string_view> known);

  [[nodiscard]] bool has(const char* key) const { return object_->contains(key); }
  /// Any value; fails if the field is missing.
  [[nodiscard]] Result<const nlohmann::json*> any(const char* key) const;
  [[nodiscard]] Result<bool> boolean(const char* key) const;
  /// A string of at most `max_size` bytes.
  [[nodiscard]] Result<std::string> text(const char* key, std::size_t max_size) const;
  /// An integral number in [minimum, maximum].
  [[nodiscard]] Result<std::uint64_t> number(const char* key, std::uint64_t minimum,
                                             std::uint64_t maximum) const;
  /// A list of at most `max_size` items.
  [[nodiscard]] Result<const nlohmann::json*> list(const char* key, std::size_t max_size) const;
  /// Path of a field, for messages.
  [[nodiscard]] std::string path_of(std::string_view key) const;

 private:
  Fields(const nlohmann::json& object, std::string path)
      : object_(&object), path_(std::move(path)) {}
  [[nodiscard]] Error wrong(const char* key, std::string_view expected) const;

  const nlohmann::json* object_;
  std::string path_;
};

}  // namespace icebox::cuda::protocol
