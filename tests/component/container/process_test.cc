// SPDX-License-Identifier: Apache-2.0
//
// What /proc says of real processes, their descent, and killing them.
#include "runtime-hooks/container/process.h"

#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <thread>

#include "tests/component/container/harness.h"

namespace icebox::container::test {
namespace {

class ProcessTest : public RootTest {
 protected:
  TestCgroup container_{Version::v1};
};

TEST_F(ProcessTest, reads_a_process) {
  Shared<std::atomic<bool>> ready;
  const pid_t pid = container_.start([&] {
    ::prctl(PR_SET_NAME, "a) R (b");  // what a stat line cannot quote
    *ready = true;
    for (;;) ::pause();
  });
  ASSERT_TRUE(eventually([&] { return ready->load() && state_of(pid) == 'S'; }));
  const auto process = read_process(pid);
  ASSERT_TRUE(process.ok()) << process.error().message;
  EXPECT_EQ(process->pid, pid);
  EXPECT_EQ(process->parent, ::getpid());
  EXPECT_EQ(process->comm, "a) R (b");
  EXPECT_EQ(process->state, 'S');
  EXPECT_FALSE(process->zombie());
  EXPECT_EQ(process->tracer, 0);
  EXPECT_EQ(process->ns_pids, std::vector<pid_t>{pid});
  EXPECT_GT(process->start_time, 0U);
  EXPECT_EQ(process->start_time, read_process(pid)->start_time);
  EXPECT_NE(process->command_line.find("container_component_test"), std::string::npos);
}

TEST_F(ProcessTest, a_long_command_line_is_cut) {
  const pid_t pid = container_.start([&] {
    const std::string longer(500, 'x');
    ::execl("/bin/sh", "sh", "-c", "kill -STOP $$", longer.c_str(), nullptr);
    ::_exit(1);
  });
  ASSERT_TRUE(eventually([&] {
    const auto process = read_process(pid);
    return process.ok() && process->command_line.starts_with("sh ");
  }));
  const auto process = read_process(pid);
  ASSERT_TRUE(process.ok());
  EXPECT_EQ(process->command_line.substr(0, 22), "sh -c kill -STOP $$ xx");
  EXPECT_EQ(process->command_line.size(), 200U);
}

TEST_F(ProcessTest, pids_of_all_namespaces_outermost_first) {
  const pid_t parent = container_.start([&] {
    if (::unshare(CLONE_NEWPID) != 0) ::_exit(1);
    if (::fork() == 0) {
      for (;;) ::pause();
    }
    for (;;) ::pause();
  });
  ASSERT_TRUE(eventually([&] { return container_.cgroup().processes().value_or({}).size() == 2; }));
  for (const auto& process : read_processes(*container_.cgroup().processes()).value_or({})) {
    if (process.pid == parent) {
      EXPECT_EQ(process.ns_pids, std::vector<pid_t>{parent});
    } else {
      EXPECT_EQ(process.ns_pids, (std::vector<pid_t>{process.pid, 1}));
    }
  }
}

TEST_F(ProcessTest, a_missing_process_is_not_found) {
  constexpr pid_t kNone = 1 << 30;
  EXPECT_EQ(read_process(kNone).error().code, Code::not_found);
  EXPECT_EQ(threads_of(kNone).error().code, Code::not_found);
  const auto some = read_processes({::getpid(), kNone});
  ASSERT_TRUE(some.ok()) << some.error().message;
  ASSERT_EQ(some->size(), 1U);
  EXPECT_EQ((*some)[0].pid, ::getpid());
}

TEST_F(ProcessTest, lists_threads_in_order) {
  const pid_t pid = container_.start([&] {
    for (int i = 0; i < 9; ++i) std::thread([] { ::pause(); }).detach();
    for (;;) ::pause();
  });
  ASSERT_TRUE(eventually([&] { return threads_of(pid).value_or({}).size() == 10; }));
  const auto threads = *threads_of(pid);
  EXPECT_TRUE(std::is_sorted(threads.begin(), threads.end()));
  EXPECT_EQ(threads[0], pid);
}

TEST_F(ProcessTest, tells_who_does_not_descend_from_init) {
  TestCgroup outside(Version::v1);
  const pid_t init = container_.start([&] {
    if (::fork() == 0) {
      if (::fork() == 0) {
        for (;;) ::pause();
      }
      for (;;) ::pause();
    }
    for (;;) ::pause();
  });
  // As `runc exec` does: a parent outside, a process inside, and a child of that one.
  outside.start([&] {
    if (::fork() == 0) {
      if (!Cgroup::move_process(container_.path(), ::getpid()).ok()) ::_exit(1);
      ::prctl(PR_SET_NAME, "execed");
      if (::fork() == 0) {
        for (;;) ::pause();
      }
      for (;;) ::pause();
    }
    for (;;) ::pause();
  });
  ASSERT_TRUE(eventually([&] {
    const auto processes =
        read_processes(container_.cgroup().processes().value_or({})).value_or({});
    return processes.size() == 5 &&
           std::count_if(processes.begin(), processes.end(),
                         [](const auto& process) { return process.comm == "execed"; }) == 2;
  }));
  const auto processes = read_processes(*container_.cgroup().processes());
  ASSERT_TRUE(processes.ok());
  const auto strangers = not_descending_from(init, *processes);
  ASSERT_TRUE(strangers.ok()) << strangers.error().message;
  ASSERT_EQ(strangers->size(), 2U);
  for (const auto& process : *strangers) EXPECT_EQ(process.comm, "execed");
  // Through a parent that is not in the list: the grandchild alone still descends from init.
  const auto grandchild =
      std::find_if(processes->begin(), processes->end(), [&](const auto& process) {
        return process.comm != "execed" && process.pid != init && process.parent != init;
      });
  ASSERT_NE(grandchild, processes->end());
  EXPECT_TRUE(not_descending_from(init, {*grandchild})->empty());
}

TEST_F(ProcessTest, kills_the_named_and_nobody_else) {
  const pid_t victim = container_.start([] { ::pause(); });
  const pid_t other = container_.start([] { ::pause(); });
  ASSERT_TRUE(eventually([&] { return container_.cgroup().processes().value_or({}).size() == 2; }));
  Process reused = *read_process(other);
  reused.start_time -= 1;  // an earlier process of the same pid
  Process gone;
  gone.pid = 1 << 30;
  const auto killed = kill_processes({*read_process(victim), reused, gone});
  ASSERT_TRUE(killed.ok()) << killed.error().message;
  EXPECT_TRUE(eventually([&] { return state_of(victim) == 'Z'; }));
  EXPECT_EQ(state_of(other), 'S');
  EXPECT_TRUE(read_process(victim)->zombie());
  EXPECT_EQ(read_process(victim)->command_line, "[" + read_process(victim)->comm + "]");
}

TEST_F(ProcessTest, kills_frozen_processes_which_end_at_the_thaw) {
  const pid_t victim = container_.start([] { ::pause(); });
  ASSERT_TRUE(eventually([&] { return container_.cgroup().processes().value_or({}).size() == 1; }));
  ASSERT_TRUE(container_.cgroup().freeze(std::chrono::seconds(10)).ok());
  ASSERT_TRUE(kill_processes({*read_process(victim)}).ok());
  ASSERT_TRUE(container_.cgroup().thaw().ok());
  EXPECT_TRUE(eventually([&] { return state_of(victim) == 'Z'; }));
}

}  // namespace
}  // namespace icebox::container::test
