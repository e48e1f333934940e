// SPDX-License-Identifier: Apache-2.0
#include "shim/process/stream.h"

#include <sys/stat.h>

#include <cerrno>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <random>
#include <sstream>
#include <string>

#include <gtest/gtest.h>

#include "tests/unit/shim/loop/testing.h"

namespace icebox::shim {
namespace {

using namespace std::chrono_literals;
using testing::get;
using testing::make_pipe;
using testing::put;
using testing::turn_times;
using testing::turn_until;

std::string random_bytes(std::size_t size) {
  std::mt19937 generator(42);  // NOLINT(cert-msc51-cpp): the same bytes every time
  std::string bytes(size, '\0');
  for (char& byte : bytes) byte = static_cast<char>(generator());
  return bytes;
}

// To the last byte: what is smaller than PIPE_BUF goes in whole or not at all.
void fill(const UniqueFd& pipe) {
  const std::string block(4096, 'f');
  while (::write(pipe.get(), block.data(), block.size()) > 0) {
  }
  while (::write(pipe.get(), "f", 1) > 0) {
  }
}

class StreamTest : public ::testing::Test {
 protected:
  std::unique_ptr<Stream> start(UniqueFd source, UniqueFd sink,
                                Stream::SinkFailure failure = Stream::SinkFailure::end,
                                UniqueFd held = UniqueFd()) {
    Stream::Config config;
    config.name = "test";
    config.source = std::move(source);
    config.sink = std::move(sink);
    config.held = std::move(held);
    config.on_sink_failure = failure;
    config.on_end = [this] { ++ends_; };
    auto stream = Stream::start(*loop_, std::move(config));
    EXPECT_TRUE(stream.ok()) << stream.error().message;
    return std::move(stream).value();
  }

