// SPDX-License-Identifier: Apache-2.0
#include "shim/ttrpc/server.h"

#include <algorithm>
#include <cerrno>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "containerd/task_v2.pb.h"
#include "google/protobuf/empty.pb.h"
#include "shim/ttrpc/typed.h"
#include "tests/unit/shim/ttrpc/raw_peer.h"

namespace icebox::shim::ttrpc {
namespace {

using namespace std::chrono_literals;
using testing::RawPeer;
using testing::turn_times;
using testing::turn_until;

constexpr const char* kTask = "containerd.task.v2.Task";

class ServerTest : public ::testing::Test {
 protected:
  void SetUp() override { start({}); }

  void start(Server::Options options) {
    server_.reset();
    ::unlink((dir_ / "s").c_str());
    auto server = Server::start(*loop_, testing::listen_on(dir_ / "s"), options);
    ASSERT_TRUE(server.ok()) << server.error().message;
    server_ = std::move(server).value();
    // Echo answers its payload; Hold keeps the reply for the test.
    server_->add_method("test.T", "Echo",
                        [](const CallContext&, std::string_view payload, Reply reply) {
                          std::move(reply).send(payload);
                        });
    server_->add_method("test.T", "Hold",
                        [this](CallContext context, std::string_view, Reply reply) {
                          contexts_.push_back(std::move(context));
                          replies_.push_back(std::move(reply));
                        });
    server_->add_method("test.T", "Forget",
                        [](const CallContext&, std::string_view, const Reply&) {});
  }

  RawPeer connect() { return RawPeer(testing::connect_to(dir_ / "s")); }

  bool held(std::size_t count) {
    return turn_until(*loop_, [&] { return replies_.size() == count; });
  }

