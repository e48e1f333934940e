// SPDX-License-Identifier: Apache-2.0
//
// The framing half of protocol.h: length-prefixed payloads on a stream socket.
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <limits>

#include "runtime-hooks/cuda/protocol.h"

namespace icebox::cuda::protocol {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::size_t kHeader = 4;

// Milliseconds left for poll(2), rounded up so that it never spins; -1 = for ever.
int poll_timeout(std::optional<Clock::time_point> deadline) {
  if (!deadline) return -1;
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(*deadline - Clock::now()).count();
  return static_cast<int>(std::clamp<std::int64_t>(left, 0, std::numeric_limits<int>::max()));
}

// Waits until the socket has bytes or an end of file.
Result<void> wait_readable(int fd, std::optional<Clock::time_point> deadline) {
  for (;;) {
    pollfd entry = {fd, POLLIN, 0};
    const int ready = ::poll(&entry, 1, poll_timeout(deadline));
    if (ready > 0) return {};
    if (ready == 0) return make_error(Code::deadline_exceeded, "no answer in time");
    if (errno != EINTR) return errno_error("poll of the agent socket");
  }
}

}  // namespace

Result<std::string> frame(std::string_view payload) {
  if (payload.size() > kMaxPayload) {
    return make_error(Code::resource_exhausted,
                      "message of " + std::to_string(payload.size()) + " bytes is too long");
  }
  std::string framed;
  framed.reserve(kHeader + payload.size());
  for (std::size_t i = 0; i < kHeader; ++i) {
    framed.push_back(static_cast<char>((payload.size() >> (8 * i)) & 0xff));
  }
  framed.append(payload);
  return framed;
}

void FrameDecoder::feed(std::string_view bytes) { buffer_.append(bytes); }

Result<std::optional<std::string>> FrameDecoder::next() {
  if (buffer_.size() < kHeader) return std::optional<std::string>();
  std::size_t length = 0;
  for (std::size_t i = 0; i < kHeader; ++i) {
    length |= static_cast<std::size_t>(static_cast<unsigned char>(buffer_[i])) << (8 * i);
  }
  if (length == 0 || length > kMaxPayload) {
    return make_error(Code::invalid_argument,
                      "frame with an impossible length of " + std::to_string(length) + " bytes");
  }
  if (buffer_.size() - kHeader < length) return std::optional<std::string>();
  std::string payload = buffer_.substr(kHeader, length);
  buffer_.erase(0, kHeader + length);
  return std::optional<std::string>(std::move(payload));
}

Result<void> send_frame(int fd, std::string_view payload) {
  const std::string framed = ICEBOX_TRY(frame(payload));
  std::string_view rest = framed;
  while (!rest.empty()) {
    const ssize_t sent = ::send(fd, rest.data(), rest.size(), MSG_NOSIGNAL);
    if (sent >= 0) {
      rest.remove_prefix(static_cast<std::size_t>(sent));
    } else if (errno != EINTR) {
      return errno_error("write to the agent socket");
    }
  }
  return {};
}

Result<std::optional<std::string>> receive_frame(int fd, FrameDecoder& decoder,
                                                 std::optional<std::chrono::milliseconds> timeout) {
  std::optional<Clock::time_point> deadline;
  if (timeout) deadline = Clock::now() + *timeout;
  for (;;) {
    auto payload = ICEBOX_TRY(decoder.next());
    if (payload) return payload;
    ICEBOX_TRY(wait_readable(fd, deadline));
    char buffer[65536];
    const ssize_t got = ::recv(fd, buffer, sizeof buffer, 0);
    if (got > 0) {
      decoder.feed({buffer, static_cast<std::size_t>(got)});
    } else if (got == 0) {
      if (decoder.mid_frame()) return make_error(Code::unavailable, "stream cut inside a frame");
      return std::optional<std::string>();
    } else if (errno != EINTR) {
      return errno_error("read from the agent socket");
    }
  }
}

}  // namespace icebox::cuda::protocol
