// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <string_view>

#include "oci/base/result.h"
#include "oci/base/unique_fd.h"
#include "shim/loop/event_loop.h"
#include "shim/ttrpc/frame.h"

namespace icebox::shim::ttrpc {

// One stream socket speaking frames, server or client side. Frames go out whole and in order. While
// more than kHighWater bytes wait to be written nothing is read, so a peer that does not read its
// answers stops being served instead of growing the daemon.
class Connection : public std::enable_shared_from_this<Connection> {
 public:
  // All are called from the loop, never from inside send(); none after close() or on_close.
  struct Handlers {
    UniqueFunction<void(const FrameHeader&, std::string_view data)>
        on_frame;  // data valid during the call
    UniqueFunction<void(const FrameHeader&)> on_oversized;
    UniqueFunction<void(const Error&)>
        on_close;  // once: peer closed (cancelled) or socket failed (unavailable)
    UniqueFunction<void()> on_flushed;  // the output queue became empty; may be absent
  };
  static constexpr std::size_t kHighWater = 8 << 20;

  // Takes a connected socket, makes it non-blocking and starts reading.
  static Result<std::shared_ptr<Connection>> start(EventLoop& loop, UniqueFd socket,
                                                   Handlers handlers);
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;
  ~Connection() = default;

  // Queues a whole frame and writes as much as the socket takes. Ignored on a closed connection.
  // resource_exhausted when `data` is longer than kMaxData.
  Result<void> send(std::uint32_t stream_id, FrameType type, std::uint8_t flags,
                    std::string_view data);

  // Drops the socket and what was not sent; on_close is not called. Idempotent.
  void close();

  [[nodiscard]] bool open() const { return socket_.valid(); }
  [[nodiscard]] std::size_t unsent() const { return unsent_; }

 private:
  Connection(EventLoop& loop, UniqueFd socket, Handlers handlers);
  Result<void> begin();
  void on_ready(std::uint32_t events);
  void read_some();
  bool write_some();
  void update_interest();
  void fail(Error error);

  EventLoop* loop_;
  UniqueFd socket_;
  Watch watch_;
  Handlers handlers_;
  FrameDecoder decoder_;
  std::deque<std::string> queue_;
  std::size_t head_written_ = 0;
  std::size_t unsent_ = 0;
  std::uint32_t interest_ = 0;
};

}  // namespace icebox::shim::ttrpc
