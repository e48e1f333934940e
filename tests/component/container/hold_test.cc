// SPDX-License-Identifier: Apache-2.0
//
// What with_only_driver_threads promises: between a pause and a resume no user thread of any
// process of the container runs an instruction, while the driver thread does.
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <stdexcept>
#include <thread>

#include "runtime-hooks/container/process.h"
#include "runtime-hooks/container/thread_hold.h"
#include "tests/component/container/harness.h"

namespace icebox::container::test {
namespace {

constexpr std::chrono::seconds kFreeze{10};
constexpr std::uint64_t kSomeTime = 20;  // counts of the driver thread

class HoldTest : public VersionTest {
 protected:
  // A hold during which the driver thread counts on; the user counters must not have moved.
  void hold_and_compare(const Cgroup& cgroup, Board& board) {
    const auto before = snapshot(board);
    bool worked = false;
    const auto done = with_only_driver_threads(cgroup, {board.driver_tid}, [&]() -> Result<void> {
      worked = true;
      EXPECT_EQ(snapshot(board), before) << "at the start of the work";
      EXPECT_TRUE(driver_moves(board, kSomeTime)) << "the driver thread stands still";
      EXPECT_EQ(snapshot(board), before) << "at the end of the work";
      return {};
    });
    ASSERT_TRUE(done.ok()) << done.error().message;
    EXPECT_TRUE(worked);
    EXPECT_EQ(snapshot(board), before) << "after the hold";
    expect_frozen_and_free(cgroup);
  }

  static void expect_frozen_and_free(const Cgroup& cgroup) {
    const auto state = cgroup.state();
    ASSERT_TRUE(state.ok()) << state.error().message;
    EXPECT_EQ(*state, FreezerState::frozen);
    EXPECT_TRUE(nothing_traced(cgroup));
  }

  static void freeze(const Cgroup& cgroup) {
    const auto frozen = cgroup.freeze(kFreeze);
    ASSERT_TRUE(frozen.ok()) << frozen.error().message;
  }

