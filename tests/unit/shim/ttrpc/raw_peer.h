// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "oci/base/unique_fd.h"
#include "shim/ttrpc/frame.h"
#include "tests/unit/shim/loop/testing.h"
#include "ttrpc/ttrpc.pb.h"

namespace icebox::shim::ttrpc::testing {

using shim::testing::make_loop;
using shim::testing::TempDir;
using shim::testing::turn_times;
using shim::testing::turn_until;
using shim::testing::VirtualClock;

inline sockaddr_un address_of(const std::string& path) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof address.sun_path - 1);
  return address;
}

inline UniqueFd listen_on(const std::string& path) {
  UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const sockaddr_un address = address_of(path);
  EXPECT_EQ(::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  EXPECT_EQ(::listen(fd.get(), 16), 0);
  return fd;
}

inline UniqueFd connect_to(const std::string& path) {
  UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const sockaddr_un address = address_of(path);
  EXPECT_EQ(::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  return fd;
}

struct Frame {
  FrameHeader header;
  std::string data;
};

// One end of a connection, driven by hand: what the other end sends is kept as frames.
class RawPeer {
 public:
  explicit RawPeer(UniqueFd fd)
      : fd_(std::move(fd)),
        decoder_({[this](const FrameHeader& header, std::string_view data) {
                    frames_.push_back({header, std::string(data)});
                  },
                  [](const FrameHeader&) { ADD_FAILURE() << "oversized frame"; }}) {}

  void send(std::string_view bytes) {
    ASSERT_EQ(::send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes.size()));
  }

  void request(std::uint32_t stream, const std::string& service, const std::string& method,
               const std::string& payload = "", std::int64_t timeout_nano = 0) {
    ::ttrpc::Request message;
    message.set_service(service);
    message.set_method(method);
    message.set_payload(payload);
    message.set_timeout_nano(timeout_nano);
    send(encode_frame(stream, FrameType::request, 0, message.SerializeAsString()));
  }

  // Takes what has arrived. False once the other end closed.
  bool receive() {
    std::string buffer(1 << 16, '\0');
    for (;;) {
      const ssize_t n = ::read(fd_.get(), buffer.data(), buffer.size());
      if (n <= 0) return n < 0 && errno == EAGAIN;
      bytes_.append(buffer, 0, static_cast<std::size_t>(n));
      decoder_.feed(std::string_view(buffer).substr(0, static_cast<std::size_t>(n)));
    }
  }

  // Turns the loop until a frame has arrived, and takes it.
  Frame next(EventLoop& loop) {
    const bool arrived = turn_until(loop, [&] {
      receive();
      return !frames_.empty();
    });
    EXPECT_TRUE(arrived);
    if (!arrived) return {};
    Frame frame = std::move(frames_.front());
    frames_.erase(frames_.begin());
    return frame;
  }

  // The same, as a response: its status code and message or payload.
  std::pair<int, std::string> next_response(EventLoop& loop, std::uint32_t stream) {
    const Frame frame = next(loop);
    EXPECT_EQ(frame.header.stream_id, stream);
    EXPECT_EQ(frame.header.type, static_cast<std::uint8_t>(FrameType::response));
    EXPECT_EQ(frame.header.flags, 0);
    ::ttrpc::Response response;
    EXPECT_TRUE(response.ParseFromString(frame.data));
    if (response.has_status()) {
      EXPECT_EQ(response.payload(), "");
      return {response.status().code(), response.status().message()};
    }
    return {0, response.payload()};
  }

  [[nodiscard]] const std::string& bytes() const { return bytes_; }
  [[nodiscard]] std::size_t waiting() const { return frames_.size(); }
  void close() { fd_.reset(); }

 private:
  UniqueFd fd_;
  FrameDecoder decoder_;
  std::string bytes_;
  std::vector<Frame> frames_;
};

}  // namespace icebox::shim::ttrpc::testing
