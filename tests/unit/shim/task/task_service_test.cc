// SPDX-License-Identifier: Apache-2.0
#include "shim/task/task_service.h"

#include <string>

#include <gtest/gtest.h>

namespace icebox::shim {
namespace {

TEST(ValidId, TakesContainerdsIdentifiersAndNothingThatIsAPath) {
  EXPECT_TRUE(is_valid_id("a"));
  EXPECT_TRUE(is_valid_id("Web_1.2-x"));
  EXPECT_TRUE(is_valid_id(std::string(76, 'a')));
  for (const std::string bad : {"", ".", "..", "a/b", "a b", "a\n"}) {
    EXPECT_FALSE(is_valid_id(bad)) << bad;
  }
  EXPECT_FALSE(is_valid_id(std::string(77, 'a')));
  EXPECT_FALSE(is_valid_id(std::string("a\0b", 3)));
}

}  // namespace
}  // namespace icebox::shim
