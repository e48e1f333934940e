// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "oci/base/result.h"
#include "oci/base/unique_fd.h"
#include "shim/loop/event_loop.h"
#include "shim/ttrpc/connection.h"

namespace icebox::shim::ttrpc {

namespace internal {
struct Call;
}

// What a handler may know about the call it serves. Copyable; stays valid after the reply.
class CallContext {
 public:
  explicit CallContext(std::shared_ptr<internal::Call> call) : call_(std::move(call)) {}

  [[nodiscard]] const std::string& service() const;
  [[nodiscard]] const std::string& method() const;
  // Instant on the loop's clock after which the client no longer waits.
  [[nodiscard]] std::optional<TimePoint> deadline() const;
  // First value of a metadata key, e.g. "containerd-namespace-ttrpc".
  [[nodiscard]] std::optional<std::string> metadata(std::string_view key) const;

  // Whether nobody waits for the answer any more: the deadline passed or the connection closed.
  [[nodiscard]] bool cancelled() const;
  // Calls `handler` at most once, from the loop, when that happens before the reply: with
  // deadline_exceeded or cancelled. A later call replaces the handler. Called from the loop soon
  // when it has already happened.
  void on_cancel(UniqueFunction<void(const Error&)> handler) const;

 private:
  std::shared_ptr<internal::Call> call_;
};

// The one answer to a call. Move-only. Answering twice aborts (programmer error); dropping it
// unanswered answers `unknown` and logs the method, so that no client hangs on a forgotten path.
// Answers that come after the deadline or to a closed connection vanish. May outlive the server.
class Reply {
 public:
  explicit Reply(std::shared_ptr<internal::Call> call) : call_(std::move(call)) {}
  Reply(Reply&&) noexcept = default;
  Reply& operator=(Reply&& other) noexcept;
  Reply(const Reply&) = delete;
  Reply& operator=(const Reply&) = delete;
  ~Reply();

  // A serialized response message (empty for google.protobuf.Empty). Never blocks.
  void send(std::string_view payload) &&;
  void fail(const Error& error) &&;

 private:
  std::shared_ptr<internal::Call> call_;
};

// A ttrpc server on a listening unix socket: many connections at once, requests independent of each
// other, answers in any order. A closed connection means nothing beyond its own calls. Handlers run
// inside the server and must not destroy it.
class Server {
 public:
  // `payload` is the serialized request message, valid during the call only.
  using Handler = UniqueFunction<void(CallContext, std::string_view payload, Reply)>;

  struct Options {
    // Who may connect (SO_PEERCRED); the daemon's effective ids unless a test says otherwise.
    std::optional<uid_t> uid;
    std::optional<gid_t> gid;
  };

  // `listener` is a listening unix stream socket; `loop` is borrowed and must outlive the server.
  static Result<std::unique_ptr<Server>> start(EventLoop& loop, UniqueFd listener, Options options);
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;
  // Closes every connection at once.
  ~Server();

  // Adds a method. Unknown services and methods answer unimplemented, which containerd 2.x relies
  // on to fall back from Task v3 to v2. Adding one twice aborts (programmer error).
  void add_method(std::string service, std::string method, Handler handler);

  // Accepts no more connections and calls `done` once, from the loop, when every queued answer is
  // in its socket or its connection is closed, at the latest after `timeout`. Calls in flight may
  // still be answered meanwhile.
  void drain(Duration timeout, UniqueFunction<void()> done);

  [[nodiscard]] std::size_t connections() const;
  // Calls not answered yet.
  [[nodiscard]] std::size_t calls() const;

 private:
  struct Peer;
  Server(EventLoop& loop, UniqueFd listener, Options options);
  void on_listener();
  void admit(UniqueFd socket);
  void on_frame(Peer& peer, const FrameHeader& header, std::string_view data);
  void on_request(Peer& peer, const FrameHeader& header, std::string_view data);
  void on_closed(std::uint64_t peer_id, const Error& error);
  void check_drained();

  EventLoop* loop_;
  UniqueFd listener_;
  Watch listener_watch_;
  Timer accept_retry_;
  Options options_;
  std::map<std::string, std::map<std::string, Handler, std::less<>>, std::less<>> services_;
  std::uint64_t next_peer_ = 1;
  std::unordered_map<std::uint64_t, std::unique_ptr<Peer>> peers_;
  UniqueFunction<void()> drained_;
  Timer drain_timer_;
  Timer drain_check_;
};

}  // namespace icebox::shim::ttrpc
