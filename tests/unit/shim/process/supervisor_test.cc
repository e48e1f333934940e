// SPDX-License-Identifier: Apache-2.0
#include "shim/process/supervisor.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include <fstream>
#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "oci/base/subprocess.h"
#include "tests/unit/shim/loop/testing.h"

namespace icebox::shim {
namespace {

using namespace std::chrono_literals;
using testing::turn_until;

// State letter of a process in /proc/PID/stat; ' ' when it is gone.
char state_of(pid_t pid) {
  std::ifstream stat("/proc/" + std::to_string(pid) + "/stat");
  std::string line;
  std::getline(stat, line);
  const auto close = line.rfind(')');
  return close == std::string::npos || close + 2 >= line.size() ? ' ' : line[close + 2];
}

bool becomes(pid_t pid, char state) {
  for (int i = 0; i < 10000; ++i) {
    if (state_of(pid) == state) return true;
    ::usleep(1000);
  }
  return false;
}

class SupervisorTest : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(Supervisor::become_subreaper().ok()); }
  void TearDown() override {
    ::prctl(PR_SET_CHILD_SUBREAPER, 0);
    // Every test reaps all it started.
    EXPECT_EQ(::waitpid(-1, nullptr, WNOHANG), -1);
  }

  PidRef spawn_shell(const std::string& script, std::vector<std::pair<int, int>> fds = {}) {
    Command command;
    command.argv = {"/bin/sh", "-c", script};
    command.fds = std::move(fds);
    auto child = spawn(command);
    EXPECT_TRUE(child.ok()) << child.error().message;
    return std::move(child->process);
  }

  Supervisor::ExitHandler record() {
    return [this](const ProcessExit& exit) { exits_.push_back(exit); };
  }

  // A process whose child has ended and which does with it what we say: 'r' reaps it, the end of
  // the pipe ends the parent. (Not a shell: those reap when they please.)
  struct Parent {
    UniqueFd orders;
    pid_t child = 0;
  };
  Parent start_parent() {
    auto orders = testing::make_pipe();
    auto answers = testing::make_pipe();
    const pid_t pid = ::fork();
    if (pid == 0) {
      orders.write.reset();
      const pid_t child = ::fork();
      if (child == 0) ::_exit(9);
      siginfo_t info = {};
      ::waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT);
      static_cast<void>(::write(answers.write.get(), &child, sizeof child) > 0);
      char order = 0;
      while (::read(orders.read.get(), &order, 1) == 1) ::waitpid(child, nullptr, 0);
      ::_exit(0);
    }
    EXPECT_GT(pid, 0);
    EXPECT_TRUE(supervisor_.watch_pid(pid, [](const ProcessExit&) {}).ok());
    Parent parent;
    parent.orders = std::move(orders.write);
    EXPECT_EQ(::read(answers.read.get(), &parent.child, sizeof parent.child),
              static_cast<ssize_t>(sizeof parent.child));
    return parent;
  }

  std::unique_ptr<EventLoop> loop_ = testing::make_loop();
  Supervisor supervisor_{*loop_};
  std::vector<ProcessExit> exits_;
};

TEST_F(SupervisorTest, ReportsTheExitCode) {
  PidRef process = spawn_shell("exit 7");
  const pid_t pid = process.pid();
  ASSERT_TRUE(supervisor_.watch(std::move(process), record()).ok());
  EXPECT_TRUE(supervisor_.watching(pid));
  const auto before = std::chrono::system_clock::now();
  ASSERT_TRUE(turn_until(*loop_, [&] { return !exits_.empty(); }));
  EXPECT_EQ(exits_[0].pid, pid);
  EXPECT_EQ(exits_[0].exit_code, 7U);
  EXPECT_EQ(exits_[0].wait_status, 7 << 8);
  EXPECT_GE(exits_[0].at, before);
  EXPECT_FALSE(supervisor_.watching(pid));
  EXPECT_EQ(state_of(pid), ' ');
}

