// SPDX-License-Identifier: Apache-2.0
#include "shim/ttrpc/client.h"

#include <optional>
#include <string>

#include <gtest/gtest.h>

#include "shim/ttrpc/server.h"
#include "tests/unit/shim/ttrpc/raw_peer.h"

namespace icebox::shim::ttrpc {
namespace {

using namespace std::chrono_literals;
using testing::RawPeer;
using testing::turn_times;
using testing::turn_until;

class ClientTest : public ::testing::Test {
 protected:
  // A server driven by hand.
  RawPeer accept() {
    int fd = -1;
    EXPECT_TRUE(turn_until(*loop_, [&] {
      fd = ::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
      return fd >= 0;
    }));
    return RawPeer(UniqueFd(fd));
  }

  void call(std::optional<Duration> timeout = std::nullopt) {
    CallRequest request;
    request.service = "test.T";
    request.method = "Echo";
    request.payload = "payload";
    request.metadata = {{"containerd-namespace-ttrpc", "ns"}};
    request.timeout = timeout;
    client_->call(std::move(request),
                  [this](Result<std::string> result) { results_.push_back(std::move(result)); });
  }

  static std::string response(std::uint32_t stream, const ::ttrpc::Response& message) {
    return encode_frame(stream, FrameType::response, 0, message.SerializeAsString());
  }

  bool results(std::size_t count) {
    return turn_until(*loop_, [&] { return results_.size() == count; });
  }

