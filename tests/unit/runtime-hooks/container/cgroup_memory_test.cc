// SPDX-License-Identifier: Apache-2.0
//
// The v2 side of the memory limits, on files that look like a cgroup; v1 is tested on real cgroups.
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <gtest/gtest.h>

#include "oci/base/file.h"
#include "oci/base/strings.h"
#include "runtime-hooks/container/cgroup.h"

namespace icebox::container {
namespace {

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20U;

class MemoryV2Test : public ::testing::Test {
 protected:
  void SetUp() override {
    char directory[] = "/tmp/icebox-unit-XXXXXX";
    ASSERT_NE(::mkdtemp(directory), nullptr);
    top_ = directory;
    outer_ = top_ + "/outer";
    inner_ = outer_ + "/inner";
    ASSERT_TRUE(make_directories(inner_, 0700).ok());
    for (const auto& path : {outer_, inner_}) {
      write(path + "/cgroup.procs", "");
      write(path + "/memory.max", "max\n");
      write(path + "/memory.high", "max\n");
      write(path + "/memory.current", std::to_string(100 * kMiB) + "\n");
    }
  }
  void TearDown() override { EXPECT_TRUE(remove_tree(top_).ok()); }

  static void write(const std::string& path, const std::string& text) {
    ASSERT_TRUE(write_file_atomic(path, text, 0600, Durable::no).ok());
  }
  // write_control_file does not truncate: only as many digits as were written last count.
  static std::uint64_t bytes(const std::string& path) {
    const auto text = read_file(path, 4096);
    return text.ok() ? parse_u64(split(*text, '\n', SplitEmpty::drop)[0]).value_or(0) : 0;
  }
  [[nodiscard]] Cgroup cgroup() const { return Cgroup::from_paths(true, inner_, inner_); }

  std::string top_;
  std::string outer_;
  std::string inner_;
};

TEST_F(MemoryV2Test, no_limit_is_nothing_to_raise) {
  const auto saved = cgroup().raise_memory_limit(10 * kMiB);
  ASSERT_TRUE(saved.ok()) << saved.error().message;
  EXPECT_TRUE(saved->empty());
}

TEST_F(MemoryV2Test, raises_max_and_high_of_all_levels) {
  write(inner_ + "/memory.max", "105000000\n");
  write(inner_ + "/memory.high", "104900000\n");
  write(outer_ + "/memory.max", "106000000\n");
  const auto saved = cgroup().raise_memory_limit(50 * kMiB);
  ASSERT_TRUE(saved.ok()) << saved.error().message;
  ASSERT_EQ(saved->size(), 3U);
  EXPECT_EQ((*saved)[0].file, inner_ + "/memory.max");
  EXPECT_EQ((*saved)[0].value, "105000000");
  EXPECT_EQ((*saved)[2].file, outer_ + "/memory.max");
  for (const auto& file :
       {inner_ + "/memory.max", inner_ + "/memory.high", outer_ + "/memory.max"}) {
    EXPECT_GE(bytes(file), 150 * kMiB) << file;
    EXPECT_LT(bytes(file), 200 * kMiB) << file;
  }
}

TEST_F(MemoryV2Test, nothing_is_raised_where_there_is_room) {
  write(inner_ + "/memory.max", std::to_string(500 * kMiB) + "\n");
  const auto saved = cgroup().raise_memory_limit(50 * kMiB);
  ASSERT_TRUE(saved.ok()) << saved.error().message;
  EXPECT_TRUE(saved->empty());
}

// On v2 the kernel would kill inside the cgroup to get below the new limit.
TEST_F(MemoryV2Test, a_limit_below_the_usage_is_not_put_back) {
  write(inner_ + "/memory.max", std::to_string(900 * kMiB));
  const auto restored =
      Cgroup::restore_limits({{inner_ + "/memory.max", std::to_string(90 * kMiB)}});
  ASSERT_FALSE(restored.ok());
  EXPECT_NE(restored.error().message.find(inner_ + "/memory.max"), std::string::npos)
      << restored.error().message;
  EXPECT_NE(restored.error().message.find(std::to_string(90 * kMiB)), std::string::npos);
  EXPECT_NE(restored.error().message.find("usage " + std::to_string(100 * kMiB)),
            std::string::npos);
  EXPECT_EQ(bytes(inner_ + "/memory.max"), 900 * kMiB);
}

TEST_F(MemoryV2Test, the_excess_is_reclaimed_first) {
  write(inner_ + "/memory.reclaim", "");
  write(inner_ + "/memory.max", std::to_string(900 * kMiB));
  EXPECT_FALSE(Cgroup::restore_limits({{inner_ + "/memory.max", std::to_string(90 * kMiB)}}).ok());
  EXPECT_EQ(bytes(inner_ + "/memory.reclaim"), 10 * kMiB);
}

TEST_F(MemoryV2Test, a_failure_puts_back_what_was_raised) {
  write(inner_ + "/memory.max", "105000000\n");
  write(outer_ + "/memory.max", "rubbish\n");
  const auto saved = cgroup().raise_memory_limit(50 * kMiB);
  ASSERT_FALSE(saved.ok());
  EXPECT_NE(saved.error().message.find(outer_ + "/memory.max"), std::string::npos)
      << saved.error().message;
  EXPECT_EQ(bytes(inner_ + "/memory.max"), 105000000U);
}

TEST_F(MemoryV2Test, limits_of_cgroups_that_are_gone_are_forgotten) {
  EXPECT_TRUE(Cgroup::restore_limits({{top_ + "/none/memory.max", "max"}}).ok());
}

}  // namespace
}  // namespace icebox::container
