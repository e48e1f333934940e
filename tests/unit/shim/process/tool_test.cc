// SPDX-License-Identifier: Apache-2.0
#include "shim/process/tool.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <optional>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/shim/loop/testing.h"

namespace icebox::shim {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;
using testing::turn_until;

class ToolTest : public ::testing::Test {
 protected:
  void TearDown() override {
    EXPECT_EQ(tools_.running(), 0U);
    EXPECT_EQ(::waitpid(-1, nullptr, WNOHANG), -1);
  }

  static ToolRequest shell(const std::string& script) {
    ToolRequest request;
    request.command.argv = {"/bin/sh", "-c", script};
    return request;
  }

  Result<ToolResult> run(ToolRequest request) {
    std::optional<Result<ToolResult>> result;
    tools_.start(std::move(request), [&](Result<ToolResult> done) {
      EXPECT_FALSE(result.has_value());
      result.emplace(std::move(done));
    });
    EXPECT_FALSE(result.has_value());  // never from inside start()
    if (!turn_until(*loop_, [&] { return result.has_value(); })) {
      return make_error(Code::unknown, "the test ran out of time");
    }
    return std::move(*result);
  }

  std::unique_ptr<EventLoop> loop_ = testing::make_loop();
  Supervisor supervisor_{*loop_};
  ToolRunner tools_{*loop_, supervisor_};
};

TEST_F(ToolTest, CapturesBothStreamsAndTheExitCode) {
  auto result = run(shell("echo out; echo err >&2; exit 3"));
  ASSERT_TRUE(result.ok()) << result.error().message;
  EXPECT_EQ(result->out, "out\n");
  EXPECT_EQ(result->error_tail, "err\n");
  EXPECT_EQ(result->exit_code, 3U);
  EXPECT_EQ(result->wait_status, 3 << 8);
  EXPECT_FALSE(result->out_cut);
}

TEST_F(ToolTest, DeathBySignal) {
  auto result = run(shell("kill -9 $$"));
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result->exit_code, 137U);
}

TEST_F(ToolTest, OutputIsBoundedAndTheErrorKeepsItsTail) {
  ToolRequest request = shell(
      "head -c 300000 /dev/zero | tr '\\0' o; head -c 300000 /dev/zero | tr '\\0' e >&2;"
      " printf last >&2");
  request.max_output = 1000;
  request.max_error_tail = 10;
  auto result = run(std::move(request));
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result->exit_code, 0U);  // it was not blocked by a full pipe
  EXPECT_EQ(result->out, std::string(1000, 'o'));
  EXPECT_TRUE(result->out_cut);
  EXPECT_EQ(result->error_tail, "eeeeeelast");
}

TEST_F(ToolTest, AllOfALargeOutputWithinTheLimit) {
  ToolRequest request = shell("head -c 1000000 /dev/zero | tr '\\0' o");
  request.max_output = 1000000;
  auto result = run(std::move(request));
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result->out, std::string(1000000, 'o'));
  EXPECT_FALSE(result->out_cut);
}

TEST_F(ToolTest, InputIsWhatTheProgramReads) {
  ToolRequest request;
  const std::string input(200000, 'i');  // more than a pipe holds: nobody has to feed it
  request.command.argv = {"/bin/cat"};
  request.input = input;
  auto result = run(std::move(request));
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result->out, input);
}

TEST_F(ToolTest, WithoutInputStdinIsEmpty) {
  auto result = run(shell("cat; echo end"));
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result->out, "end\n");
}

TEST_F(ToolTest, MappedDescriptorsAreNotCaptured) {
  auto pipe = testing::make_pipe();
  ToolRequest request = shell("echo mapped; echo err >&2");
  request.command.fds = {{pipe.write.get(), 1}};
  auto result = run(std::move(request));
  pipe.write.reset();
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result->out, "");
  EXPECT_EQ(result->error_tail, "err\n");
  EXPECT_EQ(testing::get(pipe.read), "mapped\n");
}

TEST_F(ToolTest, AMissingProgramIsAnErrorThatNamesIt) {
  ToolRequest request;
  request.command.argv = {"/nonexistent/program"};
  auto result = run(std::move(request));
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.error().code, Code::not_found);
  EXPECT_THAT(result.error().message, HasSubstr("/nonexistent/program"));
}

// Deadlines on a clock that moves only when the program has come as far as the test wants it.
class ToolDeadlineTest : public ::testing::Test {
 protected:
  void TearDown() override {
    EXPECT_EQ(tools_.running(), 0U);
    EXPECT_EQ(::waitpid(-1, nullptr, WNOHANG), -1);
  }

