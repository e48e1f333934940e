// SPDX-License-Identifier: Apache-2.0
//
// with_only_driver_threads when something is in its way: what it refuses, what it names, and what
// it leaves behind.
#include <signal.h>
#include <sys/ptrace.h>
#include <unistd.h>

#include <thread>

#include "runtime-hooks/container/process.h"
#include "runtime-hooks/container/thread_hold.h"
#include "tests/component/container/harness.h"

namespace icebox::container::test {
namespace {

constexpr std::chrono::seconds kFreeze{10};

class HoldFailuresTest : public VersionTest {
 protected:
  void start_and_freeze() {
    pid_ = container_.start([&] { run_busy_with_driver(*board_, 3); });
    ASSERT_TRUE(all_move(*board_, 3));
    freeze();
  }

  void freeze() {
    const auto frozen = container_.cgroup().freeze(kFreeze);
    ASSERT_TRUE(frozen.ok()) << frozen.error().message;
  }

  // A hold that must fail before the work, without a user instruction; its error.
  Error hold_refused(const Cgroup& cgroup) {
    const auto before = snapshot(*board_);
    bool worked = false;
    const auto done = with_only_driver_threads(cgroup, {board_->driver_tid}, [&]() -> Result<void> {
      worked = true;
      return {};
    });
    EXPECT_FALSE(worked);
    EXPECT_EQ(snapshot(*board_), before);
    return done.ok() ? make_error(Code::unknown, "it succeeded") : done.error();
  }

  [[nodiscard]] FreezerState state() const {
    return container_.cgroup().state().value_or(FreezerState::thawed);
  }

