// SPDX-License-Identifier: Apache-2.0
#include "shim/bootstrap/grouping.h"

#include <gtest/gtest.h>

namespace icebox::shim {
namespace {

TEST(GroupingKey, TheExplicitGroupWinsOverThePodOverTheId) {
  BundleConfig config;
  EXPECT_EQ(grouping_key(config, "id"), "id");
  config.cri_sandbox_id = "pod";
  EXPECT_EQ(grouping_key(config, "id"), "pod");
  config.shim_group = "group";
  EXPECT_EQ(grouping_key(config, "id"), "group");
}

TEST(GoPathJoin, CleansLikeGo) {
  EXPECT_EQ(go_path_join("/run/c.sock", "ns", "id"), "/run/c.sock/ns/id");
  EXPECT_EQ(go_path_join("/run//c.sock/", "", "id"), "/run/c.sock/id");
  EXPECT_EQ(go_path_join("/a/./b", "..", "c"), "/a/c");
  EXPECT_EQ(go_path_join("/..", "a", "b"), "/a/b");
  EXPECT_EQ(go_path_join("..", "a", ".."), "..");
  EXPECT_EQ(go_path_join("", "", ""), "");
  EXPECT_EQ(go_path_join("a", "..", ""), ".");
}

// printf /run/containerd/containerd.sock/default/x | sha256sum
TEST(SocketPath, IsTheDigestOfAddressNamespaceAndKey) {
  EXPECT_EQ(socket_path(kDefaultSocketDir, "/run/containerd/containerd.sock", "default", "x"),
            "/run/containerd/s/5e250b13f984a15f73216d143af1bf3c64171aa56c781ba9d4040c75b2c1eee2");
}

}  // namespace
}  // namespace icebox::shim
