// SPDX-License-Identifier: Apache-2.0
//
// Signals and job control around with_only_driver_threads: nothing is delivered while the threads
// are held, and nothing is lost.
#include <fcntl.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <unistd.h>

#include <cerrno>
#include <thread>

#include "oci/base/file.h"
#include "runtime-hooks/container/process.h"
#include "runtime-hooks/container/thread_hold.h"
#include "tests/component/container/harness.h"

namespace icebox::container::test {
namespace {

constexpr std::chrono::seconds kFreeze{10};
constexpr std::uint64_t kSomeTime = 20;
constexpr int kQueued = 5;

struct Handled {
  std::atomic<int> usr1{0};
  std::atomic<int> usr2{0};
  std::atomic<int> alarms{0};
  std::atomic<int> queued{0};
  std::atomic<int> queued_sum{0};
  std::atomic<int> on_driver{0};
  std::atomic<bool> ready{false};
  std::atomic<pid_t> thread{0};  // of the second user thread
};

Handled* handled = nullptr;
Board* handler_board = nullptr;

void count_signal(int signo, siginfo_t* info, void* /*context*/) {
  if (::syscall(SYS_gettid) == handler_board->driver_tid) ++handled->on_driver;
  if (signo == SIGUSR1) ++handled->usr1;
  if (signo == SIGUSR2) ++handled->usr2;
  if (signo == SIGALRM) ++handled->alarms;
  if (signo == SIGRTMIN + 1) {
    ++handled->queued;
    handled->queued_sum += info->si_value.sival_int;
  }
}

// Threads that take any signal, the driver thread too, and a timer that fires every millisecond.
void run_with_handlers(Board& board, Handled& counts, bool timer) {
  handled = &counts;
  handler_board = &board;
  struct sigaction action = {};
  action.sa_sigaction = &count_signal;
  action.sa_flags = SA_SIGINFO | SA_RESTART;
  for (const int signo : {SIGUSR1, SIGUSR2, SIGALRM, SIGRTMIN + 1})
    ::sigaction(signo, &action, nullptr);
  start_driver_thread(board);
  std::thread([&] {
    counts.thread = static_cast<pid_t>(::syscall(SYS_gettid));
    count_for_ever(board);
  }).detach();
  const struct itimerval every_ms = {{0, 1000}, {0, 1000}};
  if (timer) ::setitimer(ITIMER_REAL, &every_ms, nullptr);
  counts.ready = true;
  count_for_ever(board);
}

std::string blocked_signals(pid_t process, pid_t tid) {
  const auto text = read_file(
      "/proc/" + std::to_string(process) + "/task/" + std::to_string(tid) + "/status", 65536);
  if (!text.ok()) return "gone";
  const auto at = text->find("SigBlk:");
  return text->substr(at, text->find('\n', at) - at);
}

class HoldSignalsTest : public VersionTest {
 protected:
  void start_and_freeze(bool timer) {
    pid_ = container_.start([&] { run_with_handlers(*board_, *handled_, timer); });
    ASSERT_TRUE(all_move(*board_, 2));
    ASSERT_TRUE(eventually([&] { return handled_->ready && (!timer || handled_->alarms > 0); }));
    const auto frozen = container_.cgroup().freeze(kFreeze);
    ASSERT_TRUE(frozen.ok()) << frozen.error().message;
  }

  // Holds, does `work` and lets some time pass in which nothing but the driver thread may move.
  void hold(const std::function<void()>& work) {
    const auto before = snapshot(*board_);
    const int alarms = handled_->alarms;
    const auto done =
        with_only_driver_threads(container_.cgroup(), {board_->driver_tid}, [&]() -> Result<void> {
          work();
          EXPECT_TRUE(driver_moves(*board_, kSomeTime)) << "the driver thread stands still";
          return {};
        });
    ASSERT_TRUE(done.ok()) << done.error().message;
    EXPECT_EQ(snapshot(*board_), before);
    EXPECT_EQ(handled_->alarms, alarms) << "a handler ran";
    EXPECT_TRUE(nothing_traced(container_.cgroup()));
  }

  void thaw() { ASSERT_TRUE(container_.cgroup().thaw().ok()); }

