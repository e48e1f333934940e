// SPDX-License-Identifier: Apache-2.0
#include "shim/ttrpc/server.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>

#include "oci/base/log.h"
#include "shim/ttrpc/status.h"
#include "ttrpc/ttrpc.pb.h"

namespace icebox::shim::ttrpc {
namespace {

constexpr Duration kAcceptRetry = std::chrono::milliseconds(100);
// Keeps now + timeout far from overflow.
constexpr Duration kLongestTimeout = std::chrono::hours(24 * 365 * 10);

[[noreturn]] void programmer_error(const std::string& message) {
  log::error(message);
  std::abort();
}

void send_response(Connection& connection, std::uint32_t stream_id,
                   const ::ttrpc::Response& response) {
  const auto sent =
      connection.send(stream_id, FrameType::response, 0, response.SerializeAsString());
  if (sent.ok()) return;
  ::ttrpc::Response too_long;
  too_long.mutable_status()->set_code(to_rpc(sent.error().code));
  too_long.mutable_status()->set_message(sent.error().message);
  static_cast<void>(
      connection.send(stream_id, FrameType::response, 0, too_long.SerializeAsString()).ok());
}

void send_error(Connection& connection, std::uint32_t stream_id, const Error& error) {
  ::ttrpc::Response response;
  response.mutable_status()->set_code(to_rpc(error.code));
  response.mutable_status()->set_message(error.message);
  send_response(connection, stream_id, response);
}

}  // namespace

namespace internal {

// The calls of one connection that are not answered.
using OpenCalls = std::unordered_map<std::uint32_t, std::shared_ptr<Call>>;

struct Call : std::enable_shared_from_this<Call> {
  EventLoop* loop = nullptr;
  std::weak_ptr<Connection> connection;
  std::weak_ptr<OpenCalls> open_calls;
  std::uint32_t stream_id = 0;
  std::string service;
  std::string method;
  std::vector<std::pair<std::string, std::string>> metadata;
  std::optional<TimePoint> deadline;
  Timer deadline_timer;
  bool replied = false;                // the handler has used its Reply
  std::optional<Error> cancel_reason;  // nobody waits for it any more
  UniqueFunction<void(const Error&)> on_cancel;

  // Leaves the connection's table; may drop the last reference but the caller's.
  void forget() {
    deadline_timer.reset();
    if (const auto calls = open_calls.lock()) calls->erase(stream_id);
  }

  void cancel(Error reason) {
    const auto self = shared_from_this();  // the handler may drop the Reply, the last owner
    if (replied || cancel_reason) return;
    cancel_reason = std::move(reason);
    deadline_timer.reset();
    if (on_cancel) std::exchange(on_cancel, nullptr)(*cancel_reason);
  }

  void expire() {
    const auto self = shared_from_this();
    const Error error =
        make_error(Code::deadline_exceeded, method + " did not end before the client's deadline");
    if (const auto peer = connection.lock()) send_error(*peer, stream_id, error);
    forget();
    cancel(error);
  }

