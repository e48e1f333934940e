// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <string>

#include "oci/base/unique_fd.h"

namespace icebox::test {

// What a call came back with. code 0 = success; -1 = the connection closed, -2 = no answer in time.
struct Answer {
  int code = 0;
  std::string message;
  std::string payload;
};

// A blocking ttrpc client that shares no code with the shim's, so that both cannot be wrong in the
// same way. Many calls may be open at once; one thread.
class TtrpcClient {
 public:
  // Aborts the test program when nobody listens.
  explicit TtrpcClient(const std::string& path);

  // Sends a call and returns its stream id. `timeout` travels as timeout_nano.
  std::uint32_t send(const std::string& service, const std::string& method,
                     const std::string& payload, std::chrono::nanoseconds timeout = {});

  // The answer to a call that was sent; waits up to `limit` for it.
  Answer receive(std::uint32_t stream, std::chrono::milliseconds limit);

  // Whether the answer is here already or comes within `limit`; it stays for receive().
  bool answered(std::uint32_t stream, std::chrono::milliseconds limit);

 private:
  // Reads one frame; false at the limit or at the end.
  bool read_frame(std::chrono::steady_clock::time_point deadline);

  UniqueFd socket_;
  std::uint32_t next_stream_ = 1;
  std::string buffer_;
  bool closed_ = false;
  std::map<std::uint32_t, Answer> answers_;
};

// Parses and builds frames for the other side, the fake event sink.
std::string make_frame(std::uint32_t stream, std::uint8_t type, const std::string& data);
// Cuts the first whole frame off `buffer`; false if there is none.
bool take_frame(std::string& buffer, std::uint32_t& stream, std::string& data);

}  // namespace icebox::test
