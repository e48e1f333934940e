// SPDX-License-Identifier: Apache-2.0
#include "shim/loop/event_loop.h"

#include <cerrno>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/unit/shim/loop/testing.h"

namespace icebox::shim {
namespace {

using namespace std::chrono_literals;
using testing::make_loop;
using testing::make_pipe;
using testing::put;
using testing::turn_times;
using testing::VirtualClock;

Watch must_watch(EventLoop& loop, int fd, std::uint32_t events, EventLoop::FdHandler handler) {
  auto watch = loop.watch(fd, events, "test", std::move(handler));
  EXPECT_TRUE(watch.ok()) << watch.error().message;
  return std::move(watch).value();
}

TEST(EventLoop, CallsTheHandlerWhileTheFdIsReady) {
  auto loop = make_loop();
  auto pipe = make_pipe();
  int calls = 0;
  const Watch watch = must_watch(*loop, pipe.read.get(), EPOLLIN, [&](std::uint32_t events) {
    EXPECT_EQ(events, static_cast<std::uint32_t>(EPOLLIN));
    ++calls;
  });
  turn_times(*loop, 1);
  EXPECT_EQ(calls, 0);
  put(pipe.write, "x");
  turn_times(*loop, 2);
  EXPECT_EQ(calls, 2);  // level-triggered: nobody has read it
}

TEST(EventLoop, RefusesWhatEpollCannotWatch) {
  auto loop = make_loop();
  const UniqueFd null(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  const auto watch = loop->watch(null.get(), EPOLLIN, "test", [](std::uint32_t) {});
  ASSERT_FALSE(watch.ok());
  EXPECT_EQ(watch.error().sys_errno, EPERM);
  // The slot went back: a later registration works.
  auto pipe = make_pipe();
  EXPECT_TRUE(loop->watch(pipe.read.get(), EPOLLIN, "test", [](std::uint32_t) {}).ok());
}

TEST(EventLoop, HandlerThatRemovesItselfIsDestroyedAfterItReturned) {
  struct Probe {
    explicit Probe(bool* flag) : destroyed(flag) {}
    ~Probe() { *destroyed = true; }
    Probe(const Probe&) = delete;
    Probe& operator=(const Probe&) = delete;
    bool* destroyed;
  };
  auto loop = make_loop();
  auto pipe = make_pipe();
  put(pipe.write, "x");
  bool gone = false;
  bool gone_inside = true;
  Watch watch;
  watch = must_watch(
      *loop, pipe.read.get(), EPOLLIN,
      [&watch, &gone, &gone_inside, probe = std::make_unique<Probe>(&gone)](std::uint32_t) {
        watch.reset();
        gone_inside = gone;
      });
  turn_times(*loop, 1);
  EXPECT_FALSE(gone_inside);
  EXPECT_TRUE(gone);
}

TEST(EventLoop, WatchRemovedByAnEarlierHandlerOfTheTurnIsNotCalled) {
  auto loop = make_loop();
  auto first = make_pipe();
  auto second = make_pipe();
  put(first.write, "x");
  put(second.write, "x");
  int calls = 0;
  Watch a;
  Watch b;
  a = must_watch(*loop, first.read.get(), EPOLLIN, [&](std::uint32_t) {
    ++calls;
    b.reset();
  });
  b = must_watch(*loop, second.read.get(), EPOLLIN, [&](std::uint32_t) {
    ++calls;
    a.reset();
  });
  turn_times(*loop, 3);
  // Whichever came first removed the other, which had been fetched in the same batch.
  EXPECT_EQ(calls, 3);
  EXPECT_NE(a.active(), b.active());
}

TEST(EventLoop, FdReusedWithinATurnDoesNotGetTheOldEvent) {
  auto loop = make_loop();
  auto first = make_pipe();
  auto second = make_pipe();
  put(first.write, "x");
  put(second.write, "x");
  int stale_calls = 0;
  Watch a;
  Watch b;
  Watch reused;
  UniqueFd fresh;
  // Replaces `victim`'s fd by a silent one of the same number, with a slot that is reused as well.
  const auto replace = [&](Watch& victim, testing::Pipe& pipe) {
    victim.reset();
    const int number = pipe.read.get();
    auto silent = make_pipe();
    pipe.read.reset();
    ASSERT_EQ(::dup2(silent.read.get(), number), number);
    fresh.reset(number);
    pipe.write = std::move(silent.write);
    reused = must_watch(*loop, number, EPOLLIN, [&](std::uint32_t) { ++stale_calls; });
  };
  a = must_watch(*loop, first.read.get(), EPOLLIN, [&](std::uint32_t) {
    if (b.active()) replace(b, second);
  });
  b = must_watch(*loop, second.read.get(), EPOLLIN, [&](std::uint32_t) {
    if (a.active()) replace(a, first);
  });
  turn_times(*loop, 3);
  EXPECT_TRUE(reused.active());
  EXPECT_EQ(stale_calls, 0);
}

TEST(EventLoop, NoInterestMeansNotEvenAHangUp) {
  auto loop = make_loop();
  auto pipe = make_pipe();
  int calls = 0;
  Watch watch = must_watch(*loop, pipe.read.get(), EPOLLIN, [&](std::uint32_t events) {
    EXPECT_NE(events & EPOLLHUP, 0U);
    ++calls;
  });
  ASSERT_TRUE(watch.set_interest(0).ok());
  pipe.write.reset();
  turn_times(*loop, 3);
  EXPECT_EQ(calls, 0);
  ASSERT_TRUE(watch.set_interest(EPOLLIN).ok());
  turn_times(*loop, 1);
  EXPECT_EQ(calls, 1);
}

TEST(EventLoop, InterestTakenBackWithinTheTurnIsNotDelivered) {
  auto loop = make_loop();
  auto first = make_pipe();
  auto second = make_pipe();
  put(first.write, "x");
  put(second.write, "x");
  int calls = 0;
  Watch a;
  Watch b;
  a = must_watch(*loop, first.read.get(), EPOLLIN, [&](std::uint32_t) {
    ++calls;
    EXPECT_TRUE(b.set_interest(0).ok());
  });
  b = must_watch(*loop, second.read.get(), EPOLLIN, [&](std::uint32_t) {
    ++calls;
    EXPECT_TRUE(a.set_interest(0).ok());
  });
  turn_times(*loop, 1);
  EXPECT_EQ(calls, 1);
}

TEST(EventLoop, HandlersMayAddManyWatches) {
  auto loop = make_loop();
  auto pipe = make_pipe();
  put(pipe.write, "x");
  std::vector<testing::Pipe> pipes;
  std::vector<Watch> watches;
  int calls = 0;
  Watch watch;
  watch = must_watch(*loop, pipe.read.get(), EPOLLIN, [&](std::uint32_t) {
    for (int i = 0; i < 200; ++i) {
      pipes.push_back(make_pipe());
      put(pipes.back().write, "x");
      watches.push_back(must_watch(*loop, pipes.back().read.get(), EPOLLIN, [&, i](std::uint32_t) {
        ++calls;
        watches[static_cast<std::size_t>(i)].reset();
      }));
    }
    watch.reset();
  });
  turn_times(*loop, 20);
  EXPECT_EQ(calls, 200);
}

TEST(EventLoop, MovedWatchAndTimerStayRegistered) {
  auto loop = make_loop();
  auto pipe = make_pipe();
  put(pipe.write, "x");
  int calls = 0;
  Watch watch = must_watch(*loop, pipe.read.get(), EPOLLIN, [&](std::uint32_t) { ++calls; });
  Watch moved = std::move(watch);
  EXPECT_FALSE(watch.active());  // NOLINT(bugprone-use-after-move): what is tested
  EXPECT_TRUE(moved.active());
  turn_times(*loop, 1);
  EXPECT_EQ(calls, 1);
  moved = Watch();
  turn_times(*loop, 1);
  EXPECT_EQ(calls, 1);
}

TEST(Timers, FireInOrderOfTimeOnceEach) {
  const auto clock = std::make_unique<VirtualClock>();
  auto loop = make_loop(*clock);
  std::string order;
  const Timer c = loop->after(30ms, "c", [&] { order += 'c'; });
  const Timer a = loop->after(10ms, "a", [&] { order += 'a'; });
  const Timer b = loop->after(10ms, "b", [&] { order += 'b'; });
  turn_times(*loop, 1);
  EXPECT_EQ(order, "");
  clock->advance(9999us);
  turn_times(*loop, 1);
  EXPECT_EQ(order, "");
  clock->advance(1us);
  turn_times(*loop, 2);
  EXPECT_EQ(order, "ab");
  EXPECT_FALSE(a.active());
  EXPECT_TRUE(c.active());
  clock->advance(1h);
  turn_times(*loop, 2);
  EXPECT_EQ(order, "abc");
}

TEST(Timers, CancelledTimersDoNotFire) {
  VirtualClock clock;
  auto loop = make_loop(clock);
  int calls = 0;
  Timer victim;
  Timer first = loop->after(1ms, "first", [&] {
    ++calls;
    victim.reset();
  });
  victim = loop->after(2ms, "victim", [&] { calls += 100; });
  {
    const Timer dropped = loop->after(1ms, "dropped", [&] { calls += 1000; });
  }
  clock.advance(5ms);
  turn_times(*loop, 2);
  EXPECT_EQ(calls, 1);
}

TEST(Timers, OneThatRearmsItselfAtOnceRunsOnceATurn) {
  VirtualClock clock;
  auto loop = make_loop(clock);
  int calls = 0;
  Timer timer;
  EventLoop::Function again;
  const std::function<void()> rearm = [&] {
    ++calls;
    timer = loop->after(0ms, "again", [&] { rearm(); });
  };
  timer = loop->after(0ms, "again", [&] { rearm(); });
  turn_times(*loop, 3);
  EXPECT_EQ(calls, 3);
}

TEST(Timers, TurnWaitsForTheNextOneAndNotLess) {
  auto loop = make_loop();
  bool fired = false;
  const auto start = std::chrono::steady_clock::now();
  const Timer timer = loop->after(20ms, "test", [&] { fired = true; });
  ASSERT_TRUE(loop->turn().ok());
  EXPECT_TRUE(fired);  // one turn was enough: it did not wake early
  EXPECT_GE(std::chrono::steady_clock::now() - start, 20ms);
}

TEST(Posts, RunInOrderAfterFdsAndTimersAndTheirOwnPostsWait) {
  VirtualClock clock;
  auto loop = make_loop(clock);
  auto pipe = make_pipe();
  put(pipe.write, "x");
  std::string order;
  loop->post("test", [&] {
    order += 'p';
    loop->post("test", [&] { order += 'q'; });
  });
  loop->post("test", [&] { order += 'P'; });
  const Timer timer = loop->after(0ms, "test", [&] { order += 't'; });
  const Watch watch = must_watch(*loop, pipe.read.get(), EPOLLIN, [&](std::uint32_t) {
    order += 'f';
    testing::get(pipe.read);
    loop->post("test", [&] { order += 'F'; });
  });
  turn_times(*loop, 1);
  EXPECT_EQ(order, "ftpPF");
  turn_times(*loop, 1);
  EXPECT_EQ(order, "ftpPFq");
}

TEST(Posts, KeepATurnFromBlocking) {
  auto loop = make_loop();
  bool ran = false;
  loop->post("test", [&] { ran = true; });
  ASSERT_TRUE(loop->turn().ok());  // would wait for ever
  EXPECT_TRUE(ran);
}

TEST(Run, EndsAfterTheTurnThatStoppedIt) {
  auto loop = make_loop();
  std::string order;
  loop->post("test", [&] {
    loop->stop();
    order += 'a';
  });
  loop->post("test", [&] { order += 'b'; });
  ASSERT_TRUE(loop->run().ok());
  EXPECT_EQ(order, "ab");
}

TEST(Run, StopBeforeRunIsNotLost) {
  auto loop = make_loop();
  loop->stop();
  ASSERT_TRUE(loop->run().ok());
}

TEST(SlowTurns, AreReportedWithTheHandlersName) {
  VirtualClock clock;
  auto loop = make_loop(clock);
  std::vector<std::string> reports;
  loop->on_slow([&](std::string_view name, Duration took) {
    reports.push_back(std::string(name) + " " + std::to_string(took / 1ms));
  });
  loop->post("exactly at the limit", [&] { clock.advance(EventLoop::kSlowTurn); });
  loop->post("posted", [&] { clock.advance(51ms); });
  turn_times(*loop, 1);
  const Timer timer = loop->after(0ms, "timer", [&] { clock.advance(70ms); });
  turn_times(*loop, 1);
  auto pipe = make_pipe();
  put(pipe.write, "x");
  const auto watch =
      loop->watch(pipe.read.get(), EPOLLIN, "fd", [&](std::uint32_t) { clock.advance(90ms); });
  turn_times(*loop, 1);
  EXPECT_EQ(reports, (std::vector<std::string>{"posted 51", "timer 70", "fd 90"}));
}

}  // namespace
}  // namespace icebox::shim
