// SPDX-License-Identifier: Apache-2.0
#include "shim/process/console.h"

#include <sys/ioctl.h>
#include <sys/stat.h>

#include <cstdlib>
#include <optional>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/shim/loop/testing.h"
#include "tests/unit/shim/process/fake_runtime.h"

namespace icebox::shim {
namespace {

using testing::connect_to;
using ::testing::HasSubstr;
using testing::open_terminal;
using testing::send_fds;
using ::testing::StartsWith;
using testing::turn_until;

bool exists(const std::string& path) {
  struct stat info = {};
  return ::stat(path.c_str(), &info) == 0;
}

class ConsoleTest : public ::testing::Test {
 protected:
  std::unique_ptr<ConsoleSocket> open() {
    auto socket = ConsoleSocket::open(
        *loop_, [this](Result<UniqueFd> master) { arrived_.emplace(std::move(master)); });
    EXPECT_TRUE(socket.ok()) << socket.error().message;
    return std::move(socket).value();
  }
  [[nodiscard]] bool wait() {
    return turn_until(*loop_, [this] { return arrived_.has_value(); });
  }

  std::unique_ptr<EventLoop> loop_ = testing::make_loop();
  std::optional<Result<UniqueFd>> arrived_;
};

TEST_F(ConsoleTest, ReceivesTheMasterAndCleansUp) {
  auto socket = open();
  const std::string path = socket->path();
  EXPECT_TRUE(exists(path));
  const auto terminal = open_terminal();
  const UniqueFd client = connect_to(path);
  send_fds(client, {terminal.master.get()});
  ASSERT_TRUE(wait());
  ASSERT_TRUE(arrived_->ok()) << arrived_->error().message;
  // It is that terminal: what goes in at the slave comes out here.
  testing::put(terminal.slave, "x");
  EXPECT_EQ(testing::get(arrived_->value()), "x");
  EXPECT_EQ(::fcntl(arrived_->value().get(), F_GETFD), FD_CLOEXEC);
  socket.reset();
  EXPECT_FALSE(exists(path));
  EXPECT_FALSE(exists(path.substr(0, path.rfind('/'))));
}

TEST_F(ConsoleTest, ResizeReachesTheProcess) {
  const auto terminal = open_terminal();
  ASSERT_TRUE(resize_console(terminal.master.get(), 132, 43).ok());
  winsize size = {};
  ASSERT_EQ(::ioctl(terminal.slave.get(), TIOCGWINSZ, &size), 0);
  EXPECT_EQ(size.ws_col, 132);
  EXPECT_EQ(size.ws_row, 43);
  EXPECT_FALSE(resize_console(testing::make_pipe().read.get(), 1, 1).ok());
}

TEST_F(ConsoleTest, ARuntimeThatSendsNothingIsAnError) {
  const auto socket = open();
  connect_to(socket->path()).reset();
  ASSERT_TRUE(wait());
  ASSERT_FALSE(arrived_->ok());
  EXPECT_THAT(arrived_->error().message, HasSubstr("0 file descriptors"));
}

TEST_F(ConsoleTest, TwoDescriptorsAreAnErrorAndNoneLeaks) {
  const auto socket = open();
  const auto terminal = open_terminal();
  auto pipe = testing::make_pipe();
  const UniqueFd client = connect_to(socket->path());
  send_fds(client, {terminal.master.get(), pipe.write.get()});
  ASSERT_TRUE(wait());
  EXPECT_FALSE(arrived_->ok());
  pipe.write.reset();
  EXPECT_EQ(testing::get(pipe.read), "");  // end of file: the received copy is closed
}

TEST_F(ConsoleTest, SomethingElseThanATerminalIsAnError) {
  const auto socket = open();
  auto pipe = testing::make_pipe();
  const UniqueFd client = connect_to(socket->path());
  send_fds(client, {pipe.write.get()});
  ASSERT_TRUE(wait());
  ASSERT_FALSE(arrived_->ok());
  EXPECT_THAT(arrived_->error().message, HasSubstr("not a terminal"));
}

TEST_F(ConsoleTest, MayBeDestroyedByItsOwnHandler) {
  std::unique_ptr<ConsoleSocket> socket;
  bool called = false;
  socket = std::move(ConsoleSocket::open(*loop_, [&](const Result<UniqueFd>&) {
             called = true;
             socket.reset();
           })).value();
  connect_to(socket->path()).reset();
  ASSERT_TRUE(turn_until(*loop_, [&] { return called; }));
  EXPECT_EQ(socket, nullptr);
}

TEST_F(ConsoleTest, UsesTheRuntimeDirectoryUnlessItIsTooLongForASocket) {
  testing::TempDir dir;
  ASSERT_EQ(::setenv("XDG_RUNTIME_DIR", dir.path().c_str(), 1), 0);
  EXPECT_THAT(open()->path(), StartsWith(dir.path() + "/pty"));
  const std::string longer = dir / std::string(100, 'l');
  ASSERT_EQ(::mkdir(longer.c_str(), 0700), 0);
  ASSERT_EQ(::setenv("XDG_RUNTIME_DIR", longer.c_str(), 1), 0);
  EXPECT_THAT(open()->path(), StartsWith("/tmp/pty"));
  ASSERT_EQ(::unsetenv("XDG_RUNTIME_DIR"), 0);
}

}  // namespace
}  // namespace icebox::shim
