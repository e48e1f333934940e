// SPDX-License-Identifier: Apache-2.0
#include "shim/process/stdio_target.h"

#include <optional>

#include "oci/base/strings.h"

namespace icebox::shim {
namespace {

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

enum class Plus { literal, space };

// Go's net/url: a query turns '+' into a space, a path does not; a broken escape is an error.
Result<std::string> percent_decode(std::string_view text, Plus plus) {
  std::string decoded;
  decoded.reserve(text.size());
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '+' && plus == Plus::space) {
      decoded += ' ';
      continue;
    }
    if (text[i] != '%') {
      decoded += text[i];
      continue;
    }
    const int high = i + 2 < text.size() ? hex_digit(text[i + 1]) : -1;
    const int low = i + 2 < text.size() ? hex_digit(text[i + 2]) : -1;
    if (high < 0 || low < 0) {
      return make_error(Code::invalid_argument, "invalid URL escape in stdio " + std::string(text));
    }
    decoded += static_cast<char>(high * 16 + low);
    i += 2;
  }
  return decoded;
}

std::optional<StdioTarget::Kind> kind_of(std::string_view scheme) {
  if (scheme == "fifo") return StdioTarget::Kind::path;
  if (scheme == "file") return StdioTarget::Kind::file;
  if (scheme == "binary") return StdioTarget::Kind::binary;
  if (scheme == "binary-v2") return StdioTarget::Kind::binary_v2;
  return std::nullopt;
}

}  // namespace

Result<StdioTarget> parse_stdio(std::string_view text) {
  StdioTarget target;
  if (text.empty()) return target;
  if (text.front() == '/') {
    target.kind = StdioTarget::Kind::path;
    target.path = text;
    return target;
  }
  constexpr std::string_view kSeparator = "://";
  const auto separator = text.find(kSeparator);
  if (separator == std::string_view::npos) {
    return make_error(Code::invalid_argument,
                      "stdio " + std::string(text) + " is neither an absolute path nor a URI");
  }
  const std::string_view scheme = text.substr(0, separator);
  const auto kind = kind_of(scheme);
  if (!kind) {
    return make_error(Code::invalid_argument, "unknown STDIO scheme " + std::string(scheme));
  }
  target.kind = *kind;
  std::string_view rest = text.substr(separator + kSeparator.size());
  rest = rest.substr(0, rest.find('#'));
  const auto question = rest.find('?');
  target.path = ICEBOX_TRY(percent_decode(rest.substr(0, question), Plus::literal));
  if (target.path.empty() || target.path.front() != '/') {
    return make_error(Code::invalid_argument,
                      "stdio " + std::string(text) + " has no absolute path");
  }
  if (question == std::string_view::npos) return target;
  for (const std::string_view pair : split(rest.substr(question + 1), '&', SplitEmpty::drop)) {
    const auto equal = pair.find('=');
    const std::string_view value =
        equal == std::string_view::npos ? std::string_view() : pair.substr(equal + 1);
    target.parameters.emplace_back(ICEBOX_TRY(percent_decode(pair.substr(0, equal), Plus::space)),
                                   ICEBOX_TRY(percent_decode(value, Plus::space)));
  }
  return target;
}

}  // namespace icebox::shim
