// SPDX-License-Identifier: Apache-2.0
#include "oci/spec.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace icebox {
namespace {

TEST(CgroupsPath, OfTheCheckpointedContainerIsRewritten) {
  EXPECT_EQ(rewritten_cgroups_path("/default/a", "/default/a", "a", "b"), "/default/b");
  EXPECT_EQ(rewritten_cgroups_path("system.slice:ctr:a", "system.slice:ctr:a", "a", "b"),
            "system.slice:ctr:b");
  EXPECT_EQ(rewritten_cgroups_path("/pods/x", "/pods/x", "a", "b"), "/pods/x-b")
      << "never shares the old cgroup";
}

TEST(CgroupsPath, StaysWhereTheCallerChoseIt) {
  EXPECT_EQ(rewritten_cgroups_path("/kubepods/pod1/b", "/kubepods/pod1/a", "a", "b"), std::nullopt);
  EXPECT_EQ(rewritten_cgroups_path("/default/a", "/default/a", "a", "a"), std::nullopt);
  EXPECT_EQ(rewritten_cgroups_path("", "", "a", "b"), std::nullopt);
}

TEST(UnifiedCgroupPath, ExpandsSystemdSlices) {
  EXPECT_EQ(unified_cgroup_path("/default/a"), "/default/a");
  EXPECT_EQ(unified_cgroup_path("kubepods-burstable.slice:cri-containerd:a"),
            "/kubepods.slice/kubepods-burstable.slice/cri-containerd-a.scope");
  EXPECT_EQ(unified_cgroup_path(":runc:a"), "/system.slice/runc-a.scope");
  EXPECT_EQ(unified_cgroup_path("-.slice::a"), "/a.scope");
  EXPECT_EQ(unified_cgroup_path("relative/path"), "");
  EXPECT_EQ(unified_cgroup_path("not-a-slice:p:n"), "");
}

TEST(SpecMemory, IsRaisedOnlyWhereThereIsALimit) {
  Json spec = {{"linux", {{"resources", {{"memory", {{"limit", 100}, {"swap", -1}}}}}}}};
  EXPECT_TRUE(raise_spec_memory(spec, 50));
  EXPECT_EQ(spec_memory(spec).limit, 150);
  EXPECT_EQ(spec_memory(spec).swap, std::nullopt);
  EXPECT_EQ(spec["linux"]["resources"]["memory"]["swap"], -1);

  Json unlimited = {{"linux", Json::object()}};
  EXPECT_FALSE(raise_spec_memory(unlimited, 50));
  EXPECT_EQ(unlimited, (Json{{"linux", Json::object()}}));
}

TEST(SpecCgroupsPath, NeedsALinuxSection) {
  Json spec = Json::object();
  EXPECT_EQ(spec_cgroups_path(spec), "");
  EXPECT_FALSE(set_spec_cgroups_path(spec, "/x").ok());
  spec["linux"] = Json::object();
  EXPECT_TRUE(set_spec_cgroups_path(spec, "/x").ok());
  EXPECT_EQ(spec_cgroups_path(spec), "/x");
}

}  // namespace
}  // namespace icebox
