// SPDX-License-Identifier: Apache-2.0
#include "shim/ttrpc/connection.h"

#include <sys/socket.h>

#include <array>
#include <optional>
#include <string>

#include <gtest/gtest.h>

#include "tests/unit/shim/ttrpc/raw_peer.h"

namespace icebox::shim::ttrpc {
namespace {

using testing::RawPeer;
using testing::turn_times;
using testing::turn_until;

class ConnectionTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::array<int, 2> ends{};
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends.data()), 0);
    peer_.emplace(UniqueFd(ends[1]));
    Connection::Handlers handlers;
    handlers.on_frame = [this](const FrameHeader&, std::string_view data) {
      received_.emplace_back(data);
      if (data == "close") connection_->close();
    };
    handlers.on_oversized = [](const FrameHeader&) {};
    handlers.on_close = [this](const Error& error) { closed_ = error; };
    handlers.on_flushed = [this] { ++flushed_; };
    auto connection = Connection::start(*loop_, UniqueFd(ends[0]), std::move(handlers));
    ASSERT_TRUE(connection.ok());
    connection_ = std::move(connection).value();
  }

  std::unique_ptr<EventLoop> loop_ = testing::make_loop();
  std::optional<RawPeer> peer_;
  std::shared_ptr<Connection> connection_;
  std::vector<std::string> received_;
  std::optional<Error> closed_;
  int flushed_ = 0;
};

TEST_F(ConnectionTest, AFullSocketQueuesAndFlushesInOrder) {
  const std::string block(1 << 20, 'x');
  for (std::uint32_t i = 0; i < 5; ++i) {
    ASSERT_TRUE(connection_->send(i, FrameType::response, 0, block).ok());
  }
  EXPECT_GT(connection_->unsent(), 4U << 20);
  turn_times(*loop_, 3);
  EXPECT_EQ(flushed_, 0);
  for (std::uint32_t i = 0; i < 5; ++i) EXPECT_EQ(peer_->next(*loop_).header.stream_id, i);
  EXPECT_TRUE(turn_until(*loop_, [&] { return flushed_ == 1; }));
  EXPECT_EQ(connection_->unsent(), 0U);
}

TEST_F(ConnectionTest, AboveTheHighWaterNothingIsRead) {
  const std::string block(kMaxData, 'x');
  for (std::uint32_t i = 0; i < 3; ++i) {
    ASSERT_TRUE(connection_->send(i, FrameType::response, 0, block).ok());
  }
  ASSERT_GT(connection_->unsent(), Connection::kHighWater);
  peer_->send(encode_frame(1, FrameType::request, 0, "wait"));
  turn_times(*loop_, 5);
  EXPECT_TRUE(received_.empty());
  for (int i = 0; i < 3; ++i) peer_->next(*loop_);
  EXPECT_TRUE(turn_until(*loop_, [&] { return received_.size() == 1; }));
}

TEST_F(ConnectionTest, NoFrameComesAfterTheHandlerClosedIt) {
  peer_->send(encode_frame(1, FrameType::request, 0, "a") +
              encode_frame(3, FrameType::request, 0, "close") +
              encode_frame(5, FrameType::request, 0, "b"));
  ASSERT_TRUE(turn_until(*loop_, [&] { return received_.size() >= 2; }));
  turn_times(*loop_, 3);
  EXPECT_EQ(received_, (std::vector<std::string>{"a", "close"}));
  EXPECT_FALSE(closed_.has_value());
  EXPECT_TRUE(connection_->send(1, FrameType::response, 0, "ignored").ok());
}

TEST_F(ConnectionTest, ThePeersEndIsReportedOnce) {
  peer_->close();
  ASSERT_TRUE(turn_until(*loop_, [&] { return closed_.has_value(); }));
  EXPECT_EQ(closed_->code, Code::cancelled);
  EXPECT_FALSE(connection_->open());
}

TEST_F(ConnectionTest, AFailedWriteIsReportedFromTheLoop) {
  peer_->close();
  ASSERT_TRUE(connection_->send(1, FrameType::response, 0, "x").ok());
  EXPECT_FALSE(closed_.has_value());
  ASSERT_TRUE(turn_until(*loop_, [&] { return closed_.has_value(); }));
}

TEST_F(ConnectionTest, TooLongIsRefused) {
  const auto sent = connection_->send(1, FrameType::response, 0, std::string(kMaxData + 1, 'x'));
  ASSERT_FALSE(sent.ok());
  EXPECT_EQ(sent.error().code, Code::resource_exhausted);
}

}  // namespace
}  // namespace icebox::shim::ttrpc
