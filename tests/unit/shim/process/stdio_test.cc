// SPDX-License-Identifier: Apache-2.0
#include "shim/process/stdio.h"

#include <signal.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <fstream>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/shim/loop/testing.h"
#include "tests/unit/shim/process/fake_runtime.h"

namespace icebox::shim {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;
using testing::turn_times;
using testing::turn_until;

std::string content_of(const std::string& path) {
  std::stringstream content;
  content << std::ifstream(path).rdbuf();
  return content.str();
}

class StdioTest : public ::testing::Test {
 protected:
  void TearDown() override {
    io_.reset();
    EXPECT_TRUE(turn_until(*loop_, [&] { return supervisor_.count() == 0; }));
    EXPECT_EQ(::waitpid(-1, nullptr, WNOHANG), -1);
  }

  std::string fifo(const std::string& name) {
    const std::string path = dir_ / name;
    EXPECT_EQ(::mkfifo(path.c_str(), 0700), 0);
    return path;
  }

  // What containerd's client holds: the read end of an output FIFO, opened before the task starts.
  static UniqueFd reader(const std::string& path) {
    UniqueFd fd(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
    EXPECT_TRUE(fd.valid());
    return fd;
  }

  Result<void> try_open(StdioSpec spec) {
    spec.container_id = "c1";
    if (spec.process_id.empty()) spec.process_id = "p1";
    spec.name_space = "ns1";
    auto io = ProcessIo::open(*loop_, supervisor_, std::move(spec));
    if (!io.ok()) return io.error();
    io_ = std::move(io).value();
    return {};
  }

  void open(StdioSpec spec) {
    const auto opened = try_open(std::move(spec));
    ASSERT_TRUE(opened.ok()) << opened.error().message;
  }

  // Starts `script` as the container's process would be, and tells the io of its exit.
  pid_t start(const std::string& script) {
    Command command;
    command.argv = {"/bin/sh", "-c", script};
    io_->attach(command);
    auto child = spawn(command);
    EXPECT_TRUE(child.ok()) << child.error().message;
    io_->runtime_started();
    const pid_t pid = child->process.pid();
    EXPECT_TRUE(supervisor_
                    .watch(std::move(child->process),
                           [this](const ProcessExit& exit) {
                             exit_ = exit;
                             if (io_) io_->process_exited();
                           })
                    .ok());
    return pid;
  }

  // Turns until `fd` gave `text`; true when it is exactly that.
  bool receives(const UniqueFd& fd, const std::string& text) {
    std::string received;
    const bool done = turn_until(*loop_, [&] {
      received += testing::get(fd);
      return received.size() >= text.size();
    });
    EXPECT_EQ(received, text);
    return done && received == text;
  }

  // Turns until the FIFO has no writer any more: read gives 0 instead of EAGAIN.
  bool ends(const UniqueFd& fd) {
    return turn_until(*loop_, [&] {
      char byte = 0;
      return ::read(fd.get(), &byte, 1) == 0;
    });
  }

  bool drain(Duration timeout = 5s) {
    bool drained = false;
    io_->drain(timeout, [&] { drained = true; });
    EXPECT_FALSE(drained);  // never from inside drain()
    return turn_until(*loop_, [&] { return drained; });
  }

  Result<void> ready() {
    std::optional<Result<void>> result;
    io_->when_ready([&](Result<void> done) { result.emplace(std::move(done)); });
    EXPECT_FALSE(result.has_value());
    EXPECT_TRUE(turn_until(*loop_, [&] { return result.has_value(); }));
    return result.value_or(Result<void>(make_error(Code::unknown, "never called")));
  }

  testing::TempDir dir_;
  std::unique_ptr<EventLoop> loop_ = testing::make_loop();
  Supervisor supervisor_{*loop_};
  std::unique_ptr<ProcessIo> io_;
  std::optional<ProcessExit> exit_;
};

TEST_F(StdioTest, OutputReachesTheClientAndTheFifosEndBeforeDelete) {
  StdioSpec spec;
  spec.out = fifo("out");
  spec.err = fifo("err");
  const UniqueFd out = reader(spec.out);
  const UniqueFd err = reader(spec.err);
  open(spec);
  ASSERT_TRUE(ready().ok());
  start("echo hello; echo trouble >&2; cat");  // cat: stdin is /dev/null
  EXPECT_TRUE(receives(out, "hello\n"));
  EXPECT_TRUE(receives(err, "trouble\n"));
  // containerd's client waits for this end before it sends Delete, so no drain() may be needed for
  // it.
  EXPECT_TRUE(ends(out));
  EXPECT_TRUE(ends(err));
  EXPECT_TRUE(io_->drained());
  EXPECT_TRUE(drain());
}

TEST_F(StdioTest, AClientThatLeavesNeitherKillsTheProcessNorEndsItsOutput) {
  StdioSpec spec;
  spec.out = fifo("out");
  spec.in = fifo("in");
  UniqueFd out = reader(spec.out);
  open(spec);
  start("while read line; do echo \"got $line\"; done; echo end");
  UniqueFd in(::open(spec.in.c_str(), O_WRONLY | O_CLOEXEC));
  testing::put(in, "one\n");
  EXPECT_TRUE(receives(out, "got one\n"));
  // The client goes away, also from stdin.
  out.reset();
  in.reset();
  turn_times(*loop_, 3);
  // Another attaches.
  UniqueFd in2(::open(spec.in.c_str(), O_WRONLY | O_CLOEXEC));
  testing::put(in2, "two\n");
  const UniqueFd out2 = reader(spec.out);
  EXPECT_TRUE(receives(out2, "got two\n"));
  EXPECT_FALSE(exit_.has_value());
  // CloseIO alone is not the end while the client has its end open.
  io_->close_stdin();
  io_->close_stdin();
  testing::put(in2, "three\n");
  EXPECT_TRUE(receives(out2, "got three\n"));
  in2.reset();
  EXPECT_TRUE(receives(out2, "end\n"));
  EXPECT_TRUE(ends(out2));
  ASSERT_TRUE(turn_until(*loop_, [&] { return exit_.has_value(); }));
  EXPECT_EQ(exit_->exit_code, 0U);
}

TEST_F(StdioTest, StdinIsClosedWhenTheProcessEnds) {
  StdioSpec spec;
  spec.in = fifo("in");
  open(spec);
  start("exit 0");
  ASSERT_TRUE(turn_until(*loop_, [&] { return exit_.has_value(); }));
  // Nobody has the FIFO open any more.
  EXPECT_EQ(::open(spec.in.c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC), -1);
  EXPECT_EQ(errno, ENXIO);
}

TEST_F(StdioTest, EmptyMeansDevNull) {
  open({});
  const std::string report = dir_ / "report";
  start("links=$(readlink /proc/$$/fd/0 /proc/$$/fd/1 /proc/$$/fd/2); echo \"$links\" > " + report);
  ASSERT_TRUE(turn_until(*loop_, [&] { return exit_.has_value(); }));
  EXPECT_EQ(content_of(report), "/dev/null\n/dev/null\n/dev/null\n");
  EXPECT_TRUE(io_->drained());
}

TEST_F(StdioTest, ABackgroundProcessKeepsTheOutputOpenUntilTheDrainGivesUp) {
  StdioSpec spec;
  spec.out = fifo("out");
  const UniqueFd out = reader(spec.out);
  open(spec);
  const std::string pid_file = dir_ / "pid";
  start("sleep 1000 & echo $! > " + pid_file + "; echo started");
  ASSERT_TRUE(turn_until(*loop_, [&] { return exit_.has_value(); }));
  EXPECT_TRUE(receives(out, "started\n"));
  EXPECT_FALSE(io_->drained());
  EXPECT_TRUE(drain(50ms));
  EXPECT_TRUE(io_->drained());
  EXPECT_TRUE(ends(out));
  pid_t background = 0;
  std::ifstream(pid_file) >> background;
  ASSERT_GT(background, 0);
  EXPECT_EQ(::kill(background, SIGKILL), 0);
}

TEST_F(StdioTest, AClientThatDoesNotReadIsGivenUpAfterTheDrain) {
  StdioSpec spec;
  spec.out = fifo("out");
  const UniqueFd out = reader(spec.out);
  open(spec);
  start("head -c 100000 /dev/zero");
  ASSERT_TRUE(turn_until(*loop_, [&] { return exit_.has_value(); }));
  EXPECT_FALSE(io_->drained());
  EXPECT_TRUE(drain(50ms));
  // What had gone into the FIFO is still there for it.
  EXPECT_GT(testing::get(out, 200000).size(), 4096U);
}

TEST_F(StdioTest, AFileGetsBothStreams) {
  StdioSpec spec;
  const std::string path = dir_ / "new/dir/log";
  spec.out = "file://" + path;
  spec.err = "file:///ignored";
  open(spec);
  start("echo out; echo err >&2");
  ASSERT_TRUE(turn_until(*loop_, [&] { return exit_.has_value() && io_->drained(); }));
  EXPECT_THAT(content_of(path), ::testing::AnyOf("out\nerr\n", "err\nout\n"));
  struct stat info = {};
  ASSERT_EQ(::stat(path.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0644U);
}

TEST_F(StdioTest, APlainRegularFileIsAppendedTo) {
  StdioSpec spec;
  spec.out = dir_ / "log";
  std::ofstream(spec.out) << "before\n";
  open(spec);
  // The process itself has a pipe: CRIU cannot dump a file from outside the container.
  start("echo after; readlink /proc/$$/fd/1");
  ASSERT_TRUE(turn_until(*loop_, [&] { return exit_.has_value() && io_->drained(); }));
  EXPECT_THAT(content_of(spec.out), ::testing::MatchesRegex("before\nafter\npipe:.*\n"));
}

TEST_F(StdioTest, WhatIsMissingOrUnknownIsAnError) {
  StdioSpec spec;
  spec.out = dir_ / "nothing-here";
  const auto missing = try_open(spec);
  ASSERT_FALSE(missing.ok());
  EXPECT_EQ(missing.error().code, Code::not_found);
  EXPECT_THAT(missing.error().message, HasSubstr(spec.out));
  spec.out = "tcp:///x";
  const auto unknown = try_open(spec);
  ASSERT_FALSE(unknown.ok());
  EXPECT_EQ(unknown.error().code, Code::invalid_argument);
  EXPECT_EQ(unknown.error().message, "unknown STDIO scheme tcp");
  spec = {};
  spec.in = dir_ / "regular";
  std::ofstream(spec.in) << "x";
  EXPECT_FALSE(try_open(spec).ok());
}

TEST_F(StdioTest, PipesBelongToTheUserTheyAreFor) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root";
  StdioSpec spec;
  spec.out = fifo("out");
  spec.owner = {1234, 2345};
  const UniqueFd out = reader(spec.out);
  open(spec);
  start("stat -L -c %u:%g /proc/self/fd/1");
  EXPECT_TRUE(receives(out, "1234:2345\n"));
}

// --- binary loggers

class LoggerTest : public StdioTest {
 protected:
  std::string script(const std::string& body) {
    const std::string path = dir_ / "logger.sh";
    std::ofstream(path) << "#!/bin/sh\n" << body << "\n";
    EXPECT_EQ(::chmod(path.c_str(), 0755), 0);
    return path;
  }
};

TEST_F(LoggerTest, GetsTheStreamsItsParametersAndNothingElse) {
  const std::string log = dir_ / "log";
  StdioSpec spec;
  spec.process_id = "exec-7";
  spec.out =
      "binary://" +
      script(
          "{ echo \"args $*\"; /usr/bin/env | grep -v -e ^PWD= -e ^_= -e ^SHLVL= -e ^OLDPWD=;"
          " printf x >&5; exec 5>&-; cat <&3; cat <&4; } > " +
          log) +
      "?key=value";
  open(spec);
  ASSERT_TRUE(ready().ok());
  start("echo out; echo err >&2");
  // Both pipes end with the process: nobody else holds their write ends.
  ASSERT_TRUE(turn_until(*loop_, [&] { return supervisor_.count() == 0; }));
  EXPECT_EQ(content_of(log),
            "args key value\nCONTAINER_ID=exec-7\nCONTAINER_NAMESPACE=ns1\nout\nerr\n");
  EXPECT_TRUE(io_->drained());
}

TEST_F(LoggerTest, TheProcessWaitsForTheReadyByte) {
  const std::string go = fifo("go");
  StdioSpec spec;
  spec.out = "binary-v2://" +
             script("read line < " + go + "; printf x >&5; exec 5>&-; cat <&3 >/dev/null");
  open(spec);
  bool is_ready = false;
  io_->when_ready([&](const Result<void>& result) {
    EXPECT_TRUE(result.ok()) << result.error().message;
    is_ready = true;
  });
  const UniqueFd gate(::open(go.c_str(), O_RDWR | O_CLOEXEC));
  turn_times(*loop_, 5);
  EXPECT_FALSE(is_ready);
  testing::put(gate, "now\n");
  EXPECT_TRUE(turn_until(*loop_, [&] { return is_ready; }));
}

TEST_F(LoggerTest, TheEndOfTheReadyPipeCountsForVersionOneOnly) {
  const std::string program = script("exec 5>&-; cat <&3 >/dev/null");
  StdioSpec spec;
  spec.out = "binary://" + program;
  open(spec);
  EXPECT_TRUE(ready().ok());
  spec.out = "binary-v2://" + program;
  open(spec);
  const auto result = ready();
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.error().code, Code::unavailable);
  EXPECT_THAT(result.error().message, HasSubstr("ready pipe"));
}

TEST_F(LoggerTest, OneThatCannotStartIsAnError) {
  StdioSpec spec;
  spec.out = "binary:///nonexistent/logger";
  const auto opened = try_open(spec);
  ASSERT_FALSE(opened.ok());
  EXPECT_THAT(opened.error().message, HasSubstr("/nonexistent/logger"));
}

TEST(LoggerClock, ASilentLoggerIsGivenUpAfterTenSecondsAndKilledTwelveLater) {
  testing::VirtualClock clock;
  auto loop = testing::make_loop(clock);
  Supervisor supervisor(*loop);
  testing::TempDir dir;
  const std::string path = dir / "logger.sh";
  std::ofstream(path) << "#!/bin/sh\ntrap '' TERM\n: > " << (dir / "trapped")
                      << "\nwhile :; do sleep 0.01; done\n";
  ASSERT_EQ(::chmod(path.c_str(), 0755), 0);
  StdioSpec spec;
  spec.process_id = "p1";
  spec.out = "binary://" + path;
  auto io = std::move(ProcessIo::open(*loop, supervisor, spec)).value();
  std::optional<Result<void>> result;
  io->when_ready([&](Result<void> done) { result.emplace(std::move(done)); });
  ASSERT_TRUE(turn_until(*loop, [&] { return ::access((dir / "trapped").c_str(), F_OK) == 0; }));
  clock.advance(9999ms);
  turn_times(*loop, 2);
  EXPECT_FALSE(result.has_value());
  clock.advance(1ms);
  turn_times(*loop, 2);
  ASSERT_TRUE(result.has_value());
  EXPECT_EQ(result->error().code, Code::unavailable);
  io.reset();
  // It ignores SIGTERM, so it lives on until its grace is over.
  clock.advance(11999ms);
  const auto until = std::chrono::steady_clock::now() + 50ms;
  while (std::chrono::steady_clock::now() < until) ASSERT_TRUE(loop->turn(5ms).ok());
  EXPECT_EQ(supervisor.count(), 1U);
  clock.advance(1ms);
  EXPECT_TRUE(turn_until(*loop, [&] { return supervisor.count() == 0; }));
}

// --- terminals

class TerminalTest : public StdioTest {
 protected:
  void connect() {
    const auto path = io_->console_socket();
    ASSERT_TRUE(path.has_value());
    const UniqueFd client = testing::connect_to(*path);
    terminal_ = testing::open_terminal();
    testing::send_fds(client, {terminal_.master.get()});
    terminal_.master.reset();
    std::optional<Result<void>> result;
    io_->when_console(5s, [&](Result<void> done) { result.emplace(std::move(done)); });
    ASSERT_TRUE(turn_until(*loop_, [&] { return result.has_value(); }));
    ASSERT_TRUE(result->ok()) << result->error().message;
    struct stat info = {};
    EXPECT_NE(::stat(path->c_str(), &info), 0);  // the socket does not outlive its use
    EXPECT_FALSE(io_->console_socket().has_value());
  }

