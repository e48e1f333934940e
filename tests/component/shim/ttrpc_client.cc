// SPDX-License-Identifier: Apache-2.0
#include "tests/component/shim/ttrpc_client.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "ttrpc/ttrpc.pb.h"

namespace icebox::test {
namespace {

constexpr std::size_t kHeader = 10;

std::uint32_t big_endian(const std::string& bytes, std::size_t at) {
  std::uint32_t value = 0;
  for (std::size_t i = 0; i < 4; ++i) {
    value = (value << 8) | static_cast<unsigned char>(bytes[at + i]);
  }
  return value;
}

void append_big_endian(std::string& bytes, std::uint32_t value) {
  for (int shift = 24; shift >= 0; shift -= 8) bytes.push_back(static_cast<char>(value >> shift));
}

}  // namespace

std::string make_frame(std::uint32_t stream, std::uint8_t type, const std::string& data) {
  std::string frame;
  append_big_endian(frame, static_cast<std::uint32_t>(data.size()));
  append_big_endian(frame, stream);
  frame.push_back(static_cast<char>(type));
  frame.push_back(0);
  return frame + data;
}

bool take_frame(std::string& buffer, std::uint32_t& stream, std::string& data) {
  if (buffer.size() < kHeader) return false;
  const std::size_t length = big_endian(buffer, 0);
  if (buffer.size() < kHeader + length) return false;
  stream = big_endian(buffer, 4);
  data = buffer.substr(kHeader, length);
  buffer.erase(0, kHeader + length);
  return true;
}

TtrpcClient::TtrpcClient(const std::string& path)
    : socket_(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, path.c_str(), sizeof address.sun_path - 1);
  if (::connect(socket_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    std::perror(("cannot connect to " + path).c_str());
    std::abort();
  }
}

std::uint32_t TtrpcClient::send(const std::string& service, const std::string& method,
                                const std::string& payload, std::chrono::nanoseconds timeout) {
  ::ttrpc::Request request;
  request.set_service(service);
  request.set_method(method);
  request.set_payload(payload);
  request.set_timeout_nano(timeout.count());
  const std::uint32_t stream = std::exchange(next_stream_, next_stream_ + 2);
  const std::string frame = make_frame(stream, 1, request.SerializeAsString());
  for (std::size_t sent = 0; sent < frame.size();) {
    const ssize_t size =
        ::send(socket_.get(), frame.data() + sent, frame.size() - sent, MSG_NOSIGNAL);
    if (size <= 0) break;  // the missing answer will tell
    sent += static_cast<std::size_t>(size);
  }
  return stream;
}

bool TtrpcClient::read_frame(std::chrono::steady_clock::time_point deadline) {
  for (;;) {
    std::uint32_t stream = 0;
    std::string data;
    if (take_frame(buffer_, stream, data)) {
      ::ttrpc::Response response;
      Answer answer;
      if (!response.ParseFromString(data)) {
        answer.code = -1;
        answer.message = "malformed response";
      } else {
        answer.code = response.status().code();
        answer.message = response.status().message();
        answer.payload = response.payload();
      }
      answers_.emplace(stream, std::move(answer));
      return true;
    }
    if (closed_) return false;
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        deadline - std::chrono::steady_clock::now());
    pollfd ready{socket_.get(), POLLIN, 0};
    if (::poll(&ready, 1, static_cast<int>(std::max<std::int64_t>(left.count(), 0))) <= 0) {
      return false;
    }
    char chunk[65536];
    const ssize_t size = ::read(socket_.get(), chunk, sizeof chunk);
    if (size <= 0) {
      closed_ = true;
    } else {
      buffer_.append(chunk, static_cast<std::size_t>(size));
    }
  }
}

bool TtrpcClient::answered(std::uint32_t stream, std::chrono::milliseconds limit) {
  const auto deadline = std::chrono::steady_clock::now() + limit;
  while (!answers_.contains(stream)) {
    if (!read_frame(deadline)) return false;
  }
  return true;
}

Answer TtrpcClient::receive(std::uint32_t stream, std::chrono::milliseconds limit) {
  if (!answered(stream, limit)) {
    return closed_ ? Answer{-1, "the connection closed", ""} : Answer{-2, "no answer in time", ""};
  }
  const auto found = answers_.find(stream);
  Answer answer = std::move(found->second);
  answers_.erase(found);
  return answer;
}

}  // namespace icebox::test
