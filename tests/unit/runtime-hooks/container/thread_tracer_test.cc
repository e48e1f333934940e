// SPDX-License-Identifier: Apache-2.0
#include "runtime-hooks/container/thread_tracer.h"

#include <signal.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <thread>

#include <gtest/gtest.h>

namespace icebox::container {
namespace {

constexpr int stopped_by(int signal, int event) { return (event << 16) | (signal << 8) | 0x7f; }

TEST(HeldBackSignal, only_a_signal_delivery_stop_has_one) {
  EXPECT_EQ(held_back_signal(stopped_by(SIGUSR1, 0)), SIGUSR1);
  EXPECT_EQ(held_back_signal(stopped_by(SIGSTOP, 0)), SIGSTOP);
  EXPECT_EQ(held_back_signal(stopped_by(SIGTRAP, PTRACE_EVENT_STOP)), 0) << "interrupt";
  EXPECT_EQ(held_back_signal(stopped_by(SIGSTOP, PTRACE_EVENT_STOP)), 0) << "group stop";
  EXPECT_EQ(held_back_signal(SIGKILL), 0) << "killed";
  EXPECT_EQ(held_back_signal(3 << 8), 0) << "exited";
}

TEST(TracerThread, runs_what_it_is_given_on_one_thread) {
  auto tracer = TracerThread::start();
  ASSERT_TRUE(tracer.ok()) << tracer.error().message;
  const auto gettid = [] { return static_cast<pid_t>(::syscall(SYS_gettid)); };
  EXPECT_NE(tracer->tid(), gettid());
  for (int i = 0; i < 3; ++i) {
    pid_t seen = 0;
    tracer->call([&] { seen = gettid(); });
    EXPECT_EQ(seen, tracer->tid());
    EXPECT_TRUE(tracer->idle());
  }
}

TEST(TracerThread, posted_work_is_waited_for) {
  auto tracer = TracerThread::start();
  ASSERT_TRUE(tracer.ok());
  std::atomic<bool> go{false};
  std::atomic<bool> done{false};
  tracer->post([&] {
    while (!go) std::this_thread::yield();
    done = true;
  });
  EXPECT_FALSE(tracer->idle());
  go = true;
  tracer->wait_idle();
  EXPECT_TRUE(done);
  EXPECT_TRUE(tracer->idle());
}

TEST(TracerThread, is_gone_when_finished) {
  auto tracer = TracerThread::start();
  ASSERT_TRUE(tracer.ok());
  const pid_t tid = tracer->tid();
  tracer->finish();
  EXPECT_NE(::syscall(SYS_tgkill, ::getpid(), tid, 0), 0);
  tracer->finish();  // a second time does nothing
}

// A child of this program may be traced by it without any privilege.
class TraceeTest : public ::testing::Test {
 protected:
  void SetUp() override {
    child_ = ::fork();
    if (child_ == 0) {
      for (;;) ::pause();
    }
    ASSERT_GT(child_, 0);
  }
  void TearDown() override {
    ::kill(child_, SIGKILL);
    ::waitpid(child_, nullptr, 0);
  }
  static void wait_stop(Tracee& tracee) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    while (!tracee.stopped && !tracee.gone && std::chrono::steady_clock::now() < deadline)
      poll_tracee(tracee);
  }
  pid_t child_ = -1;
};

// A signal that is under way when the thread is seized stops it before the interrupt does; it must
// not be lost.
TEST_F(TraceeTest, a_signal_that_was_held_back_is_delivered_at_detach) {
  auto tracer = TracerThread::start();
  ASSERT_TRUE(tracer.ok());
  Tracee tracee;
  tracee.process = tracee.tid = child_;
  tracer->call([&] {
    ASSERT_EQ(::ptrace(PTRACE_SEIZE, child_, nullptr, nullptr), 0);
    ::kill(child_, SIGTERM);
    wait_stop(tracee);
    EXPECT_TRUE(tracee.stopped);
    EXPECT_EQ(tracee.signal, SIGTERM);
    detach(tracee);
  });
  int status = 0;
  ASSERT_EQ(::waitpid(child_, &status, 0), child_);
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM) << status;
}

TEST_F(TraceeTest, a_running_driver_thread_takes_no_signal_and_no_stop) {
  auto tracer = TracerThread::start();
  ASSERT_TRUE(tracer.ok());
  Tracee tracee;
  tracee.process = tracee.tid = child_;
  tracee.driver = true;
  tracer->call([&] {
    ASSERT_TRUE(seize(child_, child_).ok());
    wait_stop(tracee);
    ASSERT_TRUE(tracee.stopped);
    ASSERT_TRUE(run_driver(tracee).ok());
    ::kill(child_, SIGTERM);
    ::kill(child_, SIGSTOP);
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    while (!tracee.stop_held_back && std::chrono::steady_clock::now() < deadline)
      keep_running(tracee);
    EXPECT_TRUE(tracee.stop_held_back);
    EXPECT_FALSE(tracee.stopped);
    EXPECT_FALSE(tracee.gone) << "SIGTERM was delivered";
    interrupt(tracee);
    wait_stop(tracee);
    EXPECT_EQ(tracee.signal, 0);
    EXPECT_TRUE(restore_mask(tracee).ok());
    detach(tracee);
  });
  int status = 0;
  ASSERT_EQ(::waitpid(child_, &status, WUNTRACED), child_);
  // Both take effect now: the stop first, as the kernel looks at the thread's own signals first.
  EXPECT_TRUE(WIFSTOPPED(status) && WSTOPSIG(status) == SIGSTOP) << status;
  ::kill(child_, SIGCONT);
  ASSERT_EQ(::waitpid(child_, &status, 0), child_);
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM) << status;
}

TEST_F(TraceeTest, the_end_of_the_tracer_releases_what_has_not_stopped) {
  {
    auto tracer = TracerThread::start();
    ASSERT_TRUE(tracer.ok());
    tracer->call([&] { ASSERT_EQ(::ptrace(PTRACE_SEIZE, child_, nullptr, nullptr), 0); });
  }
  EXPECT_EQ(::ptrace(PTRACE_SEIZE, child_, nullptr, nullptr), 0) << "still traced";
}

TEST_F(TraceeTest, an_ended_thread_is_gone) {
  ::kill(child_, SIGKILL);
  siginfo_t info = {};
  ASSERT_EQ(::waitid(P_PID, static_cast<id_t>(child_), &info, WEXITED | WNOWAIT), 0);
  const auto seized = seize(child_, child_);
  ASSERT_TRUE(seized.ok()) << seized.error().message;
  EXPECT_EQ(*seized, Seized::gone);
}

}  // namespace
}  // namespace icebox::container