  void reply(const ::ttrpc::Response& response) {
    if (replied) programmer_error(method + " was answered twice");
    replied = true;
    on_cancel = nullptr;
    const auto peer = connection.lock();
    if (peer && !cancel_reason) send_response(*peer, stream_id, response);
    forget();
  }
};

}  // namespace internal

using internal::Call;
using internal::OpenCalls;

const std::string& CallContext::service() const { return call_->service; }
const std::string& CallContext::method() const { return call_->method; }
std::optional<TimePoint> CallContext::deadline() const { return call_->deadline; }
bool CallContext::cancelled() const { return call_->cancel_reason.has_value(); }

std::optional<std::string> CallContext::metadata(std::string_view key) const {
  for (const auto& [name, value] : call_->metadata) {
    if (name == key) return value;
  }
  return std::nullopt;
}

void CallContext::on_cancel(UniqueFunction<void(const Error&)> handler) const {
  if (call_->replied) return;
  call_->on_cancel = std::move(handler);
  if (!call_->cancel_reason) return;
  call_->loop->post("ttrpc cancel", [call = call_] {
    if (call->on_cancel) std::exchange(call->on_cancel, nullptr)(*call->cancel_reason);
  });
}

Reply& Reply::operator=(Reply&& other) noexcept {
  if (this != &other) {
    const Reply dropped(std::move(call_));
    call_ = std::move(other.call_);
  }
  return *this;
}

Reply::~Reply() {
  if (!call_ || call_->replied) return;
  // Dropping it after the deadline, or after the client went away, is how a handler gives up: no
  // fault.
  if (!call_->cancel_reason && !call_->connection.expired()) {
    log::error("a call was not answered", {{"method", call_->method}});
  }
  std::move(*this).fail(make_error(Code::unknown, call_->method + " ended without an answer"));
}

void Reply::send(std::string_view payload) && {
  const auto call = std::move(call_);
  if (!call) programmer_error("a ttrpc call was answered twice");
  ::ttrpc::Response response;
  response.set_payload(payload.data(), payload.size());
  call->reply(response);
}

void Reply::fail(const Error& error) && {
  const auto call = std::move(call_);
  if (!call) programmer_error("a ttrpc call was answered twice");
  ::ttrpc::Response response;
  response.mutable_status()->set_code(to_rpc(error.code));
  response.mutable_status()->set_message(error.message);
  call->reply(response);
}

struct Server::Peer {
  std::uint64_t id = 0;
  std::shared_ptr<Connection> connection;
  std::shared_ptr<OpenCalls> calls = std::make_shared<OpenCalls>();
  std::uint32_t last_stream = 0;
};

Server::Server(EventLoop& loop, UniqueFd listener, Options options)
    : loop_(&loop), listener_(std::move(listener)), options_(options) {}

Result<std::unique_ptr<Server>> Server::start(EventLoop& loop, UniqueFd listener, Options options) {
  if (!options.uid) options.uid = ::geteuid();
  if (!options.gid) options.gid = ::getegid();
  std::unique_ptr<Server> server(new Server(loop, std::move(listener), options));
  Server* self = server.get();
  server->listener_watch_ =
      ICEBOX_TRY(loop.watch(server->listener_.get(), EPOLLIN, "ttrpc listener",
                            [self](std::uint32_t) { self->on_listener(); }));
  return server;
}

Server::~Server() {
  for (const auto& [id, peer] : peers_) {
    peer->connection->close();
    const OpenCalls calls = std::exchange(*peer->calls, {});
    for (const auto& [stream, call] : calls) {
      call->connection.reset();
      call->deadline_timer.reset();
    }
  }
}

void Server::add_method(std::string service, std::string method, Handler handler) {
  const std::string name = service + "/" + method;
  const bool added =
      services_[std::move(service)].emplace(std::move(method), std::move(handler)).second;
  if (!added) programmer_error("ttrpc method " + name + " was added twice");
}

void Server::on_listener() {
  UniqueFd socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (socket) {
    admit(std::move(socket));
    return;
  }
  if (errno == EAGAIN || errno == EINTR || errno == ECONNABORTED) return;
  // Out of descriptors or memory: the connection stays in the backlog, so wait instead of spinning.
  log::error("accepting a ttrpc connection failed", {{"error", errno_error("accept").message}});
  static_cast<void>(listener_watch_.set_interest(0).ok());
  accept_retry_ = loop_->after(kAcceptRetry, "ttrpc listener", [this] {
    static_cast<void>(listener_watch_.set_interest(EPOLLIN).ok());
  });
}

void Server::admit(UniqueFd socket) {
  ucred peer_ids = {};
  socklen_t size = sizeof peer_ids;
  if (::getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &peer_ids, &size) != 0 ||
      peer_ids.uid != options_.uid || peer_ids.gid != options_.gid) {
    log::warn("refused a ttrpc connection of another user",
              {{"uid", std::to_string(peer_ids.uid)}, {"pid", std::to_string(peer_ids.pid)}});
    return;
  }
  const std::uint64_t id = next_peer_++;
  auto peer = std::make_unique<Peer>();
  peer->id = id;
  Peer* raw = peer.get();
  Connection::Handlers handlers;
  handlers.on_frame = [this, raw](const FrameHeader& header, std::string_view data) {
    on_frame(*raw, header, data);
  };
  handlers.on_oversized = [raw](const FrameHeader& header) {
    if (header.type != static_cast<std::uint8_t>(FrameType::request)) return;
    send_error(*raw->connection, header.stream_id,
               make_error(Code::resource_exhausted, "message of " + std::to_string(header.length) +
                                                        " bytes exceeds the limit of " +
                                                        std::to_string(kMaxData)));
  };
  handlers.on_close = [this, id](const Error& error) { on_closed(id, error); };
  handlers.on_flushed = [this] { check_drained(); };
  auto connection = Connection::start(*loop_, std::move(socket), std::move(handlers));
  if (!connection.ok()) {
    log::error("ttrpc connection", {{"error", connection.error().message}});
    return;
  }
  peer->connection = std::move(connection).value();
  peers_.emplace(id, std::move(peer));
}

