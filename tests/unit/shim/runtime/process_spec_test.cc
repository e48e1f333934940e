// SPDX-License-Identifier: Apache-2.0
#include "shim/runtime/process_spec.h"

#include <gtest/gtest.h>

namespace icebox::shim {
namespace {

TEST(WithTerminal, TheRequestWinsAndTheRestStays) {
  EXPECT_EQ(
      *with_terminal(R"({"args":["a"],"terminal":true,"new":{"x":18446744073709551615}})", false),
      R"({"args":["a"],"new":{"x":18446744073709551615},"terminal":false})");
  EXPECT_EQ(*with_terminal("{}", true), R"({"terminal":true})");
}

TEST(WithTerminal, RefusesWhatIsNoObject) {
  for (const char* text : {"", "[]", "{", "null"}) EXPECT_FALSE(with_terminal(text, true).ok());
}

// An argument is bytes; JSON's text is UTF-8. It must not end the daemon.
TEST(WithTerminal, InvalidUtf8IsNotFatal) {
  const Result<std::string> spec = with_terminal("{\"args\":[\"\xff\"]}", true);
  ASSERT_FALSE(spec.ok());
  EXPECT_EQ(spec.error().code, Code::invalid_argument);
}

}  // namespace
}  // namespace icebox::shim
