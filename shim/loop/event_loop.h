// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/epoll.h>

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "oci/base/result.h"
#include "oci/base/unique_fd.h"
#include "shim/loop/clock.h"
#include "shim/loop/unique_function.h"

namespace icebox::shim {

class EventLoop;

// A registration of one fd with the loop. Dropping it ends the registration; the handler is not
// called again, even when its event was already fetched. The fd is borrowed: drop the Watch before
// closing the fd (declare it after the UniqueFd it belongs to). Must not outlive the loop.
class Watch {
 public:
  Watch() = default;
  Watch(Watch&& other) noexcept;
  Watch& operator=(Watch&& other) noexcept;
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;
  ~Watch() { reset(); }

  // Changes the epoll events waited for. 0 means none at all, not even a hang-up, so that a paused
  // stream whose peer went away does not spin the loop.
  [[nodiscard]] Result<void> set_interest(std::uint32_t events);

  // Ends the registration. Safe inside its own handler: the handler object is destroyed after the
  // turn.
  void reset();
  [[nodiscard]] bool active() const { return loop_ != nullptr; }

 private:
  friend class EventLoop;
  Watch(EventLoop* loop, std::uint64_t token) : loop_(loop), token_(token) {}
  EventLoop* loop_ = nullptr;
  std::uint64_t token_ = 0;
};

// A one-shot deadline. Dropping it cancels it. Must not outlive the loop.
class Timer {
 public:
  Timer() = default;
  Timer(Timer&& other) noexcept;
  Timer& operator=(Timer&& other) noexcept;
  Timer(const Timer&) = delete;
  Timer& operator=(const Timer&) = delete;
  ~Timer() { reset(); }

  // Cancels it; safe inside its own handler.
  void reset();
  // Whether it is still to fire.
  [[nodiscard]] bool active() const;

 private:
  friend class EventLoop;
  using Key = std::pair<TimePoint, std::uint64_t>;
  Timer(EventLoop* loop, Key key) : loop_(loop), key_(key) {}
  EventLoop* loop_ = nullptr;
  Key key_;
};

// The daemon's one thread: level-triggered epoll, timers, posted functions. Everything in shim/
// runs inside one of its turns, so nothing needs a lock and nothing may block. Order within a turn:
// fds as the kernel lists them, then due timers by time, then what was posted before or during the
// turn so far (what a posted function posts waits for the next turn). A handler that runs longer
// than 50 ms is logged by name. Not thread-safe: for the creating thread only.
class EventLoop {
 public:
  using FdHandler = UniqueFunction<void(std::uint32_t events)>;
  using Function = UniqueFunction<void()>;
  using SlowHandler = UniqueFunction<void(std::string_view name, Duration took)>;

  // `clock` is borrowed and must outlive the loop.
  static Result<EventLoop> create(const Clock& clock = monotonic_clock());
  EventLoop(EventLoop&&) = default;  // only before the first registration
  EventLoop& operator=(EventLoop&&) = delete;
  EventLoop(const EventLoop&) = delete;
  EventLoop& operator=(const EventLoop&) = delete;
  ~EventLoop() = default;

  // Calls `handler` with the ready events (EPOLLIN, EPOLLOUT, EPOLLHUP, EPOLLERR, ...) while any of
  // `events` holds. `name` must be a literal; it names the handler in slow-turn warnings. Fails
  // with sys_errno EPERM for what epoll cannot watch (regular files, /dev/null): those are always
  // ready.
  [[nodiscard]] Result<Watch> watch(int fd, std::uint32_t events, const char* name,
                                    FdHandler handler);

  // Calls `function` once, `after` from now (at once in the next turn when not positive).
  [[nodiscard]] Timer after(Duration after, const char* name, Function function);

  // Calls `function` at the end of this turn, or in the next one when none is running. The way to
  // answer a caller without calling back into it. Cannot be cancelled.
  void post(const char* name, Function function);

  // Turns until stop(). Fails only when epoll itself fails.
  [[nodiscard]] Result<void> run();

  // One turn: waits at most `max_wait` (for ever when absent and nothing is due) and runs what is
  // ready. Blocks.
  [[nodiscard]] Result<void> turn(std::optional<Duration> max_wait = std::nullopt);

  // run() returns after the current turn (a run() that has not begun yet: at once); what is posted
  // but not run yet stays.
  void stop() { stopped_ = true; }

  [[nodiscard]] TimePoint now() const { return clock_->now(); }

  // Replaces the log line about handlers that ran longer than kSlowTurn.
  void on_slow(SlowHandler handler) { slow_ = std::move(handler); }

  static constexpr Duration kSlowTurn = std::chrono::milliseconds(50);

 private:
  friend class Watch;
  friend class Timer;
  struct Slot {
    int fd = -1;
    std::uint32_t interest = 0;
    std::uint32_t generation = 0;
    const char* name = "";
    FdHandler handler;
  };
  struct Pending {
    const char* name;
    Function function;
  };

  EventLoop(const Clock& clock, UniqueFd epoll) : clock_(&clock), epoll_(std::move(epoll)) {}
  Slot* find(std::uint64_t token);
  Result<void> set_interest(std::uint64_t token, std::uint32_t events);
  void unwatch(std::uint64_t token);
  void dispatch_fds(int count);
  void expire_timers();
  void run_posted();
  [[nodiscard]] int wait_ms(std::optional<Duration> max_wait) const;
  template <typename Call>
  void timed(const char* name, Call call);

  const Clock* clock_;
  UniqueFd epoll_;
  std::deque<Slot> slots_;  // stable addresses; index and generation make the token
  std::vector<std::uint32_t> free_slots_;
  std::vector<FdHandler> graveyard_;  // handlers removed during a turn, destroyed at its end
  std::map<Timer::Key, Pending> timers_;
  std::uint64_t next_timer_ = 0;
  std::vector<Pending> posted_;
  std::vector<epoll_event> ready_;
  bool dispatching_ = false;
  bool stopped_ = false;
  SlowHandler slow_;
};

}  // namespace icebox::shim
