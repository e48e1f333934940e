// SPDX-License-Identifier: Apache-2.0
#include "oci/base/subprocess.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <string>

#include <gtest/gtest.h>

#include "oci/base/file.h"
#include "oci/base/strings.h"

namespace icebox {
namespace {

using std::chrono::milliseconds;

TEST(Run, CapturesBothStreamsAndTheStatus) {
  const auto output = run({.argv = {"sh", "-c", "echo out; echo err >&2; exit 3"}}, {});
  ASSERT_TRUE(output.ok());
  EXPECT_EQ(output->out, "out\n");
  EXPECT_EQ(output->err, "err\n");
  EXPECT_EQ(exit_code_of(output->wait_status), 3);
}

TEST(Run, KeepsTheEndOfALongStderr) {
  const auto output = run(
      {.argv = {"sh", "-c", "i=0; while [ $i -lt 2000 ]; do echo line$i >&2; i=$((i+1)); done"}},
      {.max_output = 100});
  ASSERT_TRUE(output.ok());
  EXPECT_EQ(output->err.size(), 100U);
  EXPECT_TRUE(output->err.ends_with("line1999\n"));
}

TEST(Run, EndsAChildAtItsDeadline) {
  const auto start = std::chrono::steady_clock::now();
  const auto output = run({.argv = {"sleep", "60"}}, {.deadline = milliseconds(50)});
  ASSERT_FALSE(output.ok());
  EXPECT_EQ(output.error().code, Code::deadline_exceeded);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(30));
}

TEST(Run, IsNotHeldUpByAGrandchildThatKeepsThePipe) {
  const auto start = std::chrono::steady_clock::now();
  const auto output = run({.argv = {"sh", "-c", "sleep 60 & echo $!"}}, {});
  ASSERT_TRUE(output.ok());
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(30));
  ::kill(static_cast<pid_t>(*parse_i64(trim(output->out))), SIGKILL);
}

TEST(Spawn, NamesAProgramThatCannotBeExecuted) {
  const auto missing = spawn({.argv = {"/no/such/program"}});
  ASSERT_FALSE(missing.ok());
  EXPECT_EQ(missing.error().code, Code::not_found);
  const auto child = spawn({.argv = {"true"}, .cwd = "/no/such/directory"});
  ASSERT_FALSE(child.ok());
  EXPECT_NE(child.error().message.find("working directory"), std::string::npos);
}

TEST(Spawn, TellsOfAFailedExecWhateverNumbersTheChildIsGiven) {
  // One of them is the number of the pipe over which the child tells: it must not be lost.
  const auto null = open_file("/dev/null", O_RDWR);
  ASSERT_TRUE(null.ok());
  Command command = {.argv = {"/no/such/program"}};
  for (int fd = 3; fd < 32; ++fd) command.fds.emplace_back(null->get(), fd);
  EXPECT_FALSE(spawn(command).ok());
}

TEST(Spawn, HidesItsMountsFromTheHost) {
  if (::geteuid() != 0) GTEST_SKIP() << "a mount namespace needs root";
  const auto output =
      run({.argv = {"sh", "-c",
                    "mount -t tmpfs icebox-test /mnt && grep -c icebox-test /proc/self/mountinfo"},
           .private_mounts = true},
          {});
  ASSERT_TRUE(output.ok());
  EXPECT_EQ(output->out, "1\n") << output->err;
  EXPECT_EQ(read_file("/proc/self/mountinfo", 16 << 20)->find("icebox-test"), std::string::npos);
}

}  // namespace
}  // namespace icebox
