// SPDX-License-Identifier: Apache-2.0
#include "shim/task/op_queue.h"

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace icebox::shim {
namespace {

using ::testing::ElementsAre;

class OpQueueTest : public ::testing::Test {
 protected:
  void turn() { ASSERT_TRUE(loop_.turn(std::chrono::milliseconds(0)).ok()); }
  OpQueue::Operation keep(const std::string& name) {
    return [this, name](OpQueue::Turn turn) {
      ran_.push_back(name);
      turns_.push_back(std::move(turn));
    };
  }

  EventLoop loop_ = *EventLoop::create();
  OpQueue queue_{loop_};
  std::vector<std::string> ran_;
  std::vector<OpQueue::Turn> turns_;
};

TEST_F(OpQueueTest, RunsAtOnceWhenIdle) {
  queue_.push("a", keep("a"));
  EXPECT_THAT(ran_, ElementsAre("a"));
  EXPECT_STREQ(queue_.current(), "a");
}

TEST_F(OpQueueTest, OneAtATimeInOrder) {
  queue_.push("a", keep("a"));
  queue_.push("b", keep("b"));
  queue_.push("c", keep("c"));
  turn();
  EXPECT_THAT(ran_, ElementsAre("a"));
  EXPECT_EQ(queue_.waiting(), 2U);
  turns_.clear();
  EXPECT_THAT(ran_, ElementsAre("a"));  // not from inside the drop
  turn();
  EXPECT_THAT(ran_, ElementsAre("a", "b"));
  turns_.clear();
  turn();
  EXPECT_THAT(ran_, ElementsAre("a", "b", "c"));
  turns_.clear();
  EXPECT_STREQ(queue_.current(), "");
}

TEST_F(OpQueueTest, NobodyOvertakesBetweenDropAndNext) {
  queue_.push("a", keep("a"));
  queue_.push("b", keep("b"));
  turns_.clear();
  queue_.push("c", keep("c"));
  turn();
  EXPECT_THAT(ran_, ElementsAre("a", "b"));
  turns_.clear();
  turn();
  EXPECT_THAT(ran_, ElementsAre("a", "b", "c"));
}

TEST_F(OpQueueTest, AnOperationThatForgetsItsTurnBlocksNobody) {
  queue_.push("a", [](const OpQueue::Turn&) {});
  queue_.push("b", keep("b"));
  turn();
  EXPECT_THAT(ran_, ElementsAre("b"));
}

TEST_F(OpQueueTest, TurnMayOutliveTheQueueAndWaitersAreDropped) {
  std::optional<OpQueue> queue(std::in_place, loop_);
  bool destroyed = false;
  struct Flag {
    explicit Flag(bool& target) : destroyed_flag(&target) {}
    Flag(Flag&& other) noexcept : destroyed_flag(std::exchange(other.destroyed_flag, nullptr)) {}
    Flag& operator=(Flag&&) = delete;
    ~Flag() {
      if (destroyed_flag != nullptr) *destroyed_flag = true;
    }
    bool* destroyed_flag;
  };
  queue->push("a", keep("a"));
  queue->push("b", [flag = Flag(destroyed)](const OpQueue::Turn&) {});
  queue.reset();
  EXPECT_TRUE(destroyed);
  turns_.clear();
  turn();
  EXPECT_THAT(ran_, ElementsAre("a"));
}

}  // namespace
}  // namespace icebox::shim
