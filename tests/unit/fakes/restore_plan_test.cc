// SPDX-License-Identifier: Apache-2.0
#include "tests/fakes/cuda/restore_plan.h"

#include <cstring>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace icebox::sim {
namespace {

using cu::Result;

constexpr std::uint64_t kMib = 1 << 20;

/// A process that knows GPUs 0 and 1 and has 10 MiB on GPU 0, and a machine with the same two GPUs.
class RestorePlan : public ::testing::Test {
 protected:
  RestorePlan() {
    usage_[0].bytes = 10 * kMib;
    request_.host_gpu_count = 2;
    for (int i = 0; i < 2; ++i) {
      request_.host_gpus[i].uuid = host_.gpus[i].uuid;
      request_.host_gpus[i].free_bytes = 100 * kMib;
      std::strcpy(request_.host_gpus[i].name, host_.gpus[i].name);
    }
  }

  cu::Uuid uuid(int gpu) const { return host_.gpus[gpu].uuid; }

  Result plan(const std::vector<std::pair<int, int>>& pairs = {}) {
    request_.pair_count = static_cast<std::uint32_t>(pairs.size());
    for (std::size_t i = 0; i < pairs.size(); ++i)
      request_.pairs[i] = {uuid(pairs[i].first), uuid(pairs[i].second)};
    return plan_restore(host_.gpus, 2, usage_, request_, target_);
  }

  Host host_;
  Usage usage_[kMaxGpus] = {};
  Request request_{};
  cu::Uuid target_[kMaxGpus] = {};
};

TEST_F(RestorePlan, WithoutPairsEveryGpuComesBackOnItself) {
  EXPECT_EQ(plan(), Result::success);
  EXPECT_EQ(target_[0], uuid(0));
  EXPECT_EQ(target_[1], uuid(1));
}

TEST_F(RestorePlan, WithoutPairsAUsedGpuMustBeThere) {
  request_.host_gpus[0].uuid = uuid(7);
  EXPECT_EQ(plan(), Result::invalid_device);
}

TEST_F(RestorePlan, WithoutPairsAnUnusedGpuMayBeMissing) {
  request_.host_gpu_count = 1;
  EXPECT_EQ(plan(), Result::success);
}

TEST_F(RestorePlan, NeedsTheMemoryOnTheTarget) {
  request_.host_gpus[0].free_bytes = 10 * kMib - 1;
  EXPECT_EQ(plan(), Result::out_of_memory);
  EXPECT_EQ(plan({{0, 1}, {1, 0}}), Result::success);
  EXPECT_EQ(target_[0], uuid(1));
  EXPECT_EQ(target_[1], uuid(0));
  request_.host_gpus[0].free_bytes = 10 * kMib;
  EXPECT_EQ(plan(), Result::success);
}

TEST_F(RestorePlan, PairsMustBeACompletePermutation) {
  EXPECT_EQ(plan({{0, 0}, {1, 1}}), Result::success);
  EXPECT_EQ(plan({{0, 1}}), Result::invalid_value);
  EXPECT_EQ(plan({{0, 0}, {0, 1}}), Result::invalid_value);
  EXPECT_EQ(plan({{0, 1}, {1, 1}}), Result::invalid_value);
  EXPECT_EQ(plan({{0, 1}, {1, 5}}), Result::invalid_value);
  EXPECT_EQ(plan({{5, 1}, {1, 0}}), Result::invalid_value);
  EXPECT_EQ(plan({{0, 1}, {1, 0}, {2, 2}}), Result::invalid_value);
}

TEST_F(RestorePlan, PairsNeedTheSameModel) {
  std::strcpy(request_.host_gpus[1].name, "Another model");
  EXPECT_EQ(plan({{0, 1}, {1, 0}}), Result::invalid_value);
}

}  // namespace
}  // namespace icebox::sim
