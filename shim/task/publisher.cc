// SPDX-License-Identifier: Apache-2.0
#include "shim/task/publisher.h"

#include <utility>

#include "containerd/events_service.pb.h"
#include "oci/base/log.h"

namespace icebox::shim {
namespace {

constexpr std::chrono::seconds kForwardTimeout{5};
constexpr int kMaxRetries = 5;
// Far above what one container makes; bounds the memory of a daemon whose containerd never returns.
constexpr std::size_t kMaxQueued = 4096;

std::string forward_request(const Event& event, const std::string& ns) {
  containerd::services::events::ttrpc::v1::ForwardRequest request;
  auto& envelope = *request.mutable_envelope();
  *envelope.mutable_timestamp() = to_timestamp(event.at);
  envelope.set_namespace_(ns);
  envelope.set_topic(event.topic);
  envelope.mutable_event()->set_type_url(event.type);
  envelope.mutable_event()->set_value(event.payload);
  return request.SerializeAsString();
}

// Whether another try may help: containerd was not there, or did not answer.
bool is_transient(const Error& error) {
  return error.code == Code::unavailable || error.code == Code::deadline_exceeded ||
         error.code == Code::cancelled;
}

}  // namespace

Publisher::Publisher(EventLoop& loop, std::string ns, std::string address)
    : loop_(&loop), ns_(std::move(ns)) {
  if (address.empty()) {
    log::warn("TTRPC_ADDRESS is not set: events are dropped");
  } else {
    client_ = std::make_unique<ttrpc::Client>(loop, std::move(address));
  }
}

void Publisher::publish(Event event) {
  log::debug("event", {{"topic", event.topic}});
  if (!client_) {
    ++dropped_;
    return;
  }
  if (queue_.size() >= kMaxQueued) {
    ++dropped_;
    log::error("too many events wait for containerd: dropped one", {{"topic", event.topic}});
    return;
  }
  queue_.push_back(std::move(event));
  if (!sending_) send_head();
}

void Publisher::send_head() {
  if (queue_.empty()) {
    sending_ = false;
    finish_flush();
    return;
  }
  sending_ = true;
  ttrpc::CallRequest call;
  call.service = "containerd.services.events.ttrpc.v1.Events";
  call.method = "Forward";
  call.payload = forward_request(queue_.front(), ns_);
  call.metadata = {{"containerd-namespace-ttrpc", ns_}};
  call.timeout = kForwardTimeout;
  client_->call(std::move(call),
                [this](Result<std::string> answer) { on_answer(std::move(answer)); });
}

void Publisher::on_answer(Result<std::string> answer) {
  if (answer.ok()) {
    queue_.pop_front();
    head_tries_ = 0;
    failures_ = 0;
    send_head();
    return;
  }
  ++head_tries_;
  ++failures_;
  // A connection that containerd's restart closed shows only when it is used: the first try after
  // that fails for no reason that still exists, so the second follows at once.
  const bool again = is_transient(answer.error()) && failures_ <= kMaxRetries + 1;
  if (!again) {
    drop_head(answer.error());
    send_head();
    return;
  }
  const std::chrono::seconds delay(head_tries_ - 1);
  retry_ = loop_->after(delay, "event retry", [this] { send_head(); });
}

void Publisher::drop_head(const Error& reason) {
  log::warn("event was not delivered",
            {{"topic", queue_.front().topic}, {"reason", reason.message}});
  queue_.pop_front();
  head_tries_ = 0;
  ++dropped_;
}

void Publisher::flush(Duration timeout, UniqueFunction<void()> done) {
  flushed_ = std::move(done);
  flush_timer_ = loop_->after(timeout, "event flush", [this] {
    if (!queue_.empty()) {
      log::warn("events were not delivered before the end",
                {{"count", std::to_string(queue_.size())}});
    }
    finish_flush();
  });
  if (queue_.empty()) loop_->post("event flush", [this] { finish_flush(); });
}

void Publisher::finish_flush() {
  if (!flushed_) return;
  flush_timer_.reset();
  std::exchange(flushed_, {})();
}

}  // namespace icebox::shim
