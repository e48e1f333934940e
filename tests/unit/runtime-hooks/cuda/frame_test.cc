// SPDX-License-Identifier: Apache-2.0
#include <sys/socket.h>

#include <string>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "oci/base/unique_fd.h"
#include "runtime-hooks/cuda/protocol.h"

namespace icebox::cuda::protocol {
namespace {

using std::chrono::milliseconds;
using testing::HasSubstr;

struct SocketPair {
  SocketPair() {
    int ends[2];
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0) {
      near = UniqueFd(ends[0]);
      far = UniqueFd(ends[1]);
    }
  }
  UniqueFd near;
  UniqueFd far;
};

std::string framed(std::string_view payload) { return frame(payload).value(); }

TEST(Frame, HasALittleEndianLength) {
  EXPECT_EQ(framed("abc"), std::string("\x03\0\0\0abc", 7));
  EXPECT_EQ(framed(std::string(0x1234, 'x')).substr(0, 4), std::string("\x34\x12\0\0", 4));
}

TEST(Frame, RefusesWhatIsTooLong) {
  EXPECT_TRUE(frame(std::string(kMaxPayload, 'x')).ok());
  const auto result = frame(std::string(kMaxPayload + 1, 'x'));
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.error().code, Code::resource_exhausted);
}

TEST(FrameDecoder, CutsAStreamHoweverItArrives) {
  const std::string stream = framed("one") + framed("two!") + framed("three");
  for (std::size_t step = 1; step <= stream.size(); ++step) {
    FrameDecoder decoder;
    std::vector<std::string> payloads;
    for (std::size_t at = 0; at < stream.size(); at += step) {
      decoder.feed(std::string_view(stream).substr(at, step));
      for (;;) {
        auto payload = decoder.next();
        ASSERT_TRUE(payload.ok());
        if (!payload->has_value()) break;
        payloads.push_back(**payload);
      }
    }
    EXPECT_THAT(payloads, testing::ElementsAre("one", "two!", "three")) << "step " << step;
    EXPECT_FALSE(decoder.mid_frame());
  }
}

TEST(FrameDecoder, KnowsThatAFrameIsIncomplete) {
  FrameDecoder decoder;
  decoder.feed(framed("payload").substr(0, 6));
  const auto payload = decoder.next();
  ASSERT_TRUE(payload.ok());
  EXPECT_FALSE(payload->has_value());
  EXPECT_TRUE(decoder.mid_frame());
}

TEST(FrameDecoder, RefusesImpossibleLengthsBeforeTheirBytesCome) {
  for (const std::string& header : {std::string("\0\0\0\0", 4), std::string("\xff\xff\xff\xff"),
                                    std::string("\x01\0\x40\0", 4), std::string("GET ")}) {
    FrameDecoder decoder;
    decoder.feed(header);
    const auto payload = decoder.next();
    ASSERT_FALSE(payload.ok());
    EXPECT_EQ(payload.error().code, Code::invalid_argument);
    EXPECT_THAT(payload.error().message, HasSubstr("impossible length"));
  }
}

TEST(ReceiveFrame, ReadsWhatWasSent) {
  SocketPair sockets;
  // Longer than a socket buffer, so that both sides have to go on after a partial transfer.
  const std::string payload(3U << 20, 'p');
  std::thread sender([&] { EXPECT_TRUE(send_frame(sockets.near.get(), payload).ok()); });
  FrameDecoder decoder;
  const auto received = receive_frame(sockets.far.get(), decoder, milliseconds(10'000));
  sender.join();
  ASSERT_TRUE(received.ok());
  EXPECT_EQ(**received, payload);
}

TEST(ReceiveFrame, KeepsWhatCameBeyondTheFrame) {
  SocketPair sockets;
  const std::string two = framed("first") + framed("second");
  ASSERT_EQ(::send(sockets.near.get(), two.data(), two.size(), 0),
            static_cast<ssize_t>(two.size()));
  FrameDecoder decoder;
  EXPECT_EQ(**receive_frame(sockets.far.get(), decoder, milliseconds(1'000)), "first");
  EXPECT_EQ(**receive_frame(sockets.far.get(), decoder, milliseconds(1'000)), "second");
}

TEST(ReceiveFrame, SaysThatThePeerClosedBetweenFrames) {
  SocketPair sockets;
  sockets.near.reset();
  FrameDecoder decoder;
  const auto received = receive_frame(sockets.far.get(), decoder, std::nullopt);
  ASSERT_TRUE(received.ok());
  EXPECT_FALSE(received->has_value());
}

TEST(ReceiveFrame, FailsWhenThePeerClosesInsideAFrame) {
  SocketPair sockets;
  ASSERT_EQ(::send(sockets.near.get(), "\x09\0\0\0abc", 7, 0), 7);
  sockets.near.reset();
  FrameDecoder decoder;
  const auto received = receive_frame(sockets.far.get(), decoder, std::nullopt);
  ASSERT_FALSE(received.ok());
  EXPECT_EQ(received.error().code, Code::unavailable);
}

TEST(ReceiveFrame, GivesUpAtItsTimeoutAndCanBeCalledAgain) {
  SocketPair sockets;
  FrameDecoder decoder;
  ASSERT_EQ(::send(sockets.near.get(), "\x03\0\0\0a", 5, 0), 5);
  const auto received = receive_frame(sockets.far.get(), decoder, milliseconds(20));
  ASSERT_FALSE(received.ok());
  EXPECT_EQ(received.error().code, Code::deadline_exceeded);
  ASSERT_EQ(::send(sockets.near.get(), "bc", 2, 0), 2);
  EXPECT_EQ(**receive_frame(sockets.far.get(), decoder, milliseconds(1'000)), "abc");
}

TEST(SendFrame, FailsWithoutASignalWhenThePeerIsGone) {
  SocketPair sockets;
  sockets.far.reset();
  EXPECT_FALSE(send_frame(sockets.near.get(), "x").ok());
}

}  // namespace
}  // namespace icebox::cuda::protocol
