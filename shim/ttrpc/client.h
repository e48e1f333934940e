// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "oci/base/result.h"
#include "shim/loop/event_loop.h"
#include "shim/ttrpc/connection.h"

namespace icebox::shim::ttrpc {

struct CallRequest {
  std::string service;
  std::string method;
  std::string payload;  // serialized request message
  std::vector<std::pair<std::string, std::string>> metadata;
  std::optional<Duration> timeout;  // sent as timeout_nano and kept here too
};

// Unary calls to a ttrpc server on a unix socket. Connects with the first call and again with the
// first call after the connection was lost; never blocks. Nothing is retried here: that is the
// caller's policy.
class Client {
 public:
  using Done = UniqueFunction<void(Result<std::string> payload)>;

  // `loop` is borrowed and must outlive the client. `socket_path` without scheme.
  Client(EventLoop& loop, std::string socket_path);
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;
  // Drops the pending calls; their `done` is not called.
  ~Client();

  // `done` is called exactly once, from the loop and never from inside this call: with the
  // response's payload, with the server's status as an Error, with deadline_exceeded, or with
  // unavailable when there is no server or the connection closed before the answer.
  void call(CallRequest request, Done done);

  // Closes the connection; pending calls end with `cancelled`.
  void close();

  [[nodiscard]] bool connected() const;
  [[nodiscard]] std::size_t pending() const { return calls_.size(); }

 private:
  struct Pending {
    Done done;
    Timer timer;
  };
  Result<void> connect();
  void on_frame(const FrameHeader& header, std::string_view data);
  void fail_all(const Error& error);
  void finish(std::uint32_t stream_id, Result<std::string> result);

  EventLoop* loop_;
  std::string path_;
  std::shared_ptr<Connection> connection_;
  std::uint32_t next_stream_ = 1;  // odd and rising per connection
  std::unordered_map<std::uint32_t, Pending> calls_;
  std::shared_ptr<bool> alive_;  // lets posted callbacks notice that the client is gone
};

}  // namespace icebox::shim::ttrpc
