// SPDX-License-Identifier: Apache-2.0
#include "shim/loop/event_loop.h"

#include <algorithm>
#include <cerrno>
#include <climits>
#include <string>

#include "oci/base/log.h"

namespace icebox::shim {
namespace {

class MonotonicClock final : public Clock {
 public:
  [[nodiscard]] TimePoint now() const override { return std::chrono::steady_clock::now(); }
};

constexpr std::size_t kReadyBatch = 64;

std::uint64_t make_token(std::uint32_t index, std::uint32_t generation) {
  return (static_cast<std::uint64_t>(generation) << 32) | index;
}

std::uint32_t index_of(std::uint64_t token) { return static_cast<std::uint32_t>(token); }
std::uint32_t generation_of(std::uint64_t token) { return static_cast<std::uint32_t>(token >> 32); }

}  // namespace

const Clock& monotonic_clock() {
  static const MonotonicClock clock;
  return clock;
}

Watch::Watch(Watch&& other) noexcept
    : loop_(std::exchange(other.loop_, nullptr)), token_(other.token_) {}

Watch& Watch::operator=(Watch&& other) noexcept {
  if (this != &other) {
    reset();
    loop_ = std::exchange(other.loop_, nullptr);
    token_ = other.token_;
  }
  return *this;
}

Result<void> Watch::set_interest(std::uint32_t events) {
  if (loop_ == nullptr) return {};
  return loop_->set_interest(token_, events);
}

void Watch::reset() {
  if (loop_ != nullptr) std::exchange(loop_, nullptr)->unwatch(token_);
}

Timer::Timer(Timer&& other) noexcept
    : loop_(std::exchange(other.loop_, nullptr)), key_(std::move(other.key_)) {}

Timer& Timer::operator=(Timer&& other) noexcept {
  if (this != &other) {
    reset();
    loop_ = std::exchange(other.loop_, nullptr);
    key_ = other.key_;
  }
  return *this;
}

void Timer::reset() {
  if (loop_ != nullptr) std::exchange(loop_, nullptr)->timers_.erase(key_);
}

bool Timer::active() const { return loop_ != nullptr && loop_->timers_.contains(key_); }

Result<EventLoop> EventLoop::create(const Clock& clock) {
  UniqueFd epoll(::epoll_create1(EPOLL_CLOEXEC));
  if (!epoll) return errno_error("epoll_create");
  return EventLoop(clock, std::move(epoll));
}

EventLoop::Slot* EventLoop::find(std::uint64_t token) {
  const std::uint32_t index = index_of(token);
  if (index >= slots_.size()) return nullptr;
  Slot& slot = slots_[index];
  return slot.generation == generation_of(token) && slot.fd >= 0 ? &slot : nullptr;
}

Result<Watch> EventLoop::watch(int fd, std::uint32_t events, const char* name, FdHandler handler) {
  std::uint32_t index = 0;
  if (free_slots_.empty()) {
    index = static_cast<std::uint32_t>(slots_.size());
    slots_.emplace_back();
  } else {
    index = free_slots_.back();
    free_slots_.pop_back();
  }
  Slot& slot = slots_[index];
  slot.fd = fd;
  slot.interest = 0;
  slot.name = name;
  slot.handler = std::move(handler);
  Watch watch(this, make_token(index, slot.generation));
  // On failure the Watch gives the slot back.
  ICEBOX_TRY(set_interest(watch.token_, events).context(std::string("watch ") + name));
  return watch;
}

Result<void> EventLoop::set_interest(std::uint64_t token, std::uint32_t events) {
  Slot* slot = find(token);
  if (slot == nullptr || slot->interest == events) return {};
  epoll_event event = {};
  event.events = events;
  event.data.u64 = token;
  // An fd with an empty mask would still report hang-ups: no interest means not being in the set.
  int operation = EPOLL_CTL_MOD;
  if (events == 0) operation = EPOLL_CTL_DEL;
  if (slot->interest == 0) operation = EPOLL_CTL_ADD;
  if (::epoll_ctl(epoll_.get(), operation, slot->fd, &event) != 0) return errno_error("epoll_ctl");
  slot->interest = events;
  return {};
}

void EventLoop::unwatch(std::uint64_t token) {
  Slot* slot = find(token);
  if (slot == nullptr) return;
  // Fails only when the owner has closed the fd already, against the contract; the generation
  // protects us then.
  if (slot->interest != 0) ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, slot->fd, nullptr);
  slot->fd = -1;
  slot->interest = 0;
  ++slot->generation;
  free_slots_.push_back(index_of(token));
  FdHandler handler = std::move(slot->handler);
  // It may be the one that is running.
  if (dispatching_) graveyard_.push_back(std::move(handler));
}

