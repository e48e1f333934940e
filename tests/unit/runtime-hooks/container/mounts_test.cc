// SPDX-License-Identifier: Apache-2.0
#include "runtime-hooks/container/mounts.h"

#include <sys/sysmacros.h>

#include <gtest/gtest.h>

namespace icebox::container {
namespace {

TEST(ParseMountinfo, reads_a_line_with_optional_fields) {
  const auto mounts = parse_mountinfo(
      "36 35 98:7 /mnt1 /mnt2 rw,noatime master:1 shared:2 - ext3 /dev/root rw,errors=continue\n");
  ASSERT_EQ(mounts.size(), 1U);
  EXPECT_EQ(mounts[0].device, makedev(98, 7));
  EXPECT_EQ(mounts[0].root, "/mnt1");
  EXPECT_EQ(mounts[0].point, "/mnt2");
  EXPECT_EQ(mounts[0].type, "ext3");
  EXPECT_EQ(mounts[0].super_options, "rw,errors=continue");
}

TEST(ParseMountinfo, reads_a_line_without_optional_fields) {
  const auto mounts =
      parse_mountinfo("30 23 0:26 / /sys/fs/cgroup/freezer rw - cgroup cgroup rw,freezer\n");
  ASSERT_EQ(mounts.size(), 1U);
  EXPECT_EQ(mounts[0].type, "cgroup");
  EXPECT_EQ(mounts[0].super_options, "rw,freezer");
}

TEST(ParseMountinfo, decodes_what_the_kernel_escapes) {
  const auto mounts =
      parse_mountinfo(R"(1 2 0:1 /a\134b /tab\011space\040newline\012end rw - tmpfs none rw)");
  ASSERT_EQ(mounts.size(), 1U);
  EXPECT_EQ(mounts[0].root, "/a\\b");
  EXPECT_EQ(mounts[0].point, "/tab\tspace newline\nend");
}

TEST(ParseMountinfo, keeps_a_backslash_that_escapes_nothing) {
  const auto mounts = parse_mountinfo(R"(1 2 0:1 /a\9 /end\04 rw - tmpfs none rw)");
  ASSERT_EQ(mounts.size(), 1U);
  EXPECT_EQ(mounts[0].root, R"(/a\9)");
  EXPECT_EQ(mounts[0].point, R"(/end\04)");
}

// An empty source is written as two spaces.
TEST(ParseMountinfo, an_empty_source_is_a_field) {
  const auto mounts = parse_mountinfo("1 2 0:1 / /x rw - tmpfs  rw,size=1k\n");
  ASSERT_EQ(mounts.size(), 1U);
  EXPECT_EQ(mounts[0].super_options, "rw,size=1k");
}

TEST(ParseMountinfo, leaves_out_what_is_no_mount) {
  EXPECT_TRUE(parse_mountinfo("").empty());
  EXPECT_TRUE(parse_mountinfo("\n\nrubbish\n1 2 0:1 / /x rw tmpfs none rw\n").empty());
  EXPECT_TRUE(parse_mountinfo("1 2 0:1 / /x rw - tmpfs none").empty());
  EXPECT_TRUE(parse_mountinfo("1 2 zero / /x rw - tmpfs none rw").empty());
  EXPECT_TRUE(parse_mountinfo("1 2 0:x / /x rw - tmpfs none rw").empty());
  EXPECT_TRUE(parse_mountinfo("- - - - -").empty());
}

}  // namespace
}  // namespace icebox::container
