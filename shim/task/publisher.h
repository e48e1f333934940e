// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <deque>
#include <memory>
#include <string>

#include "shim/loop/event_loop.h"
#include "shim/task/events.h"
#include "shim/ttrpc/client.h"

namespace icebox::shim {

// Where events go; the containers only know this.
class EventSink {
 public:
  virtual ~EventSink() = default;
  // Queues an event. Never blocks, never fails.
  virtual void publish(Event event) = 0;
};

// Forwards events to containerd, one after another in the order they were published, over ttrpc. An
// event that cannot be delivered is tried again, at once and then after 1, 2, .. 5 s, and
// everything behind it waits: an exit must never overtake its start. Then it is dropped, and as
// long as nothing gets through the ones behind it get one try each. Losing events while containerd
// is down is part of the contract: it asks for State and Wait when it comes back.
class Publisher final : public EventSink {
 public:
  // `address` is containerd's ttrpc socket ($TTRPC_ADDRESS); "" drops every event. `loop` is
  // borrowed and must outlive this.
  Publisher(EventLoop& loop, std::string ns, std::string address);

  void publish(Event event) override;

  // Calls `done` once, from the loop, when nothing is queued any more, at the latest after
  // `timeout`. For the end of the daemon: /tasks/delete is queued right before it.
  void flush(Duration timeout, UniqueFunction<void()> done);

  [[nodiscard]] std::size_t queued() const { return queue_.size(); }
  [[nodiscard]] std::size_t dropped() const { return dropped_; }

 private:
  void send_head();
  void on_answer(Result<std::string> answer);
  void drop_head(const Error& reason);
  void finish_flush();

  EventLoop* loop_;
  std::string ns_;
  std::unique_ptr<ttrpc::Client> client_;  // none without an address
  std::deque<Event> queue_;
  bool sending_ = false;  // the head is on its way or waits for retry_
  int head_tries_ = 0;    // failed tries of the head
  int failures_ = 0;      // failed tries since the last success
  std::size_t dropped_ = 0;
  Timer retry_;
  Timer flush_timer_;
  UniqueFunction<void()> flushed_;
};

}  // namespace icebox::shim
