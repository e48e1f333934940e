// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <deque>
#include <memory>

#include "shim/loop/event_loop.h"
#include "shim/loop/unique_function.h"

namespace icebox::shim {

// One mutation at a time: operations run in the order they came, each when the one before it has
// dropped its Turn. What only reads, and Kill, does not go through here, so that nothing waits for
// a checkpoint that takes minutes.
class OpQueue {
  struct State;

 public:
  // The right to change the container. Dropping it, on whatever path, lets the next operation run
  // (from the loop, not from inside the drop). May outlive the queue.
  class Turn {
   public:
    Turn(Turn&&) noexcept = default;
    Turn& operator=(Turn&&) = delete;
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;
    ~Turn();

   private:
    friend class OpQueue;
    explicit Turn(std::shared_ptr<State> state) : state_(std::move(state)) {}
    std::shared_ptr<State> state_;
  };
  using Operation = UniqueFunction<void(Turn)>;

  // `loop` is borrowed and must outlive the queue and every Turn.
  explicit OpQueue(EventLoop& loop);
  OpQueue(const OpQueue&) = delete;
  OpQueue& operator=(const OpQueue&) = delete;
  // Operations that wait are dropped unrun; the one under way keeps its Turn.
  ~OpQueue();

  // Runs `operation` at once when nothing is under way, else after everything pushed before it.
  // `name` must be a literal.
  void push(const char* name, Operation operation);

  // Name of the operation under way, "" when idle.
  [[nodiscard]] const char* current() const;
  [[nodiscard]] std::size_t waiting() const;

 private:
  struct Entry {
    const char* name;
    Operation operation;
  };
  struct State {
    explicit State(EventLoop& owner) : loop(&owner) {}
    EventLoop* loop;
    const char* current = "";
    bool busy = false;
    std::deque<Entry> waiting;
  };
  static void run_next(const std::shared_ptr<State>& state);

  std::shared_ptr<State> state_;
};

}  // namespace icebox::shim
