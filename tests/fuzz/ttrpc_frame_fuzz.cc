// SPDX-License-Identifier: Apache-2.0
// Any byte stream is a sequence of frames, the same ones wherever the stream is cut, and encoding
// them again gives the same bytes. The first byte of the input chooses the cut.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "shim/ttrpc/frame.h"

namespace {

using icebox::shim::ttrpc::encode_header;
using icebox::shim::ttrpc::FrameDecoder;
using icebox::shim::ttrpc::FrameHeader;
using icebox::shim::ttrpc::kMaxData;

struct Decoded {
  std::string bytes;            // complete frames, encoded again
  std::vector<bool> oversized;  // one entry a frame
  bool partial = false;
};

Decoded decode(std::string_view input, std::size_t step) {
  Decoded result;
  FrameDecoder decoder({[&](const FrameHeader& header, std::string_view data) {
                          if (data.size() != header.length || data.size() > kMaxData) std::abort();
                          const auto encoded = encode_header(header);
                          result.bytes.append(encoded.data(), encoded.size());
                          result.bytes.append(data);
                          result.oversized.push_back(false);
                        },
                        [&](const FrameHeader& header) {
                          if (header.length <= kMaxData) std::abort();
                          result.oversized.push_back(true);
                        }});
  while (!input.empty()) {
    const std::string_view piece = input.substr(0, step);
    decoder.feed(piece);
    input.remove_prefix(piece.size());
  }
  result.partial = decoder.partial();
  return result;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view input(reinterpret_cast<const char*>(data) + 1, size - 1);
  const Decoded whole = decode(input, input.size() + 1);
  const Decoded cut = decode(input, std::size_t{1} + data[0]);
  if (whole.bytes != cut.bytes || whole.oversized != cut.oversized ||
      whole.partial != cut.partial) {
    std::abort();
  }
  const bool skipped =
      std::find(whole.oversized.begin(), whole.oversized.end(), true) != whole.oversized.end();
  if (!skipped && input.substr(0, whole.bytes.size()) != whole.bytes) std::abort();
  if (!skipped && !whole.partial && whole.bytes.size() != input.size()) std::abort();
  return 0;
}
