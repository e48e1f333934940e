// SPDX-License-Identifier: Apache-2.0
#include "shim/task/op_queue.h"

#include <utility>

namespace icebox::shim {

OpQueue::Turn::~Turn() {
  if (!state_) return;  // moved from
  state_->busy = false;
  state_->current = "";
  if (state_->waiting.empty()) return;
  state_->loop->post("next operation", [state = state_] { run_next(state); });
}

OpQueue::OpQueue(EventLoop& loop) : state_(std::make_shared<State>(loop)) {}

OpQueue::~OpQueue() {
  // An operation may own what owns this queue: let go of it outside of the container.
  const std::deque<Entry> dropped = std::exchange(state_->waiting, {});
}

void OpQueue::push(const char* name, Operation operation) {
  state_->waiting.push_back({name, std::move(operation)});
  // With a Turn just dropped and others waiting, the posted run_next keeps the order.
  if (!state_->busy && state_->waiting.size() == 1) run_next(state_);
}

void OpQueue::run_next(const std::shared_ptr<State>& state) {
  if (state->busy || state->waiting.empty()) return;
  Entry entry = std::move(state->waiting.front());
  state->waiting.pop_front();
  state->busy = true;
  state->current = entry.name;
  entry.operation(Turn(state));
}

const char* OpQueue::current() const { return state_->current; }

std::size_t OpQueue::waiting() const { return state_->waiting.size(); }

}  // namespace icebox::shim
