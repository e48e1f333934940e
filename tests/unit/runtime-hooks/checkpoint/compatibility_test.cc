// SPDX-License-Identifier: Apache-2.0
#include "runtime-hooks/checkpoint/compatibility.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace icebox::engine {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

CheckpointInfo checkpoint() {
  CheckpointInfo info;
  info.architecture = "x86_64";
  info.cpu_features = {"avx", "avx512f"};
  info.criu_version = "4.2";
  info.gpu_state = "inline";
  info.driver_version = "580.1";
  info.gpus = {{"GPU-A", "H200", 1000, "9.0", "1"}, {"GPU-B", "H200", 1000, "9.0", "2"}};
  info.processes = {{10, {1}, "p", 600, {{"GPU-A", 600}}}};
  return info;
}

HostFacts host() {
  HostFacts facts;
  facts.architecture = "x86_64";
  facts.cpu_features = {"avx", "avx2", "avx512f"};
  facts.criu = {4, 2, 1};
  cuda::DriverInfo driver;
  driver.driver_version = "580.1";
  cuda::Gpu gpu;
  gpu.uuid = "GPU-A";
  gpu.name = "H200";
  gpu.total_bytes = 1000;
  gpu.free_bytes = 900;
  driver.gpus.push_back(gpu);
  gpu.uuid = "GPU-B";
  driver.gpus.push_back(gpu);
  facts.driver = driver;
  return facts;
}

TEST(Compatibility, TheSameHostFits) {
  EXPECT_THAT(incompatibilities(checkpoint(), host()), IsEmpty());
}

TEST(Compatibility, EveryDifferenceIsNamed) {
  auto other = host();
  other.architecture = "aarch64";
  other.cpu_features = {"avx"};
  other.criu = {4, 1, 1};
  other.driver->driver_version = "570.9";
  other.driver->gpus[0].name = "A100";
  other.driver->gpus[0].free_bytes = 100;
  EXPECT_THAT(
      incompatibilities(checkpoint(), other),
      ElementsAre(HasSubstr("aarch64"), HasSubstr("avx512f"), HasSubstr("CRIU here is 4.1.1"),
                  HasSubstr("570.9"), HasSubstr("A100"), HasSubstr("free")));
}

TEST(Compatibility, ASmallerGpuIsRefused) {
  auto other = host();
  other.driver->gpus[0].total_bytes = 500;
  other.driver->gpus[0].free_bytes = 500;
  EXPECT_THAT(incompatibilities(checkpoint(), other), Contains(HasSubstr("of memory")));
}

TEST(Compatibility, GpusMatterOnlyWithGpuState) {
  auto info = checkpoint();
  info.processes.clear();
  auto other = host();
  other.driver.reset();
  EXPECT_THAT(incompatibilities(info, other), IsEmpty());
}

TEST(GpuMap, IsEmptyWhereTheGpusAreHere) {
  EXPECT_TRUE(plan_gpu_map(checkpoint(), *host().driver)->empty());
}

TEST(GpuMap, IsACompletePermutationElsewhere) {
  auto driver = *host().driver;
  driver.gpus[0].uuid = "GPU-C";
  driver.gpus[1].uuid = "GPU-D";
  const auto map = plan_gpu_map(checkpoint(), driver);
  ASSERT_TRUE(map.ok());
  ASSERT_EQ(map->size(), 2U);
  EXPECT_EQ((*map)[0].old_uuid, "GPU-A");
  EXPECT_EQ((*map)[0].new_uuid, "GPU-C");
  driver.gpus.pop_back();
  EXPECT_FALSE(plan_gpu_map(checkpoint(), driver).ok());
}

TEST(InstructionFeatures, LeavesOutWhatOnlyDescribesTheMachine) {
  EXPECT_THAT(instruction_features(
                  "processor\t: 0\nflags\t\t: fpu sse2 erms md_clear avx2 hypervisor amx_tile\n"
                  "processor\t: 1\nflags\t\t: other\n"),
              ElementsAre("amx_tile", "avx2", "sse2"));
}

}  // namespace
}  // namespace icebox::engine
