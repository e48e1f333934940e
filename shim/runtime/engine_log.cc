// SPDX-License-Identifier: Apache-2.0
#include "shim/runtime/engine_log.h"

#include <cstddef>
#include <utility>

#include "oci/base/strings.h"
#include "shim/runtime/flat_json.h"

namespace icebox::shim {
namespace {

constexpr std::size_t kMaxText = 2048;

// The last line of `text` that is not blank.
std::string_view last_line(std::string_view text) {
  const std::string_view trimmed = trim(text);
  const std::size_t newline = trimmed.rfind('\n');
  return newline == std::string_view::npos ? trimmed : trim(trimmed.substr(newline + 1));
}

}  // namespace

std::string last_error_message(std::string_view lines) {
  std::string last;
  for (const std::string_view line : split(lines, '\n', SplitEmpty::drop)) {
    std::string level;
    std::string message;
    const Result<void> parsed = for_each_member(line, [&](std::string_view key, FlatValue value) {
      std::string* text = std::get_if<std::string>(&value);
      if (text != nullptr && key == "level") level = std::move(*text);
      if (text != nullptr && key == "msg") message = std::move(*text);
    });
    if (!parsed.ok()) continue;
    if (level == "error" || level == "fatal" || level == "panic") last = std::string(trim(message));
  }
  return last;
}

std::string failure_text(std::string_view log_lines, std::string_view err) {
  std::string text = last_error_message(log_lines);
  if (text.empty()) text = std::string(last_line(err));
  if (text.size() > kMaxText) {
    text.resize(kMaxText);
    text += "...";
  }
  return text;
}

}  // namespace icebox::shim