void Server::on_frame(Peer& peer, const FrameHeader& header, std::string_view data) {
  if (header.type != static_cast<std::uint8_t>(FrameType::request)) return;
  if (header.stream_id % 2 == 0 || header.stream_id <= peer.last_stream) {
    send_error(*peer.connection, header.stream_id,
               make_error(Code::invalid_argument, "stream ids of a client are odd and rise"));
    return;
  }
  peer.last_stream = header.stream_id;
  on_request(peer, header, data);
}

void Server::on_request(Peer& peer, const FrameHeader& header, std::string_view data) {
  Connection& connection = *peer.connection;
  ::ttrpc::Request request;
  if (!request.ParseFromArray(data.data(), static_cast<int>(data.size()))) {
    send_error(connection, header.stream_id,
               make_error(Code::invalid_argument, "malformed ttrpc request"));
    return;
  }
  const auto service = services_.find(request.service());
  if (service == services_.end()) {
    send_error(connection, header.stream_id,
               make_error(Code::unimplemented, "service " + request.service()));
    return;
  }
  const auto method = service->second.find(request.method());
  if (method == service->second.end()) {
    send_error(connection, header.stream_id,
               make_error(Code::unimplemented, "method " + request.method()));
    return;
  }
  auto call = std::make_shared<Call>();
  call->loop = loop_;
  call->connection = peer.connection;
  call->open_calls = peer.calls;
  call->stream_id = header.stream_id;
  call->service = std::move(*request.mutable_service());
  call->method = std::move(*request.mutable_method());
  for (auto& entry : *request.mutable_metadata()) {
    call->metadata.emplace_back(std::move(*entry.mutable_key()), std::move(*entry.mutable_value()));
  }
  if (request.timeout_nano() > 0) {
    const Duration timeout(std::min(request.timeout_nano(), kLongestTimeout.count()));
    call->deadline = loop_->now() + timeout;
    Call* raw = call.get();
    call->deadline_timer = loop_->after(timeout, "ttrpc deadline", [raw] { raw->expire(); });
  }
  peer.calls->emplace(header.stream_id, call);
  method->second(CallContext(call), request.payload(), Reply(call));
}

void Server::on_closed(std::uint64_t peer_id, const Error& error) {
  auto node = peers_.extract(peer_id);
  if (node.empty()) return;
  const Error reason = make_error(Code::cancelled, error.message);
  const OpenCalls calls = std::exchange(*node.mapped()->calls, {});
  for (const auto& [stream, call] : calls) call->cancel(reason);
  check_drained();
}

void Server::drain(Duration timeout, UniqueFunction<void()> done) {
  accept_retry_.reset();
  listener_watch_.reset();
  listener_.reset();
  drained_ = std::move(done);
  drain_timer_ = loop_->after(timeout, "ttrpc drain", [this] {
    if (drained_) std::exchange(drained_, nullptr)();
  });
  // Later: done is not called from inside this call.
  drain_check_ = loop_->after(Duration::zero(), "ttrpc drain", [this] { check_drained(); });
}

void Server::check_drained() {
  if (!drained_) return;
  for (const auto& [id, peer] : peers_) {
    if (peer->connection->unsent() > 0) return;
  }
  drain_timer_.reset();
  drain_check_.reset();
  std::exchange(drained_, nullptr)();
}

std::size_t Server::connections() const { return peers_.size(); }

std::size_t Server::calls() const {
  std::size_t count = 0;
  for (const auto& [id, peer] : peers_) count += peer->calls->size();
  return count;
}

}  // namespace icebox::shim::ttrpc