  testing::Terminal terminal_;
};

TEST_F(TerminalTest, CopiesBothWaysAndResizes) {
  StdioSpec spec;
  spec.terminal = true;
  spec.in = fifo("in");
  spec.out = fifo("out");
  const UniqueFd out = reader(spec.out);
  open(spec);
  Command command;
  io_->attach(command);
  EXPECT_TRUE(command.fds.empty());  // the runtime's own streams stay capturable
  io_->runtime_started();
  connect();
  testing::put(terminal_.slave, "prompt");
  EXPECT_TRUE(receives(out, "prompt"));
  const UniqueFd in(::open(spec.in.c_str(), O_WRONLY | O_CLOEXEC));
  testing::put(in, "line\n");
  EXPECT_TRUE(receives(out, "line\r\n"));  // the terminal's echo
  EXPECT_EQ(testing::get(terminal_.slave), "line\n");
  ASSERT_TRUE(io_->resize(80, 25).ok());
  winsize size = {};
  ASSERT_EQ(::ioctl(terminal_.slave.get(), TIOCGWINSZ, &size), 0);
  EXPECT_EQ(size.ws_col, 80);
  EXPECT_EQ(size.ws_row, 25);
  ASSERT_TRUE(io_->resize(1 << 20, 25).ok());  // does not wrap around
}

TEST_F(TerminalTest, TheProcesssExitEndsItAlthoughOthersHaveTheTerminalOpen) {
  StdioSpec spec;
  spec.terminal = true;
  spec.out = fifo("out");
  const UniqueFd out = reader(spec.out);
  open(spec);
  io_->runtime_started();
  connect();
  testing::put(terminal_.slave, "last words");
  io_->process_exited();
  EXPECT_TRUE(receives(out, "last words"));
  EXPECT_TRUE(ends(out));
  EXPECT_TRUE(drain());
  // No master is left: it was closed exactly once and everywhere.
  EXPECT_EQ(::write(terminal_.slave.get(), "x", 1), -1);
  EXPECT_EQ(errno, EIO);
  EXPECT_TRUE(io_->resize(10, 10).ok());
}

TEST_F(TerminalTest, LastCloseOfTheTerminalEndsTheOutput) {
  StdioSpec spec;
  spec.terminal = true;
  spec.out = fifo("out");
  const UniqueFd out = reader(spec.out);
  open(spec);
  io_->runtime_started();
  connect();
  testing::put(terminal_.slave, "bye");
  terminal_.slave.reset();
  EXPECT_TRUE(receives(out, "bye"));
  EXPECT_TRUE(ends(out));
}

TEST_F(TerminalTest, WithoutAClientTheTerminalIsStillRead) {
  StdioSpec spec;
  spec.terminal = true;
  open(spec);
  io_->runtime_started();
  connect();
  const std::string text(20000, 'x');  // more than a terminal buffers
  std::size_t written = 0;
  ASSERT_EQ(::fcntl(terminal_.slave.get(), F_SETFL, O_NONBLOCK), 0);
  EXPECT_TRUE(turn_until(*loop_, [&] {
    const ssize_t n = ::write(terminal_.slave.get(), text.data() + written, text.size() - written);
    if (n > 0) written += static_cast<std::size_t>(n);
    return written == text.size();
  }));
}

TEST_F(TerminalTest, ARuntimeThatNeverConnectsIsNoticed) {
  StdioSpec spec;
  spec.terminal = true;
  spec.out = fifo("out");
  const UniqueFd out = reader(spec.out);
  open(spec);
  io_->runtime_started();
  std::optional<Result<void>> result;
  io_->when_console(20ms, [&](Result<void> done) { result.emplace(std::move(done)); });
  ASSERT_TRUE(turn_until(*loop_, [&] { return result.has_value(); }));
  ASSERT_FALSE(result->ok());
  EXPECT_EQ(result->error().code, Code::deadline_exceeded);
  io_->process_exited();
  EXPECT_TRUE(ends(out));
  EXPECT_TRUE(drain());
}

TEST_F(TerminalTest, WithoutATerminalThereIsNothingToWaitFor) {
  open({});
  bool called = false;
  io_->when_console(5s, [&](const Result<void>& result) {
    EXPECT_TRUE(result.ok());
    called = true;
  });
  EXPECT_FALSE(called);
  EXPECT_TRUE(turn_until(*loop_, [&] { return called; }));
  EXPECT_FALSE(io_->console_socket().has_value());
  EXPECT_TRUE(io_->resize(80, 25).ok());
}

TEST_F(TerminalTest, MayBeDestroyedByTheDrain) {
  StdioSpec spec;
  spec.terminal = true;
  spec.out = fifo("out");
  const UniqueFd out = reader(spec.out);
  open(spec);
  io_->runtime_started();
  connect();
  bool called = false;
  io_->drain(5s, [&] {
    called = true;
    io_.reset();
  });
  io_->process_exited();
  EXPECT_TRUE(turn_until(*loop_, [&] { return called; }));
  EXPECT_EQ(io_, nullptr);
}

}  // namespace
}  // namespace icebox::shim