Timer EventLoop::after(Duration after, const char* name, Function function) {
  const Timer::Key key(now() + after, next_timer_++);
  timers_.emplace(key, Pending{name, std::move(function)});
  return {this, key};
}

void EventLoop::post(const char* name, Function function) {
  posted_.push_back({name, std::move(function)});
}

template <typename Call>
void EventLoop::timed(const char* name, Call call) {
  const TimePoint start = now();
  call();
  const Duration took = now() - start;
  if (took <= kSlowTurn) return;
  if (slow_) {
    slow_(name, took);
    return;
  }
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(took).count();
  log::warn("slow turn of the event loop", {{"handler", name}, {"ms", std::to_string(ms)}});
}

int EventLoop::wait_ms(std::optional<Duration> max_wait) const {
  if (!posted_.empty()) return 0;
  std::optional<Duration> wait = max_wait;
  if (!timers_.empty()) {
    const Duration due = timers_.begin()->first.first - now();
    wait = wait ? std::min(*wait, due) : due;
  }
  if (!wait) return -1;
  if (*wait <= Duration::zero()) return 0;
  // Rounded up: waking before a timer is due would only spin.
  const auto ms = std::chrono::ceil<std::chrono::milliseconds>(*wait).count();
  return static_cast<int>(std::min<std::int64_t>(ms, INT_MAX));
}

void EventLoop::dispatch_fds(int count) {
  for (int i = 0; i < count; ++i) {
    const epoll_event event = ready_[static_cast<std::size_t>(i)];
    Slot* slot = find(event.data.u64);
    if (slot == nullptr) continue;  // removed by an earlier handler of this turn
    // What set_interest() took back meanwhile is not delivered any more; errors and hang-ups always
    // are.
    const std::uint32_t events =
        slot->interest == 0 ? 0 : event.events & (slot->interest | EPOLLERR | EPOLLHUP);
    if (events != 0) timed(slot->name, [&] { slot->handler(events); });
  }
}

void EventLoop::expire_timers() {
  // One reading of the clock: a timer that re-arms itself at once waits for the next turn.
  const TimePoint limit = now();
  const std::uint64_t newest = next_timer_;
  auto it = timers_.begin();
  while (it != timers_.end() && it->first.first <= limit) {
    if (it->first.second >= newest) {
      ++it;
      continue;
    }
    Pending pending = std::move(it->second);
    timers_.erase(it);
    timed(pending.name, [&] { pending.function(); });
    it = timers_.begin();
  }
}

void EventLoop::run_posted() {
  std::vector<Pending> batch = std::move(posted_);
  posted_.clear();
  for (Pending& pending : batch) {
    timed(pending.name, [&] { pending.function(); });
    pending.function = nullptr;
  }
  // Most turns post at most a few: keep the storage.
  if (posted_.empty()) {
    batch.clear();
    posted_ = std::move(batch);
  }
}

Result<void> EventLoop::turn(std::optional<Duration> max_wait) {
  ready_.resize(kReadyBatch);
  const int count =
      ::epoll_wait(epoll_.get(), ready_.data(), static_cast<int>(kReadyBatch), wait_ms(max_wait));
  if (count < 0 && errno != EINTR) return errno_error("epoll_wait");
  dispatching_ = true;
  dispatch_fds(count);
  expire_timers();
  run_posted();
  dispatching_ = false;
  // Destructors of handlers may remove further watches: those are destroyed on the spot, nothing is
  // running now.
  std::vector<FdHandler> dead = std::move(graveyard_);
  graveyard_.clear();
  return {};
}

Result<void> EventLoop::run() {
  while (!stopped_) ICEBOX_TRY(turn());
  stopped_ = false;
  return {};
}

}  // namespace icebox::shim