  Shared<Board> board_;
  Shared<Handled> handled_;
  TestCgroup container_{GetParam()};
  pid_t pid_ = 0;
};

INSTANTIATE_TEST_SUITE_P(Cgroup, HoldSignalsTest, ::testing::Values(Version::v1, Version::v2),
                         version_name);

TEST_P(HoldSignalsTest, signals_sent_during_the_hold_arrive_afterwards) {
  start_and_freeze(false);
  const std::string mask = blocked_signals(pid_, board_->driver_tid);
  hold([&] {
    ::kill(pid_, SIGUSR1);
    ::syscall(SYS_tgkill, pid_, handled_->thread.load(), SIGUSR2);
    ::syscall(SYS_tgkill, pid_, board_->driver_tid.load(), SIGUSR2);
    for (int i = 1; i <= kQueued; ++i) {
      union sigval value = {};
      value.sival_int = i;
      EXPECT_EQ(::sigqueue(pid_, SIGRTMIN + 1, value), 0);
    }
  });
  EXPECT_EQ(handled_->usr1 + handled_->usr2 + handled_->queued, 0) << "a handler ran";
  EXPECT_EQ(blocked_signals(pid_, board_->driver_tid), mask);
  thaw();
  EXPECT_TRUE(eventually([&] {
    return handled_->usr1 == 1 && handled_->usr2 == 2 && handled_->queued == kQueued;
  })) << handled_->usr1
      << " " << handled_->usr2 << " " << handled_->queued;
  EXPECT_EQ(handled_->queued_sum, kQueued * (kQueued + 1) / 2);
  EXPECT_TRUE(all_move(*board_, 2));
}

TEST_P(HoldSignalsTest, a_running_timer_does_not_reach_the_driver_thread) {
  start_and_freeze(true);
  const int on_driver = handled_->on_driver;
  for (int round = 0; round < 5; ++round) hold([] {});
  EXPECT_EQ(handled_->on_driver, on_driver);
  const int alarms = handled_->alarms;
  thaw();
  EXPECT_TRUE(eventually([&] { return handled_->alarms > alarms + 1; }))
      << "the timer does not go on";
}

TEST_P(HoldSignalsTest, a_fatal_signal_kills_after_the_thaw_only) {
  start_and_freeze(false);
  hold([&] { ::kill(pid_, SIGTERM); });
  EXPECT_NE(state_of(pid_), 'Z');
  thaw();
  EXPECT_TRUE(eventually([&] { return state_of(pid_) == 'Z'; })) << state_of(pid_);
}

TEST_P(HoldSignalsTest, a_stopped_process_stays_stopped_and_its_driver_thread_runs) {
  pid_ = container_.start([&] { run_with_handlers(*board_, *handled_, false); });
  ASSERT_TRUE(all_move(*board_, 2));
  ::kill(pid_, SIGSTOP);
  ASSERT_TRUE(eventually([&] { return state_of(pid_) == 'T'; }));
  ASSERT_TRUE(container_.cgroup().freeze(kFreeze).ok());
  const auto before = snapshot(*board_);
  hold([] {});
  hold([] {});
  thaw();
  ASSERT_TRUE(eventually([&] { return state_of(pid_) == 'T'; })) << state_of(pid_);
  const std::uint64_t driver = board_->driver;
  std::this_thread::sleep_for(
      std::chrono::milliseconds(20));  // long enough for a stray thread to count
  EXPECT_EQ(state_of(pid_), 'T');
  EXPECT_EQ(snapshot(*board_), before);
  EXPECT_EQ(board_->driver, driver);
  ::kill(pid_, SIGCONT);
  EXPECT_TRUE(all_move(*board_, 2));
  EXPECT_TRUE(driver_moves(*board_, kSomeTime));
}

TEST_P(HoldSignalsTest, a_stop_sent_during_the_hold_takes_effect_after_the_thaw) {
  start_and_freeze(false);
  hold([&] { ::kill(pid_, SIGSTOP); });
  thaw();
  EXPECT_TRUE(eventually([&] { return state_of(pid_) == 'T'; })) << state_of(pid_);
  ::kill(pid_, SIGCONT);
  EXPECT_TRUE(all_move(*board_, 2));
  EXPECT_TRUE(driver_moves(*board_, kSomeTime));
}

TEST_P(HoldSignalsTest, a_process_continued_during_the_hold_runs_after_the_thaw) {
  pid_ = container_.start([&] { run_with_handlers(*board_, *handled_, false); });
  ASSERT_TRUE(all_move(*board_, 2));
  ::kill(pid_, SIGSTOP);
  ASSERT_TRUE(eventually([&] { return state_of(pid_) == 'T'; }));
  ASSERT_TRUE(container_.cgroup().freeze(kFreeze).ok());
  hold([&] { ::kill(pid_, SIGCONT); });
  thaw();
  EXPECT_TRUE(all_move(*board_, 2));
  EXPECT_TRUE(driver_moves(*board_, kSomeTime));
}

struct Sleepers {
  std::atomic<int> asleep{0};
  std::atomic<int> read_result{-1000};
  std::atomic<int> sleep_result{-1000};
  std::atomic<bool> joined{false};
};

// A thread in read(2), one in nanosleep(2), one in a futex wait.
void run_sleepers(Board& board, Sleepers& sleepers, int read_end) {
  start_driver_thread(board);
  std::thread reader([&] {
    char byte = 0;
    ++sleepers.asleep;
    sleepers.read_result = ::read(read_end, &byte, 1) == 1 ? byte : -errno;
  });
  std::thread sleeper([&] {
    const struct timespec time = {0, 300L * 1000 * 1000};
    ++sleepers.asleep;
    sleepers.sleep_result = ::nanosleep(&time, nullptr) == 0 ? 0 : -errno;
  });
  ++sleepers.asleep;
  reader.join();
  sleeper.join();
  sleepers.joined = true;
  for (;;) ::pause();
}

TEST_P(HoldSignalsTest, interrupted_system_calls_go_on) {
  Shared<Sleepers> sleepers;
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  pid_ = container_.start([&] { run_sleepers(*board_, *sleepers, ends[0]); });
  ASSERT_TRUE(eventually([&] { return sleepers->asleep == 3 && board_->driver > 0; }));
  ASSERT_TRUE(eventually([&] {
    const auto tids = threads_of(pid_).value_or({});
    return tids.size() == 4;
  }));
  ASSERT_TRUE(container_.cgroup().freeze(kFreeze).ok());
  hold([] {});
  EXPECT_EQ(sleepers->read_result, -1000);
  thaw();
  ASSERT_EQ(::write(ends[1], "x", 1), 1);
  EXPECT_TRUE(eventually([&] { return sleepers->joined.load(); }));
  EXPECT_EQ(sleepers->read_result, 'x');
  EXPECT_EQ(sleepers->sleep_result, 0);
  ::close(ends[0]);
  ::close(ends[1]);
}

}  // namespace
}  // namespace icebox::container::test