  testing::TempDir dir_;
  testing::VirtualClock clock_;
  std::unique_ptr<EventLoop> loop_ = testing::make_loop(clock_);
  std::vector<CallContext> contexts_;
  std::vector<Reply> replies_;
  std::unique_ptr<Server> server_;
};

TEST_F(ServerTest, TheObservedConnectCallByteForByte) {
  using containerd::task::v2::ConnectRequest;
  using containerd::task::v2::ConnectResponse;
  add_unary<ConnectRequest, ConnectResponse>(
      *server_, kTask, "Connect",
      [](const CallContext&, const ConnectRequest& request, TypedReply<ConnectResponse> reply) {
        EXPECT_EQ(request.id(), "rs2");
        ConnectResponse response;
        response.set_shim_pid(3780);
        response.set_task_pid(3803);
        std::move(reply).send(response);
      });
  RawPeer peer = connect();
  std::string request("\x00\x00\x00\x29\x00\x00\x00\x03\x01\x00", 10);
  request +=
      "\x0a\x17"
      "containerd.task.v2.Task"
      "\x12\x07"
      "Connect"
      "\x1a\x05\x0a\x03rs2";
  peer.send(request);
  peer.next(*loop_);
  EXPECT_EQ(peer.bytes(), std::string("\x00\x00\x00\x08\x00\x00\x00\x03\x02\x00", 10) +
                              "\x12\x06\x08\xc4\x1d\x10\xdb\x1d");
}

TEST_F(ServerTest, AnEmptyResultHasNoData) {
  RawPeer peer = connect();
  peer.request(1, "test.T", "Echo");
  const auto frame = peer.next(*loop_);
  EXPECT_EQ(frame.header.length, 0U);
  EXPECT_EQ(frame.data, "");
}

TEST_F(ServerTest, WhatIsUnknownIsUnimplementedInTheWordsOfTtrpc) {
  RawPeer peer = connect();
  peer.request(1, "containerd.task.v9.Task", "Connect");
  EXPECT_EQ(peer.next_response(*loop_, 1),
            std::pair(12, std::string("service containerd.task.v9.Task")));
  peer.request(3, "test.T", "Nothing");
  EXPECT_EQ(peer.next_response(*loop_, 3), std::pair(12, std::string("method Nothing")));
}

TEST_F(ServerTest, MalformedRequestsAreAnsweredAndTheConnectionGoesOn) {
  containerd::task::v2::StateRequest request;
  add_unary<containerd::task::v2::StateRequest, google::protobuf::Empty>(
      *server_, kTask, "State",
      [](const CallContext&, const containerd::task::v2::StateRequest&,
         const TypedReply<google::protobuf::Empty>&) { ADD_FAILURE() << "must not be called"; });
  RawPeer peer = connect();
  peer.send(encode_frame(1, FrameType::request, 0, "\xff\xff\xff"));
  EXPECT_EQ(peer.next_response(*loop_, 1).first, 3);
  peer.request(3, kTask, "State", "\xff\xff");
  EXPECT_EQ(peer.next_response(*loop_, 3), std::pair(3, std::string("malformed State request")));
  peer.send(encode_frame(4, FrameType::request, 0, ""));  // even
  EXPECT_EQ(peer.next_response(*loop_, 4).first, 3);
  peer.request(3, "test.T", "Echo");  // used before
  EXPECT_EQ(peer.next_response(*loop_, 3).first, 3);
  // Unknown frame types and data frames mean nothing.
  peer.send(encode_frame(5, FrameType::data, 0, "x"));
  peer.send(encode_frame(7, static_cast<FrameType>(99), 0, "x"));
  peer.request(5, "test.T", "Echo", "still here");
  EXPECT_EQ(peer.next_response(*loop_, 5), std::pair(0, std::string("still here")));
}

TEST_F(ServerTest, AnOversizedRequestIsRefusedOnItsStream) {
  RawPeer peer = connect();
  const FrameHeader header = {static_cast<std::uint32_t>(kMaxData + 1), 1, 1, 0};
  const auto bytes = encode_header(header);
  peer.send({bytes.data(), bytes.size()});
  EXPECT_EQ(peer.next_response(*loop_, 1).first, 8);
  const std::string block(65536, 'x');
  std::size_t left = kMaxData + 1;
  while (left > 0) {
    const std::size_t size = std::min(left, block.size());
    peer.send(block.substr(0, size));
    left -= size;
    turn_times(*loop_, 10);
  }
  peer.request(3, "test.T", "Echo", "next");
  EXPECT_EQ(peer.next_response(*loop_, 3).second, "next");
}

TEST_F(ServerTest, AnOversizedResponseBecomesAnError) {
  server_->add_method("test.T", "Large", [](const CallContext&, std::string_view, Reply reply) {
    std::move(reply).send(std::string(kMaxData, 'x'));
  });
  RawPeer peer = connect();
  peer.request(1, "test.T", "Large");
  EXPECT_EQ(peer.next_response(*loop_, 1).first, 8);
}

TEST_F(ServerTest, AnswersComeInAnyOrder) {
  RawPeer peer = connect();
  peer.request(1, "test.T", "Hold");
  peer.request(3, "test.T", "Hold");
  ASSERT_TRUE(held(2));
  EXPECT_EQ(server_->calls(), 2U);
  std::move(replies_[1]).send("second");
  EXPECT_EQ(peer.next_response(*loop_, 3).second, "second");
  peer.request(5, "test.T", "Echo", "between");
  EXPECT_EQ(peer.next_response(*loop_, 5).second, "between");
  std::move(replies_[0]).fail(make_error(Code::not_found, "task x: not found"));
  EXPECT_EQ(peer.next_response(*loop_, 1), std::pair(5, std::string("task x: not found")));
  EXPECT_EQ(server_->calls(), 0U);
}

TEST_F(ServerTest, AReplyThatIsDroppedIsAnAnswer) {
  RawPeer peer = connect();
  peer.request(1, "test.T", "Forget");
  const auto [code, message] = peer.next_response(*loop_, 1);
  EXPECT_EQ(code, 2);
  EXPECT_EQ(message, "Forget ended without an answer");
}

TEST_F(ServerTest, AnsweringTwiceAborts) {
  RawPeer peer = connect();
  peer.request(1, "test.T", "Hold");
  ASSERT_TRUE(held(1));
  std::move(replies_[0]).send("once");
  EXPECT_DEATH(std::move(replies_[0]).send("twice"), "answered twice");
}

TEST_F(ServerTest, ADeadlineAnswersAndCancels) {
  RawPeer peer = connect();
  peer.request(1, "test.T", "Hold", "", 2'000'000'000);
  ASSERT_TRUE(held(1));
  EXPECT_EQ(contexts_[0].deadline(), clock_.now() + 2s);
  std::optional<Error> reason;
  contexts_[0].on_cancel([&](const Error& error) { reason = error; });
  clock_.advance(1999ms);
  turn_times(*loop_, 2);
  EXPECT_FALSE(contexts_[0].cancelled());
  clock_.advance(1ms);
  EXPECT_EQ(peer.next_response(*loop_, 1).first, 4);
  ASSERT_TRUE(reason.has_value());
  EXPECT_EQ(reason->code, Code::deadline_exceeded);
  EXPECT_TRUE(contexts_[0].cancelled());
  EXPECT_EQ(server_->calls(), 0U);
  // The handler's late answer vanishes.
  std::move(replies_[0]).send("late");
  peer.request(3, "test.T", "Echo", "next");
  EXPECT_EQ(peer.next_response(*loop_, 3).second, "next");
}

TEST_F(ServerTest, AnAnswerInTimeEndsTheDeadline) {
  RawPeer peer = connect();
  peer.request(1, "test.T", "Hold", "", 1'000'000'000);
  ASSERT_TRUE(held(1));
  bool cancelled = false;
  contexts_[0].on_cancel([&](const Error&) { cancelled = true; });
  std::move(replies_[0]).send("in time");
  EXPECT_EQ(peer.next_response(*loop_, 1).second, "in time");
  clock_.advance(1h);
  turn_times(*loop_, 3);
  peer.receive();
  EXPECT_EQ(peer.waiting(), 0U);
  EXPECT_FALSE(cancelled);
  EXPECT_FALSE(contexts_[0].cancelled());
}

TEST_F(ServerTest, OddTimeoutsAreTakenAsTheyAre) {
  RawPeer peer = connect();
  peer.request(1, "test.T", "Hold", "", -5);  // no deadline
  peer.request(3, "test.T", "Hold", "", std::numeric_limits<std::int64_t>::max());
  ASSERT_TRUE(held(2));
  EXPECT_FALSE(contexts_[0].deadline().has_value());
  EXPECT_GT(*contexts_[1].deadline(), clock_.now());
  turn_times(*loop_, 2);
  EXPECT_FALSE(contexts_[1].cancelled());
  replies_.clear();
}

TEST_F(ServerTest, TheEndOfAConnectionCancelsItsCallsOnly) {
  RawPeer first = connect();
  RawPeer second = connect();
  first.request(1, "test.T", "Hold");
  ASSERT_TRUE(held(1));
  second.request(1, "test.T", "Hold");
  ASSERT_TRUE(held(2));
  EXPECT_EQ(server_->connections(), 2U);
  std::optional<Error> reason;
  contexts_[0].on_cancel([&](const Error& error) { reason = error; });
  first.close();
  ASSERT_TRUE(turn_until(*loop_, [&] { return reason.has_value(); }));
  EXPECT_EQ(reason->code, Code::cancelled);
  EXPECT_EQ(server_->connections(), 1U);
  EXPECT_FALSE(contexts_[1].cancelled());
  std::move(replies_[0]).send("to nobody");
  std::move(replies_[1]).send("to second");
  EXPECT_EQ(second.next_response(*loop_, 1).second, "to second");
  // Asked too late: told from the loop.
  bool told = false;
  contexts_[0].on_cancel([&](const Error&) { told = true; });
  EXPECT_FALSE(told);
}

TEST_F(ServerTest, ACancelHandlerMayDropTheReply) {
  RawPeer peer = connect();
  peer.request(1, "test.T", "Hold", "", 1'000'000'000);
  ASSERT_TRUE(held(1));
  contexts_[0].on_cancel([&](const Error&) {
    replies_.clear();
    contexts_.clear();
  });
  clock_.advance(1s);
  EXPECT_EQ(peer.next_response(*loop_, 1).first, 4);
  EXPECT_TRUE(replies_.empty());
}

TEST_F(ServerTest, RepliesOutliveTheServer) {
  RawPeer peer = connect();
  peer.request(1, "test.T", "Hold", "", 1'000'000'000);
  ASSERT_TRUE(held(1));
  server_.reset();
  EXPECT_TRUE(turn_until(*loop_, [&] { return !peer.receive(); }));
  std::move(replies_[0]).send("to nobody");
  clock_.advance(2s);
  turn_times(*loop_, 2);
}

TEST_F(ServerTest, MetadataIsVisible) {
  ::ttrpc::Request request;
  request.set_service("test.T");
  request.set_method("Hold");
  auto* entry = request.add_metadata();
  entry->set_key("containerd-namespace-ttrpc");
  entry->set_value("k8s.io");
  RawPeer peer = connect();
  peer.send(encode_frame(1, FrameType::request, kFlagRemoteClosed, request.SerializeAsString()));
  ASSERT_TRUE(held(1));
  EXPECT_EQ(contexts_[0].service(), "test.T");
  EXPECT_EQ(contexts_[0].method(), "Hold");
  EXPECT_EQ(contexts_[0].metadata("containerd-namespace-ttrpc"), "k8s.io");
  EXPECT_FALSE(contexts_[0].metadata("other").has_value());
  replies_.clear();
}

TEST_F(ServerTest, OtherUsersAreTurnedAway) {
  Server::Options options;
  options.uid = ::geteuid() + 1;
  start(options);
  RawPeer peer = connect();
  EXPECT_TRUE(turn_until(*loop_, [&] { return !peer.receive(); }));
  EXPECT_EQ(server_->connections(), 0U);
  options.uid.reset();
  options.gid = ::getegid() + 1;
  start(options);
  RawPeer other = connect();
  EXPECT_TRUE(turn_until(*loop_, [&] { return !other.receive(); }));
}

TEST_F(ServerTest, APeerThatDoesNotReadIsNotReadFrom) {
  RawPeer peer = connect();
  const std::string payload(1 << 20, 'p');
  server_->add_method("test.T", "Mega", [&](const CallContext&, std::string_view, Reply reply) {
    std::move(reply).send(payload);
  });
  constexpr std::uint32_t kRequests = 60;
  for (std::uint32_t i = 0; i < kRequests; ++i) {
    peer.request(2 * i + 1, "test.T", "Mega");
    turn_times(*loop_, 2);
  }
  // A second client is served all the while.
  RawPeer other = connect();
  other.request(1, "test.T", "Echo", "hello");
  EXPECT_EQ(other.next_response(*loop_, 1).second, "hello");
  // Everything is answered once the first one reads.
  for (std::uint32_t i = 0; i < kRequests; ++i) {
    const auto frame = peer.next(*loop_);
    ASSERT_EQ(frame.header.stream_id, 2 * i + 1);
    ASSERT_GT(frame.data.size(), payload.size());
  }
}

TEST_F(ServerTest, DrainWaitsForTheAnswersInItsQueue) {
  RawPeer peer = connect();
  const std::string payload(3 << 20, 'p');
  peer.request(1, "test.T", "Hold");
  ASSERT_TRUE(held(1));
  std::move(replies_[0]).send(payload);
  bool drained = false;
  server_->drain(10s, [&] { drained = true; });
  turn_times(*loop_, 3);
  EXPECT_FALSE(drained);
  // No new connections.
  UniqueFd late(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const auto address = testing::address_of(dir_ / "s");
  EXPECT_EQ(::connect(late.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), -1);
  EXPECT_EQ(errno, ECONNREFUSED);
  EXPECT_EQ(peer.next_response(*loop_, 1).second, payload);
  EXPECT_TRUE(turn_until(*loop_, [&] { return drained; }));
}

TEST_F(ServerTest, DrainGivesUpOnAPeerThatDoesNotRead) {
  RawPeer peer = connect();
  peer.request(1, "test.T", "Hold");
  ASSERT_TRUE(held(1));
  std::move(replies_[0]).send(std::string(3 << 20, 'p'));
  bool drained = false;
  server_->drain(10s, [&] { drained = true; });
  clock_.advance(9999ms);
  turn_times(*loop_, 3);
  EXPECT_FALSE(drained);
  clock_.advance(1ms);
  turn_times(*loop_, 1);
  EXPECT_TRUE(drained);
}

TEST_F(ServerTest, DrainOfAnIdleServerEndsAtOnceButNotInsideTheCall) {
  bool drained = false;
  server_->drain(10s, [&] { drained = true; });
  EXPECT_FALSE(drained);
  turn_times(*loop_, 1);
  EXPECT_TRUE(drained);
}

}  // namespace
}  // namespace icebox::shim::ttrpc
