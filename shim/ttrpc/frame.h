// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "shim/loop/unique_function.h"

// The ttrpc frame (containerd/ttrpc PROTOCOL.md): a ten-byte header, big endian, and the data.
//   0-3 length of the data   4-7 stream id   8 type   9 flags
namespace icebox::shim::ttrpc {

inline constexpr std::size_t kHeaderSize = 10;
inline constexpr std::size_t kMaxData =
    std::size_t{4} << 20;  // both directions (ttrpc channel.go messageLengthMax)

enum class FrameType : std::uint8_t { request = 1, response = 2, data = 3 };

inline constexpr std::uint8_t kFlagRemoteClosed = 0x01;
inline constexpr std::uint8_t kFlagRemoteOpen = 0x02;

struct FrameHeader {
  std::uint32_t length = 0;
  std::uint32_t stream_id = 0;
  std::uint8_t type = 0;  // a FrameType, or a number from the future
  std::uint8_t flags = 0;
};

FrameHeader decode_header(std::span<const char, kHeaderSize> bytes);
std::array<char, kHeaderSize> encode_header(const FrameHeader& header);

// A whole frame. `data` must not be longer than kMaxData.
std::string encode_frame(std::uint32_t stream_id, FrameType type, std::uint8_t flags,
                         std::string_view data);

// Cuts a byte stream into frames. Memory is held only for a frame that is not complete yet, and
// never more than kMaxData: the data of a longer frame is skipped. Pure; never fails: any byte
// stream is a sequence of frames.
class FrameDecoder {
 public:
  // `data` is valid during the call only. `oversized`: the header of a frame whose data is being
  // skipped.
  struct Sink {
    UniqueFunction<void(const FrameHeader&, std::string_view data)> frame;
    UniqueFunction<void(const FrameHeader&)> oversized;
  };
  explicit FrameDecoder(Sink sink) : sink_(std::move(sink)) {}

  void feed(std::string_view bytes);

  // Whether the stream stopped inside a frame.
  [[nodiscard]] bool partial() const { return header_fill_ > 0; }

 private:
  void begin_data();
  void complete(std::string_view data);

  Sink sink_;
  std::array<char, kHeaderSize> header_bytes_{};
  std::size_t header_fill_ = 0;
  FrameHeader header_;
  std::string data_;
  std::size_t skip_ = 0;
};

}  // namespace icebox::shim::ttrpc
