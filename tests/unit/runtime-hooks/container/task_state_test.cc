// SPDX-License-Identifier: Apache-2.0
#include "runtime-hooks/container/task_state.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <gtest/gtest.h>

namespace icebox::container {
namespace {

TaskState sleeping(char state, long syscall, const std::string& wchan) {
  TaskState task;
  task.state = state;
  task.syscall = syscall;
  task.wchan = wchan;
  return task;
}

TEST(TaskState, vfork_is_an_uninterruptible_wait_in_a_clone_call) {
  EXPECT_TRUE(sleeping('D', SYS_clone, "kernel_clone").in_vfork());
  EXPECT_TRUE(sleeping('D', SYS_clone3, "").in_vfork());
  EXPECT_FALSE(sleeping('S', SYS_clone, "kernel_clone").in_vfork());
  EXPECT_FALSE(sleeping('D', SYS_write, "pipe_write").in_vfork());
  EXPECT_FALSE(sleeping('D', -1, "").in_vfork());
#ifdef __x86_64__
  EXPECT_TRUE(sleeping('D', SYS_vfork, "kernel_clone").in_vfork());
  EXPECT_TRUE(sleeping('D', 190, "kernel_clone").in_vfork()) << "vfork of a 32-bit program";
  EXPECT_FALSE(sleeping('D', 190, "request_wait_answer").in_vfork()) << "fremovexattr";
#endif
}

TEST(TaskState, a_group_stop_shows_in_where_it_sleeps) {
  EXPECT_TRUE(sleeping('T', -1, "").maybe_group_stopped());
  EXPECT_TRUE(sleeping('D', -1, "do_signal_stop").maybe_group_stopped());
  EXPECT_TRUE(sleeping('D', -1, "get_signal").maybe_group_stopped());
  EXPECT_TRUE(sleeping('D', -1, "").maybe_group_stopped()) << "when in doubt";
  EXPECT_FALSE(sleeping('D', 0, "__refrigerator").maybe_group_stopped());
  EXPECT_FALSE(sleeping('D', SYS_futex, "futex_wait_queue").maybe_group_stopped());
}

TEST(TaskState, describes_itself) {
  TaskState task = sleeping('D', -1, "pipe_write");
  task.process = 10;
  task.tid = 12;
  task.comm = "python3";
  EXPECT_EQ(task.describe(), "thread 12 (python3) of process 10, state D, in pipe_write");
  task.wchan.clear();
  EXPECT_EQ(task.describe(), "thread 12 (python3) of process 10, state D");
}

TEST(TaskState, reads_this_thread) {
  const auto task = read_task_state(::getpid(), ::getpid());
  ASSERT_TRUE(task.ok()) << task.error().message;
  EXPECT_EQ(task->process, ::getpid());
  EXPECT_EQ(task->state, 'R');
  EXPECT_EQ(task->comm, std::string("container_unit_test").substr(0, 15));
  EXPECT_FALSE(task->ended());
  EXPECT_EQ(read_task_state(1 << 30, 1 << 30).error().code, Code::not_found);
}

}  // namespace
}  // namespace icebox::container