TEST_F(SupervisorTest, ReportsADeathBySignal) {
  PidRef process = spawn_shell("exec sleep 1000");
  const pid_t pid = process.pid();
  ASSERT_TRUE(supervisor_.watch(std::move(process), record()).ok());
  ASSERT_TRUE(supervisor_.signal(pid, SIGKILL).ok());
  ASSERT_TRUE(turn_until(*loop_, [&] { return !exits_.empty(); }));
  EXPECT_EQ(exits_[0].exit_code, 137U);
  EXPECT_TRUE(WIFSIGNALED(exits_[0].wait_status));
  const auto again = supervisor_.signal(pid, SIGKILL);
  ASSERT_FALSE(again.ok());
  EXPECT_EQ(again.error().code, Code::not_found);
}

TEST_F(SupervisorTest, AChildThatEndedBeforeItWasRegisteredIsReportedOnceAndLater) {
  PidRef process = spawn_shell("exit 3");
  ASSERT_TRUE(becomes(process.pid(), 'Z'));
  ASSERT_TRUE(supervisor_.watch(std::move(process), record()).ok());
  EXPECT_TRUE(exits_.empty());  // never from inside watch()
  ASSERT_TRUE(turn_until(*loop_, [&] { return !exits_.empty(); }));
  testing::turn_times(*loop_, 3);
  ASSERT_EQ(exits_.size(), 1U);
  EXPECT_EQ(exits_[0].exit_code, 3U);
}

TEST_F(SupervisorTest, AnOrphanedGrandchildIsReportedEvenWhenItIsAZombieAlready) {
  // As runc does: the parent leaves the pid behind and exits. The grandchild's stdin ends with our
  // pipe.
  auto hold = testing::make_pipe();
  auto out = testing::make_pipe();
  PidRef parent =
      spawn_shell("(read x; exit 21) <&3 & echo $!", {{out.write.get(), 1}, {hold.read.get(), 3}});
  out.write.reset();
  hold.read.reset();
  const auto pid = static_cast<pid_t>(std::stol(testing::get(out.read)));
  ASSERT_TRUE(supervisor_.watch(std::move(parent), record()).ok());
  ASSERT_TRUE(turn_until(*loop_, [&] { return exits_.size() == 1; }));
  EXPECT_EQ(exits_[0].exit_code, 0U);
  hold.write.reset();
  ASSERT_TRUE(becomes(pid, 'Z'));
  ASSERT_TRUE(supervisor_.watch_pid(pid, record()).ok());
  ASSERT_TRUE(turn_until(*loop_, [&] { return exits_.size() == 2; }));
  EXPECT_EQ(exits_[1].pid, pid);
  EXPECT_EQ(exits_[1].exit_code, 21U);
}

TEST_F(SupervisorTest, AnExitThatTheParentStillHoldsIsReportedAfterTheParentEnded) {
  Parent parent = start_parent();
  ASSERT_TRUE(supervisor_.watch_pid(parent.child, record()).ok());
  // Long enough for several retries: the exit cannot be known yet, and the loop must not spin on
  // it.
  const auto limit = std::chrono::steady_clock::now() + 100ms;
  int turns = 0;
  while (std::chrono::steady_clock::now() < limit) {
    ASSERT_TRUE(loop_->turn(limit - std::chrono::steady_clock::now()).ok());
    ++turns;
  }
  EXPECT_TRUE(exits_.empty());
  EXPECT_LE(turns, 30);
  parent.orders.reset();
  ASSERT_TRUE(turn_until(*loop_, [&] { return !exits_.empty(); }));
  EXPECT_EQ(exits_[0].exit_code, 9U);
  ASSERT_TRUE(turn_until(*loop_, [&] { return supervisor_.count() == 0; }));
}

TEST_F(SupervisorTest, AnExitThatTheParentReapedIsReportedAsUnknown) {
  Parent parent = start_parent();
  ASSERT_TRUE(supervisor_.watch_pid(parent.child, record()).ok());
  testing::put(parent.orders, "r");
  ASSERT_TRUE(turn_until(*loop_, [&] { return !exits_.empty(); }));
  EXPECT_EQ(exits_[0].exit_code, 255U);
  parent.orders.reset();
  ASSERT_TRUE(turn_until(*loop_, [&] { return supervisor_.count() == 0; }));
}

