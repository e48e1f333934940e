// SPDX-License-Identifier: Apache-2.0
#include "shim/ttrpc/frame.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace icebox::shim::ttrpc {
namespace {

struct Seen {
  FrameHeader header;
  std::string data;
  bool oversized = false;
};

// Feeds `bytes` in pieces of `step` and returns what the decoder made of them.
std::vector<Seen> decode(std::string_view bytes, std::size_t step, bool* partial = nullptr) {
  std::vector<Seen> seen;
  FrameDecoder decoder({[&](const FrameHeader& header, std::string_view data) {
                          seen.push_back({header, std::string(data), false});
                        },
                        [&](const FrameHeader& header) {
                          seen.push_back({header, "", true});
                        }});
  while (!bytes.empty()) {
    const auto piece = bytes.substr(0, step);
    decoder.feed(piece);
    bytes.remove_prefix(piece.size());
  }
  if (partial != nullptr) *partial = decoder.partial();
  return seen;
}

TEST(Frame, HeaderIsBigEndian) {
  // Observed: the request Connect("rs2") of containerd 1.6.
  const std::string bytes("\x00\x00\x00\x29\x00\x00\x00\x03\x01\x00", 10);
  const FrameHeader header = decode_header(std::span<const char, kHeaderSize>(bytes.data(), 10));
  EXPECT_EQ(header.length, 0x29U);
  EXPECT_EQ(header.stream_id, 3U);
  EXPECT_EQ(header.type, static_cast<std::uint8_t>(FrameType::request));
  EXPECT_EQ(header.flags, 0U);
  const auto encoded = encode_header(header);
  EXPECT_EQ(std::string(encoded.data(), encoded.size()), bytes);
  const FrameHeader large = {0xfffefdfc, 0x80000001, 0xff, 0x81};
  const auto round = decode_header(std::span<const char, kHeaderSize>(encode_header(large)));
  EXPECT_EQ(round.length, large.length);
  EXPECT_EQ(round.stream_id, large.stream_id);
  EXPECT_EQ(round.type, large.type);
  EXPECT_EQ(round.flags, large.flags);
}

TEST(Frame, AnyCutOfTheStreamGivesTheSameFrames) {
  const std::string bytes = encode_frame(1, FrameType::request, 0, "first") +
                            encode_frame(3, FrameType::response, 1, "") +
                            encode_frame(5, FrameType::data, 4, std::string(100, 'x'));
  for (std::size_t step = 1; step <= bytes.size(); ++step) {
    bool partial = true;
    const auto seen = decode(bytes, step, &partial);
    ASSERT_EQ(seen.size(), 3U) << step;
    EXPECT_EQ(seen[0].data, "first");
    EXPECT_EQ(seen[0].header.stream_id, 1U);
    EXPECT_EQ(seen[1].data, "");
    EXPECT_EQ(seen[1].header.flags, 1U);
    EXPECT_EQ(seen[2].data, std::string(100, 'x'));
    EXPECT_FALSE(partial);
  }
}

TEST(Frame, TheLargestIsDeliveredAndALargerOneIsSkipped) {
  FrameHeader header = {static_cast<std::uint32_t>(kMaxData), 1, 1, 0};
  auto encoded = encode_header(header);
  std::string bytes(encoded.data(), encoded.size());
  bytes += std::string(kMaxData, 'a');
  header = {static_cast<std::uint32_t>(kMaxData + 1), 3, 1, 0};
  encoded = encode_header(header);
  bytes.append(encoded.data(), encoded.size());
  bytes += std::string(kMaxData + 1, 'b');
  bytes += encode_frame(5, FrameType::request, 0, "after");
  for (const std::size_t step : {std::size_t{65536}, bytes.size()}) {
    const auto seen = decode(bytes, step);
    ASSERT_EQ(seen.size(), 3U);
    EXPECT_EQ(seen[0].data.size(), kMaxData);
    EXPECT_TRUE(seen[1].oversized);
    EXPECT_EQ(seen[1].header.stream_id, 3U);
    EXPECT_EQ(seen[2].data, "after");
  }
}

TEST(Frame, AnEndInsideAFrameIsVisible) {
  const std::string bytes = encode_frame(1, FrameType::request, 0, "data");
  for (std::size_t length = 1; length < bytes.size(); ++length) {
    bool partial = false;
    EXPECT_TRUE(decode(std::string_view(bytes).substr(0, length), 100, &partial).empty());
    EXPECT_TRUE(partial) << length;
  }
}

}  // namespace
}  // namespace icebox::shim::ttrpc