  Shared<Board> board_;
  TestCgroup container_{GetParam()};
};

INSTANTIATE_TEST_SUITE_P(Cgroup, HoldTest, ::testing::Values(Version::v1, Version::v2),
                         version_name);

// A process that is init of a pid namespace of its own.
void run_in_pid_namespace(Board& board) {
  if (::unshare(CLONE_NEWPID) != 0) ::_exit(121);
  const pid_t pid = ::fork();
  if (pid == 0) run_busy(board, 2);
  ::waitpid(pid, nullptr, 0);
}

TEST_P(HoldTest, no_user_instruction_runs_in_twenty_rounds) {
  const Cgroup cgroup = container_.cgroup();
  container_.start([&] { run_busy_with_driver(*board_, 4); });
  container_.start([&] { run_busy(*board_, 1); });
  container_.start([&] { run_busy(*board_, 2); }, container_.make_child("child"));
  container_.start([&] { run_busy(*board_, 1); }, container_.make_child("child/grandchild"));
  container_.start([&] { run_in_pid_namespace(*board_); });
  ASSERT_TRUE(all_move(*board_, 10));
  for (int round = 0; round < 20; ++round) {
    freeze(cgroup);
    hold_and_compare(cgroup, *board_);
    if (HasFailure()) FAIL() << "in round " << round;
    ASSERT_TRUE(cgroup.thaw().ok());
    ASSERT_TRUE(all_move(*board_, 10)) << "after round " << round;
  }
}

TEST_P(HoldTest, without_the_hold_user_threads_run) {
  const Cgroup cgroup = container_.cgroup();
  container_.start([&] { run_busy_with_driver(*board_, 2); });
  ASSERT_TRUE(all_move(*board_, 2));
  freeze(cgroup);
  const Faults faults("threads.hold skip\n");
  const auto before = snapshot(*board_);
  const auto done = with_only_driver_threads(cgroup, {board_->driver_tid}, [&]() -> Result<void> {
    EXPECT_TRUE(all_move(*board_, 2));
    return {};
  });
  EXPECT_TRUE(done.ok());
  EXPECT_NE(snapshot(*board_), before);
  expect_frozen_and_free(cgroup);
}

TEST_P(HoldTest, everything_runs_once_the_work_lets_it) {
  const Cgroup cgroup = container_.cgroup();
  container_.start([&] { run_busy_with_driver(*board_, 3); });
  container_.start([&] { run_busy(*board_, 2); }, container_.make_child("child"));
  ASSERT_TRUE(all_move(*board_, 3));
  freeze(cgroup);
  const auto before = snapshot(*board_);
  const auto done = with_only_driver_threads(
      cgroup, {board_->driver_tid}, [&](HeldThreads& held) -> Result<void> {
        EXPECT_EQ(snapshot(*board_), before) << "before";
        held.let_all_run();
        EXPECT_TRUE(all_move(*board_, 3)) << "after";
        EXPECT_TRUE(driver_moves(*board_, kSomeTime)) << "the driver thread stands still";
        return {};
      });
  EXPECT_TRUE(done.ok()) << done.error().message;
  expect_frozen_and_free(cgroup);
  hold_and_compare(cgroup, *board_);
  ASSERT_TRUE(cgroup.thaw().ok());
  EXPECT_TRUE(all_move(*board_, 3));
}

TEST_P(HoldTest, holds_again_and_again_while_paused) {
  const Cgroup cgroup = container_.cgroup();
  container_.start([&] { run_busy_with_driver(*board_, 3); });
  ASSERT_TRUE(all_move(*board_, 3));
  freeze(cgroup);
  for (int round = 0; round < 5; ++round) hold_and_compare(cgroup, *board_);
  ASSERT_TRUE(cgroup.thaw().ok());
  EXPECT_TRUE(all_move(*board_, 3));
}

TEST_P(HoldTest, many_threads) {
  const Cgroup cgroup = container_.cgroup();
  container_.start([&] { run_busy_with_driver(*board_, 100); });
  ASSERT_TRUE(all_move(*board_, 100));
  freeze(cgroup);
  hold_and_compare(cgroup, *board_);
}

TEST_P(HoldTest, refuses_a_running_container) {
  const Cgroup cgroup = container_.cgroup();
  container_.start([&] { run_busy(*board_, 1); });
  bool worked = false;
  const auto done = with_only_driver_threads(cgroup, {}, [&]() -> Result<void> {
    worked = true;
    return {};
  });
  ASSERT_FALSE(done.ok());
  EXPECT_EQ(done.error().code, Code::failed_precondition);
  EXPECT_NE(done.error().message.find("not frozen"), std::string::npos) << done.error().message;
  EXPECT_FALSE(worked);
}

TEST_P(HoldTest, failing_work_leaves_the_container_frozen_and_untraced) {
  const Cgroup cgroup = container_.cgroup();
  container_.start([&] { run_busy_with_driver(*board_, 2); });
  ASSERT_TRUE(all_move(*board_, 2));
  freeze(cgroup);
  const auto before = snapshot(*board_);
  const auto done = with_only_driver_threads(cgroup, {board_->driver_tid}, [&]() -> Result<void> {
    return make_error(Code::resource_exhausted, "the GPU is full");
  });
  ASSERT_FALSE(done.ok());
  EXPECT_EQ(done.error().code, Code::resource_exhausted);
  EXPECT_EQ(done.error().message, "the GPU is full");
  EXPECT_EQ(snapshot(*board_), before);
  expect_frozen_and_free(cgroup);
  ASSERT_TRUE(cgroup.thaw().ok());
  EXPECT_TRUE(all_move(*board_, 2));
}

TEST_P(HoldTest, throwing_work_does_not_set_the_container_free) {
  const Cgroup cgroup = container_.cgroup();
  container_.start([&] { run_busy_with_driver(*board_, 2); });
  ASSERT_TRUE(all_move(*board_, 2));
  freeze(cgroup);
  const auto before = snapshot(*board_);
  EXPECT_THROW(
      static_cast<void>(with_only_driver_threads(cgroup, {board_->driver_tid},
                                                 []() -> Result<void> { throw std::bad_alloc(); })
                            .ok()),
      std::bad_alloc);
  EXPECT_EQ(snapshot(*board_), before);
  expect_frozen_and_free(cgroup);
}

TEST_P(HoldTest, a_leader_that_has_ended_is_left_out) {
  const Cgroup cgroup = container_.cgroup();
  const pid_t pid = container_.start([&] {
    start_driver_thread(*board_);
    std::thread([&] { count_for_ever(*board_); }).detach();
    ::syscall(SYS_exit, 0);  // this thread only
  });
  ASSERT_TRUE(all_move(*board_, 1));
  ASSERT_TRUE(eventually([&] { return state_of(pid) == 'Z'; }));
  freeze(cgroup);
  hold_and_compare(cgroup, *board_);
}

struct Child {
  std::atomic<pid_t> pid{0};
  std::atomic<int> status{-1};
};

// Outside of the container, as containerd's shim: starts a process in it and waits for its end.
void run_parent(Board& board, int threads, const std::string& cgroup, Child& child) {
  const pid_t pid = ::fork();
  if (pid == 0) {
    if (!Cgroup::move_process(cgroup, ::getpid()).ok()) ::_exit(123);
    run_busy(board, threads);
  }
  child.pid = pid;
  int status = 0;
  ::waitpid(pid, &status, 0);
  child.status = status;
}

TEST_P(HoldTest, a_process_killed_during_the_hold_is_no_failure) {
  const Cgroup cgroup = container_.cgroup();
  TestCgroup outside(GetParam());
  Shared<std::array<Child, 2>> children;
  container_.start([&] { run_busy_with_driver(*board_, 2); });
  outside.start([&] { run_parent(*board_, 3, container_.path(), (*children)[0]); });
  outside.start([&] { run_parent(*board_, 1, container_.path(), (*children)[1]); });
  ASSERT_TRUE(all_move(*board_, 6));
  freeze(cgroup);
  const auto before = snapshot(*board_);
  const auto done = with_only_driver_threads(cgroup, {board_->driver_tid}, [&]() -> Result<void> {
    for (const auto& child : *children) ::kill(child.pid, SIGKILL);
    EXPECT_TRUE(driver_moves(*board_, kSomeTime));
    return {};
  });
  ASSERT_TRUE(done.ok()) << done.error().message;
  EXPECT_EQ(snapshot(*board_), before);
  // The real parent is told, and gets the true status.
  for (const auto& child : *children) {
    ASSERT_TRUE(eventually([&] { return child.status >= 0; }));
    EXPECT_TRUE(WIFSIGNALED(child.status) && WTERMSIG(child.status) == SIGKILL) << child.status;
  }
  expect_frozen_and_free(cgroup);
}

TEST_P(HoldTest, a_process_killed_before_the_hold_is_no_failure) {
  const Cgroup cgroup = container_.cgroup();
  container_.start([&] { run_busy_with_driver(*board_, 2); });
  const pid_t victim = container_.start([&] { run_busy(*board_, 3); });
  ASSERT_TRUE(all_move(*board_, 5));
  freeze(cgroup);
  ::kill(victim, SIGKILL);  // v1 lets it die only after the thaw
  hold_and_compare(cgroup, *board_);
}

// Waits in vfork for a child that counts, then counts itself.
void run_vfork(Board& board, std::atomic<bool>& release) {
  const pid_t pid = ::vfork();
  if (pid == 0) {
    auto& slot = board.user.at(board.used++);
    while (!release) ++slot;
    ::_exit(0);
  }
  count_for_ever(board);
}

TEST_P(HoldTest, a_parent_waiting_in_vfork_is_held_and_released) {
  const Cgroup cgroup = container_.cgroup();
  Shared<std::atomic<bool>> release;
  container_.start([&] { run_busy_with_driver(*board_, 1); });
  ASSERT_TRUE(all_move(*board_, 1));
  const pid_t parent = container_.start([&] { run_vfork(*board_, *release); });
  ASSERT_TRUE(all_move(*board_, 2));
  ASSERT_TRUE(eventually([&] { return state_of(parent) == 'D'; }));
  freeze(cgroup);
  hold_and_compare(cgroup, *board_);
  hold_and_compare(cgroup, *board_);
  EXPECT_EQ(tracer_of(parent, parent), 0);
  ASSERT_TRUE(cgroup.thaw().ok());
  *release = true;
  EXPECT_TRUE(eventually([&] { return board_->used == 3 && board_->user[2] > 0; }))
      << "the parent does not go on";
}

TEST_P(HoldTest, a_parent_in_vfork_does_not_run_when_its_child_is_killed) {
  const Cgroup cgroup = container_.cgroup();
  Shared<std::atomic<bool>> release;
  container_.start([&] { run_busy_with_driver(*board_, 1); });
  ASSERT_TRUE(all_move(*board_, 1));
  const pid_t parent = container_.start([&] { run_vfork(*board_, *release); });
  ASSERT_TRUE(all_move(*board_, 2));
  ASSERT_TRUE(eventually([&] { return state_of(parent) == 'D'; }));
  pid_t child = 0;
  const auto pids = cgroup.processes();
  ASSERT_TRUE(pids.ok());
  for (const auto& process : read_processes(*pids).value_or({})) {
    if (process.parent == parent) child = process.pid;
  }
  ASSERT_GT(child, 0);
  freeze(cgroup);
  const auto done = with_only_driver_threads(cgroup, {board_->driver_tid}, [&]() -> Result<void> {
    ::kill(child, SIGKILL);
    EXPECT_TRUE(eventually([&] { return state_of(parent) == 't'; })) << state_of(parent);
    EXPECT_TRUE(driver_moves(*board_, kSomeTime));
    return {};
  });
  ASSERT_TRUE(done.ok()) << done.error().message;
  EXPECT_EQ(board_->used, 2U) << "the parent ran";
  expect_frozen_and_free(cgroup);
  EXPECT_EQ(board_->used, 2U) << "the parent ran";
  ASSERT_TRUE(cgroup.thaw().ok());
  EXPECT_TRUE(eventually([&] { return board_->used == 3; }));
}

TEST_P(HoldTest, a_child_cgroup_frozen_on_its_own_stays_frozen) {
  const Cgroup cgroup = container_.cgroup();
  const std::string path = container_.make_child("paused");
  const Cgroup child = Cgroup::from_paths(GetParam() == Version::v2, path, "");
  container_.start([&] { run_busy_with_driver(*board_, 2); });
  ASSERT_TRUE(all_move(*board_, 2));
  const pid_t inner = container_.start([&] { run_busy(*board_, 2); }, path);
  ASSERT_TRUE(all_move(*board_, 4));
  freeze(child);
  ::kill(inner, SIGSTOP);  // must not block the hold either
  freeze(cgroup);
  hold_and_compare(cgroup, *board_);
  ASSERT_TRUE(cgroup.thaw().ok());
  const std::uint64_t before = board_->user[2];
  EXPECT_TRUE(driver_moves(*board_, kSomeTime));
  EXPECT_EQ(board_->user[2], before) << "the paused child runs";
  EXPECT_EQ(child.state().value_or(FreezerState::thawed), FreezerState::frozen);
}

TEST_P(HoldTest, a_process_moved_in_after_the_list_was_made_is_held) {
  const Cgroup cgroup = container_.cgroup();
  TestCgroup elsewhere(GetParam());
  Shared<Board> other;
  container_.start([&] { run_busy_with_driver(*board_, 2); });
  const pid_t newcomer = container_.start([&] { run_busy(*other, 3); }, elsewhere.path());
  ASSERT_TRUE(all_move(*board_, 2));
  ASSERT_TRUE(all_move(*other, 3));
  freeze(cgroup);
  const Faults faults("threads.thawed hang\n");
  std::thread mover([&] {
    EXPECT_TRUE(eventually(
        [&] { return cgroup.state().value_or(FreezerState::frozen) == FreezerState::thawed; }));
    EXPECT_TRUE(Cgroup::move_process(cgroup.freezer_path(), newcomer).ok());
    Faults::clear();
  });
  const auto done = with_only_driver_threads(cgroup, {board_->driver_tid}, [&]() -> Result<void> {
    const auto before = snapshot(*other);
    EXPECT_TRUE(driver_moves(*board_, kSomeTime));
    EXPECT_EQ(snapshot(*other), before);
    return {};
  });
  mover.join();
  ASSERT_TRUE(done.ok()) << done.error().message;
  expect_frozen_and_free(cgroup);
}

#ifdef ICEBOX_BUSY32
TEST_P(HoldTest, a_32_bit_process_is_held) {
  const Cgroup cgroup = container_.cgroup();
  const int fd = ::memfd_create("counter", 0);
  ASSERT_GE(fd, 0);
  ASSERT_EQ(::ftruncate(fd, 4096), 0);
  void* memory = ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  ASSERT_NE(memory, MAP_FAILED);
  const volatile auto& counter = *static_cast<const volatile std::uint32_t*>(memory);
  container_.start([&] { run_busy_with_driver(*board_, 1); });
  ASSERT_TRUE(all_move(*board_, 1));
  container_.start([&] {
    ::dup2(fd, 3);
    ::execl(ICEBOX_BUSY32, "busy32", nullptr);
    ::_exit(122);
  });
  ASSERT_TRUE(eventually([&] { return counter > 0; }));
  freeze(cgroup);
  const std::uint32_t before = counter;
  hold_and_compare(cgroup, *board_);
  EXPECT_EQ(counter, before);
  ASSERT_TRUE(cgroup.thaw().ok());
  EXPECT_TRUE(eventually([&] { return counter != before; }));
  ::munmap(memory, 4096);
  ::close(fd);
}
#endif

}  // namespace
}  // namespace icebox::container::test