  Shared<Board> board_;
  TestCgroup container_{GetParam()};
  pid_t pid_ = 0;
};

INSTANTIATE_TEST_SUITE_P(Cgroup, HoldFailuresTest, ::testing::Values(Version::v1, Version::v2),
                         version_name);

TEST_P(HoldFailuresTest, a_thread_traced_by_another_program_is_refused_by_name) {
  TestCgroup outside(GetParam());
  pid_ = container_.start([&] { run_busy_with_driver(*board_, 3); });
  ASSERT_TRUE(all_move(*board_, 3));
  const auto tids = threads_of(pid_);
  ASSERT_TRUE(tids.ok());
  const pid_t traced = tids->back();
  const pid_t debugger = outside.start([&] {
    ::ptrace(PTRACE_SEIZE, traced, nullptr, nullptr);
    for (;;) ::pause();
  });
  ASSERT_TRUE(eventually([&] { return tracer_of(pid_, traced) == debugger; }));
  freeze();
  const Error error = hold_refused(container_.cgroup());
  EXPECT_EQ(error.code, Code::failed_precondition);
  EXPECT_NE(error.message.find("thread " + std::to_string(traced)), std::string::npos)
      << error.message;
  EXPECT_NE(error.message.find("traced by " + std::to_string(debugger)), std::string::npos)
      << error.message;
  EXPECT_EQ(state(), FreezerState::frozen);
  for (const pid_t tid : *tids)
    EXPECT_EQ(tracer_of(pid_, tid), tid == traced ? debugger : 0) << tid;
  // Once the debugger is gone it works.
  ::kill(debugger, SIGKILL);
  ASSERT_TRUE(eventually([&] { return tracer_of(pid_, traced) == 0; }));
  EXPECT_TRUE(with_only_driver_threads(container_.cgroup(), {board_->driver_tid}, [] {
                return Result<void>();
              }).ok());
}

TEST_P(HoldFailuresTest, a_thaw_that_fails_leaves_all_frozen_and_untraced) {
  start_and_freeze();
  const Faults faults("container.thaw fail\n");
  const Error error = hold_refused(container_.cgroup());
  EXPECT_NE(error.message.find("container.thaw"), std::string::npos) << error.message;
  EXPECT_EQ(state(), FreezerState::frozen);
  EXPECT_TRUE(nothing_traced(container_.cgroup()));
}

TEST_P(HoldFailuresTest, a_stopped_process_is_untraced_at_the_thaw_when_the_hold_could_not_thaw) {
  pid_ = container_.start([&] { run_busy_with_driver(*board_, 3); });
  ASSERT_TRUE(all_move(*board_, 3));
  ::kill(pid_, SIGSTOP);
  ASSERT_TRUE(eventually([&] { return state_of(pid_) == 'T'; }));
  freeze();
  {
    const Faults faults("container.thaw fail\n");
    const Error error = hold_refused(container_.cgroup());
    EXPECT_NE(error.message.find("container.thaw"), std::string::npos) << error.message;
  }
  EXPECT_EQ(state(), FreezerState::frozen);
  ASSERT_TRUE(container_.cgroup().thaw().ok());
  EXPECT_TRUE(
      eventually([&] { return nothing_traced(container_.cgroup()) && state_of(pid_) == 'T'; }));
  ::kill(pid_, SIGCONT);
  EXPECT_TRUE(all_move(*board_, 3));
}

TEST_P(HoldFailuresTest, a_freeze_that_fails_afterwards_is_said) {
  start_and_freeze();
  const Faults faults("container.freeze fail\n");
  const auto done = with_only_driver_threads(
      container_.cgroup(), {board_->driver_tid},
      []() -> Result<void> { return make_error(Code::resource_exhausted, "the GPU is full"); });
  ASSERT_FALSE(done.ok());
  EXPECT_EQ(done.error().code, Code::resource_exhausted);
  EXPECT_EQ(done.error().message.find("the GPU is full; the container could not be frozen again: "),
            0U)
      << done.error().message;
  EXPECT_TRUE(nothing_traced(container_.cgroup()));
}

TEST_P(HoldFailuresTest, a_frozen_cgroup_above_is_named) {
  TestCgroup inner(GetParam(), container_.path());
  inner.start([&] { run_busy_with_driver(*board_, 2); });
  ASSERT_TRUE(all_move(*board_, 2));
  ASSERT_TRUE(inner.cgroup().freeze(kFreeze).ok());
  freeze();
  const Error error = hold_refused(inner.cgroup());
  EXPECT_EQ(error.code, Code::failed_precondition);
  EXPECT_NE(error.message.find(container_.path() + " above it"), std::string::npos)
      << error.message;
  EXPECT_EQ(inner.cgroup().state().value_or(FreezerState::thawed), FreezerState::frozen);
  EXPECT_TRUE(nothing_traced(inner.cgroup()));
  ASSERT_TRUE(container_.cgroup().thaw().ok());
}

TEST_P(HoldFailuresTest, a_thread_that_does_not_stop_is_named) {
  TestCgroup outside(GetParam());
  StuckPipe pipe;
  start_and_freeze();
  // A process that waits for a file server that does not answer: no signal, freezer or ptrace
  // reaches it.
  const pid_t stuck = container_.start([&] { pipe.get_stuck(); }, outside.path());
  ASSERT_TRUE(eventually([&] { return state_of(stuck) == 'D'; })) << state_of(stuck);
  const Cgroup cgroup = container_.cgroup();
  const Faults faults("threads.thawed hang\n");
  std::thread helper([&] {
    EXPECT_TRUE(eventually(
        [&] { return cgroup.state().value_or(FreezerState::frozen) == FreezerState::thawed; }));
    EXPECT_TRUE(Cgroup::move_process(cgroup.freezer_path(), stuck).ok());
    Faults::clear();
    // When it is given up the cgroup is frozen again, which the process would keep from happening,
    // too.
    EXPECT_TRUE(eventually(
        [&] { return cgroup.state().value_or(FreezerState::thawed) != FreezerState::thawed; }));
    pipe.release();
  });
  const Error error = hold_refused(cgroup);
  helper.join();
  EXPECT_EQ(error.code, Code::deadline_exceeded);
  EXPECT_NE(error.message.find("thread " + std::to_string(stuck)), std::string::npos)
      << error.message;
  EXPECT_NE(error.message.find("state D"), std::string::npos) << error.message;
  EXPECT_EQ(state(), FreezerState::frozen);
  EXPECT_TRUE(nothing_traced(cgroup));
}

}  // namespace
}  // namespace icebox::container::test
