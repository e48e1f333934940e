// SPDX-License-Identifier: Apache-2.0
#include "oci/json.h"

#include <string>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace icebox {
namespace {

TEST(ParseJson, RefusesWhatIsNoCompleteDocument) {
  for (const char* text : {"", "{", "{}x", "nope", "{\"a\":}", "\xff"}) {
    EXPECT_FALSE(parse_json(text, "text").ok()) << text;
  }
  EXPECT_TRUE(parse_json(R"({"a":[1,2]})", "text").ok());
}

TEST(ParseJson, RefusesDeepNesting) {
  const std::string deep = std::string(100'000, '[') + std::string(100'000, ']');
  const auto parsed = parse_json(deep, "deep");
  ASSERT_FALSE(parsed.ok());
  EXPECT_NE(parsed.error().message.find("nested too deeply"), std::string::npos);
}

TEST(JsonAccess, NamesTheKeyAndTheExpectedType) {
  const auto object = *parse_json(
      R"({"n":-1,"big":18446744073709551615,"s":"x","b":true,"l":["a",1],"i":[1,-2]})", "t");
  EXPECT_EQ(*json_int(object, "n"), -1);
  EXPECT_FALSE(json_uint(object, "n").ok());
  EXPECT_EQ(*json_uint(object, "big"), 18446744073709551615ULL);
  EXPECT_FALSE(json_int(object, "big").ok());
  EXPECT_EQ(*json_string(object, "s"), "x");
  EXPECT_TRUE(*json_bool(object, "b"));
  EXPECT_FALSE(json_strings(object, "l").ok());
  EXPECT_EQ(json_ints(object, "i")->at(1), -2);
  const auto missing = json_string(object, "gone");
  ASSERT_FALSE(missing.ok());
  EXPECT_NE(missing.error().message.find("'gone'"), std::string::npos);
  EXPECT_FALSE(json_string(*parse_json("[]", "t"), "s").ok());
}

}  // namespace
}  // namespace icebox
