// SPDX-License-Identifier: Apache-2.0
#include "shim/runtime/bundle_config.h"

#include <gtest/gtest.h>

namespace icebox::shim {
namespace {

TEST(BundleConfig, PicksWhatTheShimNeedsAtItsPlaceOnly) {
  const Result<BundleConfig> config = parse_bundle_config(R"({
    "annotations": {"io.containerd.runc.v2.group": "g", "io.kubernetes.cri.sandbox-id": "s",
                    "deep": "x"},
    "process": {"env": ["cgroupsPath=/no"], "annotations": {"io.containerd.runc.v2.group": "no"}},
    "root": {"path": "rootfs", "readonly": true},
    "linux": {"cgroupsPath": "/a/b", "resources": {"cgroupsPath": "/no"},
              "namespaces": [{"type": "network", "path": "/run/n"}, {"type": "pid"}]}})");
  ASSERT_TRUE(config.ok()) << config.error().message;
  EXPECT_EQ(config->shim_group, "g");
  EXPECT_EQ(config->cri_sandbox_id, "s");
  EXPECT_EQ(config->cgroups_path, "/a/b");
  EXPECT_EQ(config->root_path, "rootfs");
  EXPECT_TRUE(config->private_pid_namespace);
}

TEST(BundleConfig, APidNamespaceWithAPathIsSomebodyElses) {
  EXPECT_FALSE(
      parse_bundle_config(R"({"linux":{"namespaces":[{"type":"pid","path":"/proc/1/ns/pid"}]}})")
          ->private_pid_namespace);
  EXPECT_FALSE(
      parse_bundle_config(R"({"linux":{"namespaces":[{"path":"/proc/1/ns/pid","type":"pid"}]}})")
          ->private_pid_namespace);
  EXPECT_FALSE(
      parse_bundle_config(R"({"linux":{"namespaces":[{"type":"mount"}]}})")->private_pid_namespace);
  EXPECT_FALSE(parse_bundle_config("{}")->private_pid_namespace);
}

TEST(BundleConfig, BrokenJsonIsAnErrorInWords) {
  for (const char* text : {"", "{", "{\"root\": }", "[1,", "nonsense"}) {
    const Result<BundleConfig> config = parse_bundle_config(text);
    ASSERT_FALSE(config.ok()) << text;
    EXPECT_EQ(config.error().code, Code::invalid_argument);
  }
}

TEST(BundleConfig, KnowsSystemdPaths) {
  EXPECT_TRUE(is_systemd_cgroups_path("system.slice:nerdctl:abc"));
  EXPECT_FALSE(is_systemd_cgroups_path("/default/abc"));
  EXPECT_FALSE(is_systemd_cgroups_path("a:b"));
  EXPECT_FALSE(is_systemd_cgroups_path("/x:y:z"));
}

}  // namespace
}  // namespace icebox::shim
