// SPDX-License-Identifier: Apache-2.0
#include "shim/runtime/rootfs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace icebox::shim {
namespace {

using ::testing::ElementsAre;

constexpr const char* kMountinfo =
    "1 0 8:1 / / rw - ext4 /dev/sda1 rw\n"
    "2 1 0:30 / /b/rootfs rw - overlay overlay rw\n"
    "3 2 0:31 / /b/rootfs/with\\040space rw shared:4 - tmpfs tmpfs rw\n"
    "4 1 0:32 / /b/rootfs2 rw - tmpfs tmpfs rw\n"
    "5 1 0:33 / /b/rootfs rw - tmpfs tmpfs rw\n";

TEST(MountPointsUnder, FindsThePathAndWhatIsBelowInMountOrder) {
  EXPECT_THAT(mount_points_under(kMountinfo, "/b/rootfs"),
              ElementsAre("/b/rootfs", "/b/rootfs/with space", "/b/rootfs"));
  EXPECT_THAT(mount_points_under(kMountinfo, "/nowhere"), ElementsAre());
  EXPECT_EQ(mount_points_under(kMountinfo, "/").size(), 5U);
}

TEST(MountRootfs, ATargetMustStayInside) {
  const Result<void> mounted =
      mount_rootfs({{"bind", "/tmp", "a/../../etc", {"bind"}}}, "/nowhere/rootfs");
  ASSERT_FALSE(mounted.ok());
  EXPECT_EQ(mounted.error().code, Code::invalid_argument);
}

}  // namespace
}  // namespace icebox::shim
