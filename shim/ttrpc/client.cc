// SPDX-License-Identifier: Apache-2.0
#include "shim/ttrpc/client.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "shim/ttrpc/status.h"
#include "ttrpc/ttrpc.pb.h"

namespace icebox::shim::ttrpc {
namespace {

// A stream id is used once per connection; near the end of the numbers a new connection starts
// over.
constexpr std::uint32_t kLastStream = 0x7fffffff;

std::string encode_request(CallRequest& request) {
  ::ttrpc::Request message;
  message.set_service(std::move(request.service));
  message.set_method(std::move(request.method));
  message.set_payload(std::move(request.payload));
  if (request.timeout) message.set_timeout_nano(request.timeout->count());
  for (auto& [key, value] : request.metadata) {
    auto* entry = message.add_metadata();
    entry->set_key(std::move(key));
    entry->set_value(std::move(value));
  }
  return message.SerializeAsString();
}

Result<std::string> decode_response(std::string_view data) {
  ::ttrpc::Response response;
  if (!response.ParseFromArray(data.data(), static_cast<int>(data.size()))) {
    return make_error(Code::unknown, "malformed ttrpc response");
  }
  if (response.status().code() != 0) {
    return from_rpc(response.status().code(),
                    std::move(*response.mutable_status()->mutable_message()));
  }
  return std::move(*response.mutable_payload());
}

}  // namespace

Client::Client(EventLoop& loop, std::string socket_path)
    : loop_(&loop), path_(std::move(socket_path)), alive_(std::make_shared<bool>(true)) {}

Client::~Client() {
  *alive_ = false;
  if (connection_) connection_->close();
}

bool Client::connected() const { return connection_ != nullptr && connection_->open(); }

void Client::call(CallRequest request, Done done) {
  if (next_stream_ >= kLastStream) close();
  const auto connected_now = connect();
  if (!connected_now.ok()) {
    loop_->post("ttrpc call",
                [alive = alive_, done = std::move(done), error = connected_now.error()] {
                  if (*alive) done(error);
                });
    return;
  }
  const std::uint32_t stream = next_stream_;
  next_stream_ += 2;
  Pending pending;
  pending.done = std::move(done);
  if (request.timeout) {
    const std::string what = request.method;
    pending.timer = loop_->after(*request.timeout, "ttrpc call", [this, stream, what] {
      finish(stream, make_error(Code::deadline_exceeded, what + " was not answered in time"));
    });
  }
  calls_.emplace(stream, std::move(pending));
  const auto sent = connection_->send(stream, FrameType::request, 0, encode_request(request));
  if (sent.ok()) return;
  auto node = calls_.extract(stream);
  loop_->post("ttrpc call",
              [alive = alive_, unsent = std::move(node.mapped().done), error = sent.error()] {
                if (*alive) unsent(error);
              });
}

Result<void> Client::connect() {
  if (connected()) return {};
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  if (path_.empty() || path_.size() >= sizeof address.sun_path) {
    return make_error(Code::unavailable, "no usable ttrpc socket path: \"" + path_ + "\"");
  }
  path_.copy(address.sun_path, sizeof address.sun_path - 1);
  UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket) return errno_error("ttrpc socket");
  // A unix socket connects at once or not at all; EAGAIN: the server's backlog is full.
  if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    Error error = errno_error("connect to " + path_);
    error.code = Code::unavailable;
    return error;
  }
  Connection::Handlers handlers;
  handlers.on_frame = [this](const FrameHeader& header, std::string_view data) {
    on_frame(header, data);
  };
  handlers.on_oversized = [this](const FrameHeader& header) {
    finish(header.stream_id, make_error(Code::resource_exhausted, "the response is too long"));
  };
  handlers.on_close = [this](const Error& error) {
    fail_all(make_error(Code::unavailable, error.message));
  };
  connection_ = ICEBOX_TRY(Connection::start(*loop_, std::move(socket), std::move(handlers)));
  next_stream_ = 1;
  return {};
}

void Client::on_frame(const FrameHeader& header, std::string_view data) {
  if (header.type != static_cast<std::uint8_t>(FrameType::response)) return;
  finish(header.stream_id, decode_response(data));
}

void Client::finish(std::uint32_t stream_id, Result<std::string> result) {
  auto node = calls_.extract(stream_id);
  if (node.empty()) return;  // answered after its deadline
  node.mapped().timer.reset();
  node.mapped().done(std::move(result));  // may destroy this
}

void Client::fail_all(const Error& error) {
  const auto calls = std::exchange(calls_, {});
  const auto alive = alive_;
  for (const auto& [stream, pending] : calls) {
    if (!*alive) return;
    pending.done(error);
  }
}

void Client::close() {
  if (connection_) connection_->close();
  connection_.reset();
  auto calls = std::exchange(calls_, {});
  for (auto& [stream, pending] : calls) {
    loop_->post("ttrpc call", [alive = alive_, done = std::move(pending.done)] {
      if (*alive) done(make_error(Code::cancelled, "the ttrpc client was closed"));
    });
  }
}

}  // namespace icebox::shim::ttrpc
