// SPDX-License-Identifier: Apache-2.0
#include "shim/process/stream.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "oci/base/log.h"

namespace icebox::shim {
namespace {

// After finish(): more than any pipe or pseudo terminal holds by default, so all that was written
// before is taken, and a process that keeps writing cannot keep the stream alive.
constexpr std::size_t kFinishBudget = 1 << 20;

Result<void> set_non_blocking(int fd) {
  const int flags = ::fcntl(fd, F_GETFL);
  if (flags < 0 || ::fcntl(fd, F_SETFL, flags | O_NONBLOCK) != 0) return errno_error("fcntl");
  return {};
}

}  // namespace

Stream::Stream(EventLoop& loop, Config config)
    : loop_(&loop),
      name_(config.name),
      on_sink_failure_(config.on_sink_failure),
      on_end_(std::move(config.on_end)),
      source_(std::move(config.source)),
      sink_(std::move(config.sink)),
      held_(std::move(config.held)) {}

Result<std::unique_ptr<Stream>> Stream::start(EventLoop& loop, Config config) {
  std::unique_ptr<Stream> stream(new Stream(loop, std::move(config)));
  ICEBOX_TRY(set_non_blocking(stream->source_.get()));
  ICEBOX_TRY(set_non_blocking(stream->sink_.get()));
  Stream* self = stream.get();
  stream->source_watch_ = ICEBOX_TRY(loop.watch(stream->source_.get(), EPOLLIN, stream->name_,
                                                [self](std::uint32_t) { self->pull(); }));
  return stream;
}

void Stream::pull() {
  // On the stack: one buffer for all streams, and none while nothing moves.
  std::array<char, kChunk> buffer;
  ssize_t n = 0;
  do {
    n = ::read(source_.get(), buffer.data(), buffer.size());
  } while (n < 0 && errno == EINTR);
  if (n < 0 && errno == EAGAIN) {
    if (finishing_) end();
    return;
  }
  if (n <= 0) {
    // EIO: no process has the pseudo terminal open any more.
    if (n < 0 && errno != EIO) {
      log::warn("reading a stream failed", {{"stream", name_}, {"error", std::strerror(errno)}});
    }
    end();
    return;
  }
  const auto size = static_cast<std::size_t>(n);
  if (finishing_) {
    finish_budget_ -= std::min(size, finish_budget_);
    source_ended_ = finish_budget_ == 0;
  }
  deliver(buffer.data(), size);
}

void Stream::deliver(const char* data, std::size_t size) {
  const std::size_t written = discarding_ ? size : write_some(data, size);
  if (ended_now_) {
    end();
    return;
  }
  if (written < size) {
    stall(data + written, size - written);
    return;
  }
  resume();
}

std::size_t Stream::write_some(const char* data, std::size_t size) {
  std::size_t written = 0;
  while (written < size) {
    const ssize_t n = ::write(sink_.get(), data + written, size - written);
    if (n >= 0) {
      written += static_cast<std::size_t>(n);
      copied_ += static_cast<std::uint64_t>(n);
      continue;
    }
    if (errno == EINTR) continue;
    if (errno == EAGAIN) break;
    sink_failed(errno);
    return discarding_ ? size : written;
  }
  return written;
}

void Stream::sink_failed(int err) {
  if (on_sink_failure_ == SinkFailure::end) {
    ended_now_ = true;
    return;
  }
  discarding_ = true;
  log::warn("writing a stream failed, its output is dropped from here on",
            {{"stream", name_}, {"error", std::strerror(err)}});
}

void Stream::stall(const char* data, std::size_t size) {
  if (data != pending_.data() + pending_offset_) {
    pending_.assign(data, data + size);
    pending_offset_ = 0;
  }
  auto paused = source_watch_.set_interest(0);
  if (paused.ok() && !sink_watch_.active()) {
    auto watch = loop_->watch(sink_.get(), EPOLLOUT, name_, [this](std::uint32_t) { flush(); });
    if (watch.ok()) {
      sink_watch_ = std::move(watch).value();
    } else {
      paused = std::move(watch).error();
    }
  }
  if (paused.ok()) return;
  log::error("stream lost", {{"stream", name_}, {"error", paused.error().message}});
  end();
}

void Stream::flush() {
  const std::size_t size = pending_.size() - pending_offset_;
  const std::size_t written = write_some(pending_.data() + pending_offset_, size);
  if (ended_now_) {
    end();
    return;
  }
  pending_offset_ += written;
  if (written < size) return;
  pending_ = {};
  pending_offset_ = 0;
  sink_watch_.reset();
  resume();
}

// Nothing is pending: read on, or end when there is nothing more to read.
void Stream::resume() {
  if (source_ended_) {
    end();
    return;
  }
  if (finishing_) {
    // Not by readiness: an idle source would never call.
    finish_ = loop_->after(Duration::zero(), name_, [this] { pull(); });
    return;
  }
  const auto resumed = source_watch_.set_interest(EPOLLIN);
  if (!resumed.ok()) {
    log::error("stream lost", {{"stream", name_}, {"error", resumed.error().message}});
    end();
  }
}

void Stream::finish() {
  if (ended_ || finishing_) return;
  finishing_ = true;
  finish_budget_ = kFinishBudget;
  source_watch_.reset();
  // Later, from the loop: on_end must not run inside the caller.
  if (!sink_watch_.active()) resume();
}

void Stream::end() {
  UniqueFunction<void()> on_end = std::move(on_end_);
  close();
  if (on_end) on_end();  // may destroy this
}

void Stream::close() {
  ended_ = true;
  on_end_ = nullptr;
  finish_.reset();
  source_watch_.reset();
  sink_watch_.reset();
  pending_ = {};
  pending_offset_ = 0;
  source_.reset();
  sink_.reset();
  held_.reset();
}

}  // namespace icebox::shim
