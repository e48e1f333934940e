// SPDX-License-Identifier: Apache-2.0
#include "shim/process/stdio_target.h"

#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace icebox::shim {
namespace {

using Kind = StdioTarget::Kind;
using Parameters = std::vector<std::pair<std::string, std::string>>;

TEST(StdioTarget, Kinds) {
  const std::vector<std::tuple<std::string, Kind, std::string>> cases = {
      {"", Kind::null, ""},
      {"/run/fifo/1/x-stdout", Kind::path, "/run/fifo/1/x-stdout"},
      {"/odd name?k=v#x%20", Kind::path, "/odd name?k=v#x%20"},  // a plain path is taken as it is
      {"fifo:///run/x", Kind::path, "/run/x"},
      {"file:///var/log/a%20b", Kind::file, "/var/log/a b"},
      {"binary:///bin/logger", Kind::binary, "/bin/logger"},
      {"binary-v2:///bin/logger", Kind::binary_v2, "/bin/logger"},
  };
  for (const auto& [text, kind, path] : cases) {
    const auto target = parse_stdio(text);
    ASSERT_TRUE(target.ok()) << text << ": " << target.error().message;
    EXPECT_EQ(target->kind, kind) << text;
    EXPECT_EQ(target->path, path) << text;
    EXPECT_TRUE(target->parameters.empty()) << text;
  }
}

TEST(StdioTarget, Parameters) {
  const auto target = parse_stdio("binary:///l?a=1&b=x%2By+z&flag&empty=&%C3%A9=%25#fragment");
  ASSERT_TRUE(target.ok());
  EXPECT_EQ(
      target->parameters,
      (Parameters{{"a", "1"}, {"b", "x+y z"}, {"flag", ""}, {"empty", ""}, {"\xC3\xA9", "%"}}));
}

TEST(StdioTarget, Errors) {
  for (const char* text : {"tcp:///x", "relative", "file://", "file://host/x", "binary:///x?a=%G0",
                           "file:///%4", "file:///%"}) {
    const auto target = parse_stdio(text);
    ASSERT_FALSE(target.ok()) << text;
    EXPECT_EQ(target.error().code, Code::invalid_argument) << text;
  }
  EXPECT_EQ(parse_stdio("tcp://x").error().message, "unknown STDIO scheme tcp");
}

}  // namespace
}  // namespace icebox::shim