TEST_F(SupervisorTest, APidIsWatchedOnce) {
  PidRef process = spawn_shell("exec sleep 1000");
  const pid_t pid = process.pid();
  ASSERT_TRUE(supervisor_.watch(std::move(process), record()).ok());
  const auto again = supervisor_.watch_pid(pid, record());
  ASSERT_FALSE(again.ok());
  EXPECT_EQ(again.error().code, Code::already_exists);
  ASSERT_TRUE(supervisor_.signal(pid, SIGKILL).ok());
  ASSERT_TRUE(turn_until(*loop_, [&] { return supervisor_.count() == 0; }));
  EXPECT_EQ(exits_.size(), 1U);
}

TEST_F(SupervisorTest, UnknownPidIsNotFound) {
  PidRef process = spawn_shell("exit 0");
  const pid_t pid = process.pid();
  ASSERT_EQ(::waitpid(pid, nullptr, 0), pid);
  const auto watched = supervisor_.watch_pid(pid, record());
  ASSERT_FALSE(watched.ok());
  EXPECT_EQ(watched.error().code, Code::not_found);
}

TEST_F(SupervisorTest, AForgottenProcessIsReapedInSilence) {
  PidRef process = spawn_shell("exit 5");
  const pid_t pid = process.pid();
  ASSERT_TRUE(supervisor_.watch(std::move(process), record()).ok());
  supervisor_.forget(pid);
  ASSERT_TRUE(turn_until(*loop_, [&] { return supervisor_.count() == 0; }));
  EXPECT_TRUE(exits_.empty());
  EXPECT_EQ(state_of(pid), ' ');
}

TEST_F(SupervisorTest, StraysAreReapedButNeverAWatchedProcess) {
  PidRef stray = spawn_shell("exit 1");
  PidRef running = spawn_shell("exec sleep 1000");
  PidRef watched = spawn_shell("exit 2");
  const pid_t stray_pid = stray.pid();
  const pid_t running_pid = running.pid();
  ASSERT_TRUE(becomes(stray_pid, 'Z'));
  ASSERT_TRUE(becomes(watched.pid(), 'Z'));
  ASSERT_TRUE(supervisor_.watch(std::move(watched), record()).ok());
  auto reaped = supervisor_.reap_strays();
  ASSERT_TRUE(reaped.ok()) << reaped.error().message;
  EXPECT_EQ(*reaped, 1U);
  EXPECT_EQ(state_of(stray_pid), ' ');
  ASSERT_TRUE(turn_until(*loop_, [&] { return !exits_.empty(); }));
  EXPECT_EQ(exits_[0].exit_code, 2U);
  // A living stray is left alone.
  ASSERT_TRUE(running.signal(SIGKILL).ok());
  ASSERT_TRUE(becomes(running_pid, 'Z'));
  EXPECT_EQ(supervisor_.reap_strays().value_or(0), 1U);
}

TEST_F(SupervisorTest, ManyExitsAtOnceAreEachReportedOnce) {
  std::map<pid_t, int> seen;
  auto gate = testing::make_pipe();
  constexpr int kCount = 50;
  for (int i = 0; i < kCount; ++i) {
    PidRef process = spawn_shell("read x; exit 4", {{gate.read.get(), 0}});
    ASSERT_TRUE(supervisor_
                    .watch(std::move(process),
                           [&](const ProcessExit& exit) {
                             EXPECT_EQ(exit.exit_code, 4U);
                             ++seen[exit.pid];
                           })
                    .ok());
  }
  gate.write.reset();
  ASSERT_TRUE(turn_until(*loop_, [&] { return supervisor_.count() == 0; }));
  EXPECT_EQ(seen.size(), static_cast<std::size_t>(kCount));
  for (const auto& [pid, times] : seen) EXPECT_EQ(times, 1) << pid;
}

TEST_F(SupervisorTest, AnExitHandlerMayWatchAnotherProcess) {
  PidRef first = spawn_shell("exit 1");
  ASSERT_TRUE(supervisor_
                  .watch(std::move(first),
                         [&](const ProcessExit&) {
                           EXPECT_TRUE(supervisor_.watch(spawn_shell("exit 2"), record()).ok());
                         })
                  .ok());
  ASSERT_TRUE(turn_until(*loop_, [&] { return !exits_.empty(); }));
  EXPECT_EQ(exits_[0].exit_code, 2U);
}

}  // namespace
}  // namespace icebox::shim
