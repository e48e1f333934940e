// SPDX-License-Identifier: Apache-2.0
#include "shim/runtime/mount_options.h"

#include <sys/mount.h>

#include <gtest/gtest.h>

namespace icebox::shim {
namespace {

constexpr std::size_t kPage = 4096;

TEST(PlanMount, SplitsFlagsFromData) {
  const Result<MountCall> call = plan_mount(
      {"overlay", "overlay", "", {"ro", "nosuid", "lowerdir=/a:/b", "index=off", "rprivate"}},
      kPage);
  ASSERT_TRUE(call.ok());
  EXPECT_EQ(call->flags, static_cast<unsigned long>(MS_RDONLY | MS_NOSUID));
  EXPECT_EQ(call->propagation, static_cast<unsigned long>(MS_PRIVATE | MS_REC));
  EXPECT_EQ(call->data, "lowerdir=/a:/b,index=off");
  EXPECT_EQ(call->chdir, "");
}

TEST(PlanMount, LaterOptionsUndoEarlierOnes) {
  EXPECT_EQ(plan_mount({"bind", "/s", "", {"rbind", "ro", "rw"}}, kPage)->flags,
            static_cast<unsigned long>(MS_BIND | MS_REC));
}

RootfsMount many_layers(const std::string& base, int count) {
  std::string lower = "lowerdir=";
  for (int i = 0; i < count; ++i) {
    lower += (i > 0 ? ":" : "") + base + "/snapshots/" + std::to_string(1000 + i) + "/fs";
  }
  return {"overlay", "overlay", "", {"workdir=/w", "upperdir=/u", lower}};
}

TEST(PlanMount, AnOverlayOfManyLayersIsMountedFromTheirDirectory) {
  const std::string base = "/var/lib/containerd/io.containerd.snapshotter.v1.overlayfs";
  const Result<MountCall> call = plan_mount(many_layers(base, 100), kPage);
  ASSERT_TRUE(call.ok()) << call.error().message;
  EXPECT_EQ(call->chdir, base + "/snapshots");
  EXPECT_LT(call->data.size(), kPage);
  EXPECT_TRUE(call->data.starts_with("workdir=/w,upperdir=/u,lowerdir=1000/fs:1001/fs:"))
      << call->data;
}

TEST(PlanMount, WhatStaysTooLongIsRefusedInWords) {
  const Result<MountCall> call = plan_mount(many_layers("/var/lib", 1000), kPage);
  ASSERT_FALSE(call.ok());
  EXPECT_NE(call.error().message.find("too many layers"), std::string::npos);
  EXPECT_FALSE(plan_mount({"ext4", "/dev/x", "", {std::string(kPage, 'x')}}, kPage).ok());
}

TEST(PlanMount, ExactlyOnePageWithItsZeroFits) {
  EXPECT_TRUE(plan_mount({"x", "y", "", {std::string(kPage - 1, 'x')}}, kPage).ok());
}

TEST(PlanMount, RefusesWhatItCannotDo) {
  EXPECT_EQ(plan_mount({"ext4", "/i", "", {"loop"}}, kPage).error().code, Code::invalid_argument);
  EXPECT_FALSE(plan_mount({"bind", "/i", "", {"uidmap=0:1000:1"}}, kPage).ok());
}

}  // namespace
}  // namespace icebox::shim