  // Starts `script`, in which $READY is a file to make when everything is set up, and waits for it.
  void start(ToolRequest request, const std::string& script) {
    request.command.argv = {"/bin/sh", "-c", "READY=" + (dir_ / "ready") + "; " + script};
    request.deadline = 10s;
    tools_.start(std::move(request),
                 [this](Result<ToolResult> done) { result_.emplace(std::move(done)); });
    ASSERT_TRUE(
        turn_until(*loop_, [this] { return ::access((dir_ / "ready").c_str(), F_OK) == 0; }));
    clock_.advance(9999ms);
    testing::turn_times(*loop_, 2);
    EXPECT_EQ(tools_.running(), 1U);
    clock_.advance(1ms);
  }

  void expect_deadline_error() {
    ASSERT_TRUE(turn_until(*loop_, [this] { return result_.has_value(); }));
    ASSERT_FALSE(result_->ok());
    EXPECT_EQ(result_->error().code, Code::deadline_exceeded);
  }

  testing::TempDir dir_;
  testing::VirtualClock clock_;
  std::unique_ptr<EventLoop> loop_ = testing::make_loop(clock_);
  Supervisor supervisor_{*loop_};
  ToolRunner tools_{*loop_, supervisor_};
  std::optional<Result<ToolResult>> result_;
};

TEST_F(ToolDeadlineTest, KillsAndTellsWhatTheProgramSaid) {
  start({}, "echo stuck here >&2; : > $READY; exec sleep 1000");
  expect_deadline_error();
  EXPECT_EQ(result_->error().message,
            "/bin/sh did not end within 10000 ms and was killed: stuck here");
}

TEST_F(ToolDeadlineTest, MayAskBeforeItKills) {
  ToolRequest request;
  request.term_grace = 8s;
  start(std::move(request),
        "trap ': > $READY.asked; exit 0' TERM; : > $READY;"
        " while :; do sleep 0.01; done");
  expect_deadline_error();  // the grace has not passed on this clock: it ended by itself
  EXPECT_EQ(::access((dir_ / "ready.asked").c_str(), F_OK), 0);
}

TEST_F(ToolDeadlineTest, KillsWhoDoesNotObeyTheRequest) {
  ToolRequest request;
  request.term_grace = 8s;
  start(std::move(request), "trap '' TERM; : > $READY; exec sleep 1000");
  testing::turn_times(*loop_, 2);
  clock_.advance(7999ms);
  testing::turn_times(*loop_, 2);
  EXPECT_EQ(tools_.running(), 1U);
  clock_.advance(1ms);
  expect_deadline_error();
}

TEST_F(ToolDeadlineTest, ReachesTheWholeGroupWhenAsked) {
  ASSERT_TRUE(Supervisor::become_subreaper().ok());
  ToolRequest request;
  request.command.new_session = true;
  request.kill_group = true;
  start(std::move(request), "sleep 1000 & echo $! > $READY.pid; : > $READY; wait");
  expect_deadline_error();
  pid_t descendant = 0;
  std::ifstream(dir_ / "ready.pid") >> descendant;
  ASSERT_GT(descendant, 0);
  int status = 0;
  EXPECT_EQ(::waitpid(descendant, &status, 0), descendant);  // it was orphaned to us and is dead
  EXPECT_TRUE(WIFSIGNALED(status));
}

TEST_F(ToolTest, ADescendantThatKeepsThePipesDoesNotHoldUpTheResult) {
  ASSERT_TRUE(Supervisor::become_subreaper().ok());
  testing::TempDir dir;
  auto result = run(shell("sleep 1000 & echo $! > " + (dir / "pid") + "; echo done"));
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result->out, "done\n");
  pid_t descendant = 0;
  std::ifstream(dir / "pid") >> descendant;
  ASSERT_GT(descendant, 0);
  ASSERT_EQ(::kill(descendant, SIGKILL), 0);
  EXPECT_EQ(::waitpid(descendant, nullptr, 0), descendant);
}

TEST_F(ToolTest, ARunningProgramCanBeSignalled) {
  std::optional<Result<ToolResult>> result;
  const auto id = tools_.start(shell("exec sleep 1000"),
                               [&](Result<ToolResult> done) { result.emplace(std::move(done)); });
  EXPECT_EQ(tools_.running(), 1U);
  ASSERT_TRUE(tools_.signal(id, SIGTERM).ok());
  ASSERT_TRUE(turn_until(*loop_, [&] { return result.has_value(); }));
  EXPECT_EQ(result->value().exit_code, 143U);
  EXPECT_EQ(tools_.signal(id, SIGTERM).error().code, Code::not_found);
}

TEST_F(ToolTest, DestroyingTheRunnerDropsTheCallbackAndStillReaps) {
  bool called = false;
  {
    ToolRunner other(*loop_, supervisor_);
    other.start(shell("exit 0"), [&](const Result<ToolResult>&) { called = true; });
    EXPECT_EQ(supervisor_.count(), 1U);
  }
  ASSERT_TRUE(turn_until(*loop_, [&] { return supervisor_.count() == 0; }));
  EXPECT_FALSE(called);
}

}  // namespace
}  // namespace icebox::shim
