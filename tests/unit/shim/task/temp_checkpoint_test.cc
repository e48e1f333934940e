// SPDX-License-Identifier: Apache-2.0
#include "shim/task/temp_checkpoint.h"

#include <gtest/gtest.h>

namespace icebox::shim {
namespace {

const std::vector<std::string> kTemp{"/run/user/0/", "/tmp"};

TEST(TempCheckpoint, IsWhatContainerdMakes) {
  EXPECT_TRUE(is_temporary_checkpoint("/tmp/ctrd-checkpoint3141592653", "", kTemp));
  EXPECT_TRUE(is_temporary_checkpoint("/tmp/ctd-checkpoint1", "", kTemp));
  EXPECT_TRUE(is_temporary_checkpoint("/run/user/0/ctrd-checkpoint1/", "", kTemp));
}

TEST(TempCheckpoint, IsNothingThatAUserMayHaveNamed) {
  EXPECT_FALSE(is_temporary_checkpoint("/tmp/ctrd-checkpoint1", "/tmp/ctrd-checkpoint1/", kTemp));
  for (const char* path :
       {"/tmp/ctrd-checkpoint", "/tmp/ctrd-checkpoint-mine", "/tmp/ctrd-checkpoint1/x",
        "/tmp/x/ctrd-checkpoint1", "/var/tmp/ctrd-checkpoint1", "ctrd-checkpoint1", "", "/",
        "/tmp/../home/ctrd-checkpoint1", "/tmp/my-ctrd-checkpoint1"}) {
    EXPECT_FALSE(is_temporary_checkpoint(path, "", kTemp)) << path;
  }
}

}  // namespace
}  // namespace icebox::shim