  std::unique_ptr<EventLoop> loop_ = testing::make_loop();
  int ends_ = 0;
};

TEST_F(StreamTest, CopiesAndPassesTheEndOn) {
  auto from = make_pipe();
  auto to = make_pipe();
  const auto stream = start(std::move(from.read), std::move(to.write));
  put(from.write, "hello");
  turn_times(*loop_, 1);
  EXPECT_EQ(get(to.read), "hello");
  from.write.reset();
  ASSERT_TRUE(turn_until(*loop_, [&] { return ends_ == 1; }));
  EXPECT_TRUE(stream->ended());
  EXPECT_EQ(stream->copied(), 5U);
  EXPECT_EQ(get(to.read), "");  // end of file, not EAGAIN: it blocks otherwise
}

TEST_F(StreamTest, AFullSinkStopsTheSourceAndNothingIsLost) {
  auto from = make_pipe(O_CLOEXEC | O_NONBLOCK);
  auto to = make_pipe(O_CLOEXEC | O_NONBLOCK);
  const auto stream = start(std::move(from.read), std::move(to.write));
  const std::string bytes = random_bytes(4 << 20);
  std::size_t sent = 0;
  const auto feed = [&] {
    const ssize_t n = ::write(from.write.get(), bytes.data() + sent, bytes.size() - sent);
    if (n > 0) sent += static_cast<std::size_t>(n);
    return n > 0;
  };
  // Nobody reads: the writer must be stopped after two pipes and one chunk, whatever the number of
  // turns.
  for (int i = 0; i < 200; ++i) {
    feed();
    turn_times(*loop_, 1);
  }
  EXPECT_LE(sent, 2 * 65536 + Stream::kChunk);
  EXPECT_GE(sent, 65536U);
  std::string received;
  ASSERT_TRUE(turn_until(*loop_, [&] {
    if (sent < bytes.size()) {
      feed();
    } else {
      from.write.reset();
    }
    received += get(to.read, 50000);
    return ends_ == 1;
  }));
  while (received.size() < bytes.size()) {
    const std::string rest = get(to.read);
    if (rest.empty()) break;
    received += rest;
  }
  EXPECT_TRUE(received == bytes);
}

TEST_F(StreamTest, APausedStreamDoesNotSpinOnTheHangUpOfItsSource) {
  auto from = make_pipe();
  auto to = make_pipe(O_CLOEXEC | O_NONBLOCK);
  fill(to.write);
  const auto stream = start(std::move(from.read), std::move(to.write));
  put(from.write, "tail");
  from.write.reset();
  turn_times(*loop_, 3);
  EXPECT_EQ(ends_, 0);
  // Idle now: a turn that may wait 50 ms does wait.
  const auto before = std::chrono::steady_clock::now();
  ASSERT_TRUE(loop_->turn(50ms).ok());
  EXPECT_GE(std::chrono::steady_clock::now() - before, 45ms);
  std::string received;
  ASSERT_TRUE(turn_until(*loop_, [&] {
    received += get(to.read);
    return ends_ == 1;
  }));
  received += get(to.read);
  ASSERT_GE(received.size(), 4U);
  EXPECT_EQ(received.substr(received.size() - 4), "tail");
}

TEST_F(StreamTest, AppendsToARegularFile) {
  testing::TempDir dir;
  const std::string path = dir / "log";
  std::ofstream(path) << "before ";
  auto from = make_pipe();
  const auto stream =
      start(std::move(from.read), UniqueFd(::open(path.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC)));
  put(from.write, "after");
  from.write.reset();
  ASSERT_TRUE(turn_until(*loop_, [&] { return ends_ == 1; }));
  std::stringstream content;
  content << std::ifstream(path).rdbuf();
  EXPECT_EQ(content.str(), "before after");
}

TEST_F(StreamTest, ASinkThatFailsMayBeDrainedToNowhere) {
  auto from = make_pipe();
  const auto stream =
      start(std::move(from.read), UniqueFd(::open("/dev/full", O_WRONLY | O_CLOEXEC)),
            Stream::SinkFailure::discard);
  // More than the pipe holds: the writer below would block if nobody read.
  for (int i = 0; i < 20; ++i) {
    put(from.write, std::string(16384, 'x'));
    turn_times(*loop_, 1);
  }
  EXPECT_EQ(ends_, 0);
  EXPECT_EQ(stream->copied(), 0U);
  from.write.reset();
  ASSERT_TRUE(turn_until(*loop_, [&] { return ends_ == 1; }));
}

TEST_F(StreamTest, ASinkThatFailsMayEndTheStream) {
  ::signal(SIGPIPE, SIG_IGN);
  auto from = make_pipe();
  auto to = make_pipe();
  const auto stream = start(std::move(from.read), std::move(to.write));
  to.read.reset();
  put(from.write, "x");
  ASSERT_TRUE(turn_until(*loop_, [&] { return ends_ == 1; }));
  EXPECT_EQ(::write(from.write.get(), "x", 1), -1);  // the source is closed as well
  EXPECT_EQ(errno, EPIPE);
}

TEST_F(StreamTest, ASinkThatDiesWhileFullEndsTheStream) {
  ::signal(SIGPIPE, SIG_IGN);
  auto from = make_pipe();
  auto to = make_pipe(O_CLOEXEC | O_NONBLOCK);
  fill(to.write);
  const auto stream = start(std::move(from.read), std::move(to.write));
  put(from.write, "x");
  turn_times(*loop_, 2);
  EXPECT_EQ(ends_, 0);
  to.read.reset();
  ASSERT_TRUE(turn_until(*loop_, [&] { return ends_ == 1; }));
}

TEST_F(StreamTest, FinishTakesWhatIsThereAndDoesNotWaitForTheEnd) {
  auto from = make_pipe();
  auto to = make_pipe();
  const auto stream = start(std::move(from.read), std::move(to.write));
  put(from.write, std::string(60000, 'x'));  // more than one chunk
  stream->finish();
  EXPECT_EQ(ends_, 0);                                          // never from inside finish()
  ASSERT_TRUE(turn_until(*loop_, [&] { return ends_ == 1; }));  // although the writer is still open
  std::string received;
  while (received.size() < 60000) received += get(to.read);
  EXPECT_EQ(received, std::string(60000, 'x'));
}

TEST_F(StreamTest, FinishOfAnIdleStreamEndsIt) {
  auto from = make_pipe();
  auto to = make_pipe();
  const auto stream = start(std::move(from.read), std::move(to.write));
  stream->finish();
  ASSERT_TRUE(turn_until(*loop_, [&] { return ends_ == 1; }));
  stream->finish();  // no effect
  turn_times(*loop_, 2);
  EXPECT_EQ(ends_, 1);
}

TEST_F(StreamTest, FinishDeliversWhatAFullSinkHeldBack) {
  auto from = make_pipe(O_CLOEXEC | O_NONBLOCK);
  auto to = make_pipe(O_CLOEXEC | O_NONBLOCK);
  const auto stream = start(std::move(from.read), std::move(to.write));
  const std::string bytes = random_bytes(150000);
  std::size_t sent = 0;
  for (int i = 0; i < 100; ++i) {
    const ssize_t n = ::write(from.write.get(), bytes.data() + sent, bytes.size() - sent);
    if (n > 0) sent += static_cast<std::size_t>(n);
    turn_times(*loop_, 1);
  }
  stream->finish();
  turn_times(*loop_, 5);
  EXPECT_EQ(ends_, 0);
  std::string received;
  ASSERT_TRUE(turn_until(*loop_, [&] {
    received += get(to.read, 7000);
    return ends_ == 1;
  }));
  for (std::string rest = get(to.read); !rest.empty(); rest = get(to.read)) received += rest;
  EXPECT_TRUE(received == bytes.substr(0, sent));
}

TEST_F(StreamTest, FinishIsNotHeldUpByAWriterThatNeverStops) {
  auto from = make_pipe(O_CLOEXEC | O_NONBLOCK);
  const auto stream =
      start(std::move(from.read), UniqueFd(::open("/dev/null", O_WRONLY | O_CLOEXEC)));
  const std::string chunk(65536, 'x');
  stream->finish();
  ASSERT_TRUE(turn_until(*loop_, [&] {
    static_cast<void>(::write(from.write.get(), chunk.data(), chunk.size()) > 0);
    return ends_ == 1;
  }));
}

TEST_F(StreamTest, CloseIsSilent) {
  auto from = make_pipe();
  auto to = make_pipe();
  const auto stream = start(std::move(from.read), std::move(to.write));
  stream->close();
  turn_times(*loop_, 2);
  EXPECT_EQ(ends_, 0);
  EXPECT_TRUE(stream->ended());
  EXPECT_EQ(get(to.read), "");
}

TEST_F(StreamTest, MayBeDestroyedByItsOwnEnd) {
  auto from = make_pipe();
  auto to = make_pipe();
  std::unique_ptr<Stream> stream;
  Stream::Config config;
  config.source = std::move(from.read);
  config.sink = std::move(to.write);
  config.on_end = [&] { stream.reset(); };
  stream = std::move(Stream::start(*loop_, std::move(config))).value();
  from.write.reset();
  ASSERT_TRUE(turn_until(*loop_, [&] { return stream == nullptr; }));
}

TEST_F(StreamTest, TheHeldEndKeepsTheInputOpenUntilReleased) {
  testing::TempDir dir;
  const std::string path = dir / "stdin";
  ASSERT_EQ(::mkfifo(path.c_str(), 0700), 0);
  UniqueFd source(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  UniqueFd held(::open(path.c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC));
  auto to = make_pipe();
  const auto stream =
      start(std::move(source), std::move(to.write), Stream::SinkFailure::end, std::move(held));
  for (const char* text : {"one", "two"}) {
    UniqueFd client(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
    put(client, text);
    client.reset();  // a client that detaches is not the end
    turn_times(*loop_, 3);
    EXPECT_EQ(ends_, 0);
    EXPECT_EQ(get(to.read), text);
  }
  stream->release_held();
  ASSERT_TRUE(turn_until(*loop_, [&] { return ends_ == 1; }));
  EXPECT_EQ(get(to.read), "");
}

TEST_F(StreamTest, TheLastCloseOfATerminalIsItsEnd) {
  UniqueFd master(::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC));
  ASSERT_EQ(::unlockpt(master.get()), 0);
  UniqueFd slave(::open(::ptsname(master.get()), O_RDWR | O_NOCTTY | O_CLOEXEC));
  ASSERT_TRUE(slave.valid());
  auto to = make_pipe();
  const auto stream = start(std::move(master), std::move(to.write));
  put(slave, "bye");
  slave.reset();
  ASSERT_TRUE(turn_until(*loop_, [&] { return ends_ == 1; }));
  EXPECT_EQ(get(to.read), "bye");
}

TEST_F(StreamTest, ASourceThatCannotBeWatchedIsAnError) {
  Stream::Config config;
  config.source = UniqueFd(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  config.sink = make_pipe().write;
  EXPECT_FALSE(Stream::start(*loop_, std::move(config)).ok());
}

}  // namespace
}  // namespace icebox::shim
