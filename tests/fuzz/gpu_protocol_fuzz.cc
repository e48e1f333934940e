// SPDX-License-Identifier: Apache-2.0
//
// The GPU agent's protocol, both directions: any bytes either decode into a message that encodes to
// one that decodes to the same again, or are refused.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "runtime-hooks/cuda/protocol.h"

namespace {

using namespace icebox::cuda;

void require(bool condition) {
  if (!condition) std::abort();
}

protocol::Request sample_request(unsigned char which) {
  switch (which % 4) {
    case 0: return {1, protocol::Query::info};
    case 1: return {1, protocol::Query::processes};
    case 2: return {1, protocol::Query::hello};
    default: break;
  }
  protocol::Action action;
  action.operation = Operation::lock;
  action.targets = {{101, 5}, {7, 1}};
  action.timeout_ms = 1;
  return {1, action};
}

void check_request(std::string_view payload) {
  const auto request = protocol::decode_request(payload);
  if (!request.ok()) return;
  const std::string encoded = protocol::encode(*request);
  const auto again = protocol::decode_request(encoded);
  require(again.ok() && protocol::encode(*again) == encoded);
}

void check_response(std::string_view payload, const protocol::Request& request) {
  const auto response = protocol::decode_response(payload, request);
  if (!response.ok()) return;
  const std::string encoded = protocol::encode(*response);
  const auto again = protocol::decode_response(encoded, request);
  require(again.ok() && protocol::encode(*again) == encoded);
}

// The same frames come out, however the stream is cut.
void check_frames(std::string_view stream, std::size_t step) {
  protocol::FrameDecoder whole;
  protocol::FrameDecoder pieces;
  whole.feed(stream);
  std::size_t at = 0;
  for (;;) {
    auto expected = whole.next();
    auto seen = pieces.next();
    while (seen.ok() && !seen->has_value() && at < stream.size()) {
      pieces.feed(stream.substr(at, step));
      at += step;
      seen = pieces.next();
    }
    require(expected.ok() == seen.ok());
    if (!expected.ok()) return;
    require(*expected == *seen);
    if (!expected->has_value()) return;
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view rest(reinterpret_cast<const char*>(data) + 1, size - 1);
  check_request(rest);
  check_response(rest, sample_request(data[0]));
  check_frames(rest, 1 + data[0] % 7U);
  return 0;
}
