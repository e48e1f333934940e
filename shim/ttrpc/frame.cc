// SPDX-License-Identifier: Apache-2.0
#include "shim/ttrpc/frame.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace icebox::shim::ttrpc {
namespace {

std::uint32_t load_be32(const char* bytes) {
  std::uint32_t value = 0;
  for (int i = 0; i < 4; ++i) value = (value << 8) | static_cast<unsigned char>(bytes[i]);
  return value;
}

void store_be32(char* bytes, std::uint32_t value) {
  for (int i = 3; i >= 0; --i) {
    bytes[i] = static_cast<char>(value & 0xff);
    value >>= 8;
  }
}

}  // namespace

FrameHeader decode_header(std::span<const char, kHeaderSize> bytes) {
  FrameHeader header;
  header.length = load_be32(bytes.data());
  header.stream_id = load_be32(bytes.data() + 4);
  header.type = static_cast<std::uint8_t>(bytes[8]);
  header.flags = static_cast<std::uint8_t>(bytes[9]);
  return header;
}

std::array<char, kHeaderSize> encode_header(const FrameHeader& header) {
  std::array<char, kHeaderSize> bytes{};
  store_be32(bytes.data(), header.length);
  store_be32(bytes.data() + 4, header.stream_id);
  bytes[8] = static_cast<char>(header.type);
  bytes[9] = static_cast<char>(header.flags);
  return bytes;
}

std::string encode_frame(std::uint32_t stream_id, FrameType type, std::uint8_t flags,
                         std::string_view data) {
  FrameHeader header;
  header.length = static_cast<std::uint32_t>(data.size());
  header.stream_id = stream_id;
  header.type = static_cast<std::uint8_t>(type);
  header.flags = flags;
  const auto bytes = encode_header(header);
  std::string frame;
  frame.reserve(kHeaderSize + data.size());
  frame.append(bytes.data(), bytes.size());
  frame.append(data);
  return frame;
}

void FrameDecoder::feed(std::string_view bytes) {
  while (!bytes.empty()) {
    if (header_fill_ < kHeaderSize) {
      const std::size_t take = std::min(kHeaderSize - header_fill_, bytes.size());
      std::memcpy(header_bytes_.data() + header_fill_, bytes.data(), take);
      header_fill_ += take;
      bytes.remove_prefix(take);
      if (header_fill_ == kHeaderSize) begin_data();
      continue;
    }
    if (skip_ > 0) {
      const std::size_t take = std::min(skip_, bytes.size());
      skip_ -= take;
      bytes.remove_prefix(take);
      if (skip_ == 0) header_fill_ = 0;
      continue;
    }
    const std::size_t missing = header_.length - data_.size();
    const std::size_t take = std::min(missing, bytes.size());
    const std::string_view chunk = bytes.substr(0, take);
    bytes.remove_prefix(take);
    if (take == missing && data_.empty()) {
      complete(chunk);  // the usual case: the whole frame came at once, nothing is copied
      continue;
    }
    data_.append(chunk);
    if (take == missing) complete(std::exchange(data_, {}));
  }
}

void FrameDecoder::begin_data() {
  header_ = decode_header(header_bytes_);
  if (header_.length > kMaxData) {
    skip_ = header_.length;
    sink_.oversized(header_);
    return;
  }
  if (header_.length == 0) complete({});
}

void FrameDecoder::complete(std::string_view data) {
  // Before the call: the next header starts whatever the sink does.
  header_fill_ = 0;
  sink_.frame(header_, data);
}

}  // namespace icebox::shim::ttrpc
