// SPDX-License-Identifier: Apache-2.0
#include "runtime-hooks/runtime/config.h"

#include <stdlib.h>

#include <string>

#include <gtest/gtest.h>

namespace icebox::engine {
namespace {

TEST(Config, ReadsEveryKey) {
  const auto config = parse_config(
      "runtime = 'crun'\ncriu = '/c/criu'\nlibcuda = '/l'\nlibnvidia_ml = '/n'\nlock_timeout_ms = "
      "5\ndriver_timeout_ms = 6\nstate_dir = '/s'\n",
      "f");
  ASSERT_TRUE(config.ok()) << config.error().message;
  EXPECT_EQ(config->runtime, "crun");
  EXPECT_EQ(config->criu, "/c/criu");
  EXPECT_EQ(config->libcuda, "/l");
  EXPECT_EQ(config->libnvidia_ml, "/n");
  EXPECT_EQ(config->lock_timeout.count(), 5);
  EXPECT_EQ(config->driver_timeout.count(), 6);
  EXPECT_EQ(config->state_dir, "/s");
}

TEST(Config, NamesFileAndLineOfWhatIsWrong) {
  for (const char* text : {"\nruntim = 'x'\n", "\nruntime = 5\n", "\nlock_timeout_ms = 0\n",
                           "\nlock_timeout_ms = 'x'\n", "\ndriver_timeout_ms = 3600001\n",
                           "\nruntime = ''\n", "\nbroken\n"}) {
    const auto config = parse_config(text, "my.toml");
    ASSERT_FALSE(config.ok()) << text;
    EXPECT_NE(config.error().message.find("my.toml:2"), std::string::npos)
        << config.error().message;
  }
  EXPECT_FALSE(parse_config("state_dir = 'relative'", "f").ok());
}

TEST(Config, ANamedFileMustExist) {
  ::setenv(kConfigVariable, "/no/such/config.toml", 1);
  EXPECT_FALSE(load_config().ok());
  ::unsetenv(kConfigVariable);
}

}  // namespace
}  // namespace icebox::engine
