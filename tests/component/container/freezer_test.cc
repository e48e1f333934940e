// SPDX-License-Identifier: Apache-2.0
//
// Listing, freezing and thawing of real cgroups.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <thread>

#include "oci/base/file.h"
#include "runtime-hooks/container/cgroup.h"
#include "tests/component/container/harness.h"

namespace icebox::container::test {
namespace {

using std::chrono::milliseconds;

constexpr std::chrono::seconds kFreeze{10};

class FreezerTest : public VersionTest {
 protected:
  [[nodiscard]] FreezerState state() const {
    const auto state = container_.cgroup().state();
    EXPECT_TRUE(state.ok()) << state.error().message;
    return state.ok() ? *state : FreezerState::freezing;
  }

  Shared<Board> board_;
  TestCgroup container_{GetParam()};
};

INSTANTIATE_TEST_SUITE_P(Cgroup, FreezerTest, ::testing::Values(Version::v1, Version::v2),
                         version_name);

TEST_P(FreezerTest, lists_processes_of_all_levels_in_order) {
  const std::string child = container_.make_child("child");
  const std::string grandchild = container_.make_child("child/grandchild");
  std::vector<pid_t> expected;
  for (const std::string& path : {grandchild, child, std::string(), grandchild}) {
    expected.push_back(container_.start([] { ::pause(); }, path));
  }
  std::sort(expected.begin(), expected.end());
  EXPECT_TRUE(eventually([&] { return container_.cgroup().processes().value_or({}) == expected; }));
}

TEST_P(FreezerTest, a_missing_cgroup_is_not_found) {
  const Cgroup cgroup =
      Cgroup::from_paths(GetParam() == Version::v2, container_.path() + "/none", "");
  EXPECT_EQ(cgroup.processes().error().code, Code::not_found);
  EXPECT_EQ(cgroup.state().error().code, Code::not_found);
  EXPECT_EQ(cgroup.freeze(kFreeze).error().code, Code::not_found);
  EXPECT_EQ(cgroup.thaw().error().code, Code::not_found);
}

TEST_P(FreezerTest, freezes_and_thaws) {
  const Cgroup cgroup = container_.cgroup();
  container_.start([&] { run_busy(*board_, 3); });
  container_.start([&] { run_busy(*board_, 1); }, container_.make_child("child"));
  ASSERT_TRUE(all_move(*board_, 4));
  EXPECT_EQ(state(), FreezerState::thawed);
  for (int round = 0; round < 10; ++round) {
    const auto frozen = cgroup.freeze(kFreeze);
    ASSERT_TRUE(frozen.ok()) << frozen.error().message;
    const auto before = snapshot(*board_);
    EXPECT_EQ(state(), FreezerState::frozen);
    EXPECT_TRUE(cgroup.freeze(kFreeze).ok()) << "a second time";
    EXPECT_EQ(snapshot(*board_), before);
    ASSERT_TRUE(cgroup.thaw().ok());
    ASSERT_TRUE(all_move(*board_, 4));
    EXPECT_EQ(state(), FreezerState::thawed);
  }
}

TEST_P(FreezerTest, an_empty_cgroup_freezes) {
  ASSERT_TRUE(container_.cgroup().freeze(kFreeze).ok());
  EXPECT_EQ(state(), FreezerState::frozen);
}

TEST_P(FreezerTest, freezes_processes_that_fork_all_the_time) {
  const Cgroup cgroup = container_.cgroup();
  Shared<std::atomic<std::uint64_t>> forks;
  for (int i = 0; i < 3; ++i) {
    container_.start([&] {
      for (;;) {
        const pid_t pid = ::fork();
        if (pid == 0) ::_exit(0);
        ++*forks;
        ::waitpid(pid, nullptr, 0);
      }
    });
  }
  ASSERT_TRUE(eventually([&] { return *forks > 50; }));
  for (int round = 0; round < 20; ++round) {
    const auto frozen = cgroup.freeze(kFreeze);
    ASSERT_TRUE(frozen.ok()) << frozen.error().message;
    const std::uint64_t before = *forks;
    const auto pids = cgroup.processes().value_or({});
    std::this_thread::sleep_for(milliseconds(5));  // long enough for a stray process to fork
    EXPECT_EQ(*forks, before);
    EXPECT_EQ(cgroup.processes().value_or({}), pids);
    ASSERT_TRUE(cgroup.thaw().ok());
    ASSERT_TRUE(eventually([&] { return *forks > before + 5; }));
  }
}

TEST_P(FreezerTest, a_requested_freeze_is_waited_for) {
  const Cgroup cgroup = container_.cgroup();
  container_.start([&] { run_busy(*board_, 3); });
  ASSERT_TRUE(all_move(*board_, 3));
  ASSERT_TRUE(cgroup.request_freeze().ok());
  const auto frozen = cgroup.wait_frozen(kFreeze);
  ASSERT_TRUE(frozen.ok()) << frozen.error().message;
  EXPECT_EQ(state(), FreezerState::frozen);
}

TEST_P(FreezerTest, a_task_that_does_not_freeze_is_named_and_the_rest_thawed) {
  StuckPipe pipe;
  const pid_t stuck = container_.start([&] { pipe.get_stuck(); });
  container_.start([&] { run_busy(*board_, 2); });
  ASSERT_TRUE(all_move(*board_, 2));
  ASSERT_TRUE(eventually([&] { return state_of(stuck) == 'D'; })) << state_of(stuck);
  const auto frozen = container_.cgroup().freeze(milliseconds(300));
  ASSERT_FALSE(frozen.ok());
  EXPECT_EQ(frozen.error().code, Code::deadline_exceeded);
  EXPECT_NE(frozen.error().message.find("of process " + std::to_string(stuck) + ", state D, in "),
            std::string::npos)
      << frozen.error().message;
  EXPECT_EQ(state(), FreezerState::thawed);
  EXPECT_TRUE(all_move(*board_, 2));
  pipe.release();
  EXPECT_TRUE(container_.cgroup().freeze(kFreeze).ok());
}

TEST_P(FreezerTest, what_others_asked_to_freeze_is_not_thawed_when_it_does_not) {
  StuckPipe pipe;
  const Cgroup cgroup = container_.cgroup();
  const pid_t stuck = container_.start([&] { pipe.get_stuck(); });
  container_.start([&] { run_busy(*board_, 2); });
  ASSERT_TRUE(all_move(*board_, 2));
  ASSERT_TRUE(eventually([&] { return state_of(stuck) == 'D'; })) << state_of(stuck);
  ASSERT_TRUE(cgroup.request_freeze().ok());
  EXPECT_EQ(cgroup.wait_frozen(milliseconds(100)).error().code, Code::deadline_exceeded);
  const auto before = snapshot(*board_);
  EXPECT_EQ(cgroup.freeze(milliseconds(300)).error().code, Code::deadline_exceeded);
  EXPECT_EQ(snapshot(*board_), before) << "it was thawed in between";
  EXPECT_EQ(state(), FreezerState::freezing);
  pipe.release();
  EXPECT_TRUE(cgroup.wait_frozen(kFreeze).ok());
}

// The v2 kernel calls a cgroup frozen when those below it are, whatever its own tasks do.
TEST_P(FreezerTest, a_frozen_child_does_not_make_the_parent_frozen) {
  StuckPipe pipe;
  container_.start([&] { run_busy(*board_, 1); }, container_.make_child("child"));
  ASSERT_TRUE(all_move(*board_, 1));
  const pid_t stuck = container_.start([&] { pipe.get_stuck(); });
  ASSERT_TRUE(eventually([&] { return state_of(stuck) == 'D'; })) << state_of(stuck);
  const auto frozen = container_.cgroup().freeze(milliseconds(300));
  ASSERT_FALSE(frozen.ok());
  EXPECT_EQ(frozen.error().code, Code::deadline_exceeded);
  EXPECT_NE(frozen.error().message.find("of process " + std::to_string(stuck)), std::string::npos)
      << frozen.error().message;
  pipe.release();
  EXPECT_TRUE(container_.cgroup().freeze(kFreeze).ok());
}

TEST_P(FreezerTest, a_thaw_below_a_frozen_cgroup_says_so) {
  TestCgroup inner(GetParam(), container_.path());
  inner.start([&] { run_busy(*board_, 1); });
  ASSERT_TRUE(all_move(*board_, 1));
  ASSERT_TRUE(container_.cgroup().freeze(kFreeze).ok());
  EXPECT_EQ(inner.cgroup().state().value_or(FreezerState::thawed), FreezerState::frozen);
  const auto thawed = inner.cgroup().thaw();
  ASSERT_FALSE(thawed.ok());
  EXPECT_EQ(thawed.error().code, Code::failed_precondition);
  EXPECT_NE(thawed.error().message.find(container_.path() + " above"), std::string::npos)
      << thawed.error().message;
  ASSERT_TRUE(container_.cgroup().thaw().ok());
  EXPECT_TRUE(inner.cgroup().thaw().ok());
  EXPECT_TRUE(all_move(*board_, 1));
}

TEST_P(FreezerTest, fault_points_fail_freeze_and_thaw) {
  {
    const Faults faults("container.freeze fail\n");
    EXPECT_FALSE(container_.cgroup().freeze(kFreeze).ok());
    EXPECT_FALSE(container_.cgroup().request_freeze().ok());
    EXPECT_EQ(state(), FreezerState::thawed);
  }
  ASSERT_TRUE(container_.cgroup().freeze(kFreeze).ok());
  {
    const Faults faults("container.thaw fail\n");
    EXPECT_FALSE(container_.cgroup().thaw().ok());
    EXPECT_EQ(state(), FreezerState::frozen);
  }
  EXPECT_TRUE(container_.cgroup().thaw().ok());
}

TEST_P(FreezerTest, moves_a_process) {
  TestCgroup other(GetParam());
  const pid_t pid = container_.start([] { ::pause(); });
  ASSERT_TRUE(eventually([&] { return container_.cgroup().processes().value_or({}).size() == 1; }));
  ASSERT_TRUE(Cgroup::move_process(other.path(), pid).ok());
  EXPECT_TRUE(container_.cgroup().processes().value_or({pid}).empty());
  EXPECT_EQ(other.cgroup().processes().value_or({}), std::vector<pid_t>{pid});
  const auto missing = Cgroup::move_process(other.path() + "/none", pid);
  EXPECT_EQ(missing.error().code, Code::not_found);
}

class ThreadedCgroupTest : public RootTest {};

// The processes of a threaded v2 cgroup are listed by the domain above it; its own list cannot be
// read.
TEST_F(ThreadedCgroupTest, a_threaded_child_is_passed_over) {
  TestCgroup container(Version::v2);
  const std::string child = container.make_child("threaded");
  const pid_t pid = container.start([] { ::pause(); });
  ASSERT_TRUE(eventually([&] { return container.cgroup().processes().value_or({}).size() == 1; }));
  ASSERT_TRUE(write_control_file(child + "/cgroup.type", "threaded").ok());
  ASSERT_TRUE(write_control_file(child + "/cgroup.threads", std::to_string(pid)).ok());
  const auto pids = container.cgroup().processes();
  ASSERT_TRUE(pids.ok()) << pids.error().message;
  EXPECT_EQ(*pids, std::vector<pid_t>{pid});
}

}  // namespace
}  // namespace icebox::container::test
