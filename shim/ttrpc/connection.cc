// SPDX-License-Identifier: Apache-2.0
#include "shim/ttrpc/connection.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <utility>

namespace icebox::shim::ttrpc {

Result<std::shared_ptr<Connection>> Connection::start(EventLoop& loop, UniqueFd socket,
                                                      Handlers handlers) {
  std::shared_ptr<Connection> connection(
      new Connection(loop, std::move(socket), std::move(handlers)));
  ICEBOX_TRY(connection->begin());
  return connection;
}

Connection::Connection(EventLoop& loop, UniqueFd socket, Handlers handlers)
    : loop_(&loop),
      socket_(std::move(socket)),
      handlers_(std::move(handlers)),
      // A frame's handler may close the connection while more frames are in the decoder.
      decoder_({[this](const FrameHeader& header, std::string_view data) {
                  if (open()) handlers_.on_frame(header, data);
                },
                [this](const FrameHeader& header) {
                  if (open()) handlers_.on_oversized(header);
                }}) {}

Result<void> Connection::begin() {
  const int flags = ::fcntl(socket_.get(), F_GETFL);
  if (flags < 0 || ::fcntl(socket_.get(), F_SETFL, flags | O_NONBLOCK) != 0) {
    return errno_error("fcntl");
  }
  interest_ = EPOLLIN;
  watch_ = ICEBOX_TRY(loop_->watch(socket_.get(), interest_, "ttrpc connection",
                                   [this](std::uint32_t events) { on_ready(events); }));
  return {};
}

Result<void> Connection::send(std::uint32_t stream_id, FrameType type, std::uint8_t flags,
                              std::string_view data) {
  if (!open()) return {};
  if (data.size() > kMaxData) {
    return make_error(Code::resource_exhausted, "message of " + std::to_string(data.size()) +
                                                    " bytes exceeds the limit of " +
                                                    std::to_string(kMaxData));
  }
  queue_.push_back(encode_frame(stream_id, type, flags, data));
  unsent_ += queue_.back().size();
  // With frames waiting already, the socket is known to be full.
  if (queue_.size() == 1 && !write_some()) {
    const int err = errno;
    loop_->post("ttrpc connection", [weak = weak_from_this(), err] {
      if (const auto self = weak.lock()) self->fail(errno_error("write to ttrpc peer", err));
    });
  }
  update_interest();
  return {};
}

void Connection::on_ready(std::uint32_t events) {
  const auto self = shared_from_this();  // handlers may drop the last other reference
  if ((events & EPOLLOUT) != 0) {
    if (!write_some()) {
      fail(errno_error("write to ttrpc peer"));
      return;
    }
    update_interest();
    if (queue_.empty() && handlers_.on_flushed) handlers_.on_flushed();
  }
  if (open() && (events & (EPOLLIN | EPOLLHUP | EPOLLERR)) != 0) read_some();
}

// One read a turn: a busy peer shares the loop with everybody else.
void Connection::read_some() {
  std::array<char, std::size_t{16} * 1024> buffer;
  const ssize_t n = ::read(socket_.get(), buffer.data(), buffer.size());
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (n < 0) {
    fail(errno_error("read from ttrpc peer"));
  } else if (n == 0) {
    fail(make_error(Code::cancelled, "the ttrpc peer closed the connection"));
  } else {
    decoder_.feed(std::string_view(buffer.data(), static_cast<std::size_t>(n)));
  }
}

// False, with errno, when the socket failed.
bool Connection::write_some() {
  while (!queue_.empty()) {
    const std::string& frame = queue_.front();
    const ssize_t n = ::send(socket_.get(), frame.data() + head_written_,
                             frame.size() - head_written_, MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return errno == EAGAIN;
    head_written_ += static_cast<std::size_t>(n);
    unsent_ -= static_cast<std::size_t>(n);
    if (head_written_ < frame.size()) continue;
    queue_.pop_front();
    head_written_ = 0;
  }
  return true;
}

void Connection::update_interest() {
  std::uint32_t wanted = 0;
  if (!queue_.empty()) wanted |= EPOLLOUT;
  if (unsent_ <= kHighWater) wanted |= EPOLLIN;
  if (wanted == interest_ || !open()) return;
  interest_ = wanted;
  const auto changed = watch_.set_interest(wanted);
  if (changed.ok()) return;
  loop_->post("ttrpc connection", [weak = weak_from_this(), error = changed.error()] {
    if (const auto self = weak.lock()) self->fail(error);
  });
}

void Connection::fail(Error error) {
  if (!open()) return;
  auto on_close = std::move(handlers_.on_close);
  if (error.code == Code::unknown) error.code = Code::unavailable;
  close();
  if (on_close) on_close(error);
}

void Connection::close() {
  watch_.reset();
  socket_.reset();
  queue_.clear();
  head_written_ = 0;
  unsent_ = 0;
}

}  // namespace icebox::shim::ttrpc