  testing::TempDir dir_;
  testing::VirtualClock clock_;
  std::unique_ptr<EventLoop> loop_ = testing::make_loop(clock_);
  UniqueFd listener_ = testing::listen_on(dir_ / "s");
  std::unique_ptr<Client> client_ = std::make_unique<Client>(*loop_, dir_ / "s");
  std::vector<Result<std::string>> results_;
};

TEST_F(ClientTest, SendsWhatTtrpcExpectsAndDeliversTheAnswer) {
  EXPECT_FALSE(client_->connected());
  call(5s);
  RawPeer peer = accept();
  const auto frame = peer.next(*loop_);
  EXPECT_EQ(frame.header.stream_id, 1U);
  EXPECT_EQ(frame.header.type, static_cast<std::uint8_t>(FrameType::request));
  EXPECT_EQ(frame.header.flags, 0);
  ::ttrpc::Request request;
  ASSERT_TRUE(request.ParseFromString(frame.data));
  EXPECT_EQ(request.service(), "test.T");
  EXPECT_EQ(request.method(), "Echo");
  EXPECT_EQ(request.payload(), "payload");
  EXPECT_EQ(request.timeout_nano(), 5'000'000'000);
  ASSERT_EQ(request.metadata_size(), 1);
  EXPECT_EQ(request.metadata(0).key(), "containerd-namespace-ttrpc");
  ::ttrpc::Response answer;
  answer.set_payload("answer");
  peer.send(response(1, answer));
  ASSERT_TRUE(results(1));
  EXPECT_EQ(results_[0].value(), "answer");
  // The next call uses the same connection and the next odd id; an empty answer is an empty
  // message.
  call();
  EXPECT_EQ(peer.next(*loop_).header.stream_id, 3U);
  peer.send(encode_frame(3, FrameType::response, 0, ""));
  ASSERT_TRUE(results(2));
  EXPECT_EQ(results_[1].value(), "");
  EXPECT_EQ(client_->pending(), 0U);
}

TEST_F(ClientTest, AStatusIsAnError) {
  call();
  RawPeer peer = accept();
  ::ttrpc::Response answer;
  answer.mutable_status()->set_code(5);
  answer.mutable_status()->set_message("nothing there");
  peer.send(response(1, answer));
  ASSERT_TRUE(results(1));
  EXPECT_EQ(results_[0].error().code, Code::not_found);
  EXPECT_EQ(results_[0].error().message, "nothing there");
}

TEST_F(ClientTest, WithoutAServerTheCallIsUnavailable) {
  listener_.reset();
  ::unlink((dir_ / "s").c_str());
  call();
  EXPECT_TRUE(results_.empty());  // never from inside call()
  ASSERT_TRUE(results(1));
  EXPECT_EQ(results_[0].error().code, Code::unavailable);
  // Once there is one, the same client reaches it.
  listener_ = testing::listen_on(dir_ / "s");
  call();
  RawPeer peer = accept();
  peer.send(encode_frame(1, FrameType::response, 0, ""));
  ASSERT_TRUE(results(2));
  EXPECT_TRUE(results_[1].ok());
}

TEST_F(ClientTest, AConnectionThatClosesFailsItsCallsAndTheNextCallReconnects) {
  call();
  call();
  RawPeer peer = accept();
  peer.next(*loop_);
  peer.close();
  ASSERT_TRUE(results(2));
  EXPECT_EQ(results_[0].error().code, Code::unavailable);
  EXPECT_EQ(results_[1].error().code, Code::unavailable);
  EXPECT_FALSE(client_->connected());
  call();
  RawPeer again = accept();
  EXPECT_EQ(again.next(*loop_).header.stream_id, 1U);  // ids start over
  again.send(encode_frame(1, FrameType::response, 0, ""));
  ASSERT_TRUE(results(3));
  EXPECT_TRUE(results_[2].ok());
}

TEST_F(ClientTest, ADeadlineEndsTheCallAndItsLateAnswerIsIgnored) {
  call(5s);
  RawPeer peer = accept();
  peer.next(*loop_);
  clock_.advance(4999ms);
  turn_times(*loop_, 2);
  EXPECT_TRUE(results_.empty());
  clock_.advance(1ms);
  ASSERT_TRUE(results(1));
  EXPECT_EQ(results_[0].error().code, Code::deadline_exceeded);
  peer.send(encode_frame(1, FrameType::response, 0, ""));
  turn_times(*loop_, 3);
  EXPECT_EQ(results_.size(), 1U);
  EXPECT_TRUE(client_->connected());
}

TEST_F(ClientTest, CloseCancelsFromTheLoop) {
  call();
  client_->close();
  EXPECT_TRUE(results_.empty());
  ASSERT_TRUE(results(1));
  EXPECT_EQ(results_[0].error().code, Code::cancelled);
}

TEST_F(ClientTest, AMessageThatIsTooLongFailsAlone) {
  CallRequest request;
  request.service = "test.T";
  request.method = "Echo";
  request.payload = std::string(kMaxData, 'x');
  client_->call(std::move(request),
                [this](Result<std::string> result) { results_.push_back(std::move(result)); });
  ASSERT_TRUE(results(1));
  EXPECT_EQ(results_[0].error().code, Code::resource_exhausted);
  EXPECT_EQ(client_->pending(), 0U);
}

TEST_F(ClientTest, DestroyingItIsSilent) {
  call(1s);
  client_.reset();
  clock_.advance(2s);
  turn_times(*loop_, 3);
  EXPECT_TRUE(results_.empty());
}

TEST_F(ClientTest, MayBeDestroyedByAnAnswer) {
  CallRequest request;
  request.service = "test.T";
  request.method = "Echo";
  client_->call(std::move(request), [this](const Result<std::string>&) { client_.reset(); });
  call();
  RawPeer peer = accept();
  peer.close();
  ASSERT_TRUE(turn_until(*loop_, [&] { return client_ == nullptr; }));
}

TEST_F(ClientTest, TalksToOurServer) {
  auto server = std::move(Server::start(*loop_, std::move(listener_), {})).value();
  server->add_method("test.T", "Echo",
                     [](const CallContext& context, std::string_view payload, Reply reply) {
                       EXPECT_EQ(context.metadata("containerd-namespace-ttrpc"), "ns");
                       std::move(reply).send(payload);
                     });
  for (int i = 0; i < 100; ++i) call(1s);
  ASSERT_TRUE(results(100));
  for (const auto& result : results_) EXPECT_EQ(result.value(), "payload");
}

}  // namespace
}  // namespace icebox::shim::ttrpc
