// SPDX-License-Identifier: Apache-2.0
#include "oci/base/strings.h"

#include <charconv>
#include <cstdio>

namespace icebox {
namespace {

template <typename T>
Result<T> parse_number(std::string_view text) {
  T value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || text.empty()) {
    return make_error(Code::invalid_argument, "not a number: '" + std::string(text) + "'");
  }
  return value;
}

}  // namespace

std::vector<std::string_view> split(std::string_view text, char separator, SplitEmpty empty) {
  std::vector<std::string_view> parts;
  for (;;) {
    const auto at = text.find(separator);
    const auto part = text.substr(0, at);
    if (!part.empty() || empty == SplitEmpty::keep) parts.push_back(part);
    if (at == std::string_view::npos) return parts;
    text.remove_prefix(at + 1);
  }
}

std::string_view trim(std::string_view text) {
  constexpr std::string_view kSpace = " \t\r\n";
  const auto first = text.find_first_not_of(kSpace);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kSpace) - first + 1);
}

std::string join(const std::vector<std::string>& parts, std::string_view separator) {
  std::string text;
  for (const auto& part : parts) {
    if (!text.empty()) text += separator;
    text += part;
  }
  return text;
}

Result<std::uint64_t> parse_u64(std::string_view text) { return parse_number<std::uint64_t>(text); }
Result<std::int64_t> parse_i64(std::string_view text) { return parse_number<std::int64_t>(text); }

std::string human_bytes(std::uint64_t bytes) {
  static constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  auto value = static_cast<double>(bytes);
  std::size_t unit = 0;
  while (value >= 1024 && unit + 1 < std::size(kUnits)) {
    value /= 1024;
    ++unit;
  }
  char buffer[32];
  std::snprintf(buffer, sizeof buffer, unit == 0 ? "%.0f %s" : "%.1f %s", value, kUnits[unit]);
  return buffer;
}

}  // namespace icebox
