// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "oci/base/result.h"
#include "oci/base/unique_fd.h"
#include "shim/loop/event_loop.h"

namespace icebox::shim {

// Copies bytes from one fd to another on the loop: pipe to FIFO or file, FIFO to pipe, pseudo
// terminal either way. Back pressure is a chain: while the sink is full the source is not read, so
// the writer behind it blocks, as it would without a copier. Memory is one transfer buffer shared
// by all streams and, only while a sink is full, what did not fit (at most kChunk bytes).
//
// It ends, closing every fd it owns in that moment, when the source is at its end (EOF, or EIO of a
// pseudo terminal whose last user closed it) and all is delivered, or on close(). A sink that fails
// (EPIPE, ENOSPC) ends a stream with SinkFailure::end; with SinkFailure::discard it is logged once
// and the source is drained, so that a full disk never blocks the container.
class Stream {
 public:
  enum class SinkFailure { end, discard };
  struct Config {
    const char* name = "stream";  // literal; for logs and slow-turn warnings
    UniqueFd source;
    UniqueFd sink;
    UniqueFd held;  // kept open until the stream ends, e.g. the second end of a FIFO
    SinkFailure on_sink_failure = SinkFailure::end;
    UniqueFunction<void()> on_end;  // once, from the loop; the Stream may be destroyed inside it
  };
  static constexpr std::size_t kChunk = 32 * 1024;

  // Makes source and sink non-blocking and starts. `loop` is borrowed and must outlive the stream.
  static Result<std::unique_ptr<Stream>> start(EventLoop& loop, Config config);
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  ~Stream() = default;

  // Takes what the source holds at this moment, delivers it as fast as the sink allows, then ends,
  // without waiting for the source's end: for a pseudo terminal whose main process is gone while
  // others keep it open.
  void finish();

  // Closes the held fd now: for a stdin FIFO, the end of input comes once the client's end is
  // closed too. Idempotent.
  void release_held() { held_.reset(); }

  // Ends now; what was not delivered is dropped. on_end is not called. Idempotent.
  void close();

  [[nodiscard]] bool ended() const { return ended_; }
  [[nodiscard]] std::uint64_t copied() const { return copied_; }

 private:
  Stream(EventLoop& loop, Config config);
  void pull();
  void deliver(const char* data, std::size_t size);
  std::size_t write_some(const char* data, std::size_t size);
  void sink_failed(int err);
  void stall(const char* data, std::size_t size);
  void flush();
  void resume();
  void end();

  EventLoop* loop_;
  const char* name_;
  SinkFailure on_sink_failure_;
  UniqueFunction<void()> on_end_;
  UniqueFd source_;
  UniqueFd sink_;
  UniqueFd held_;
  Watch source_watch_;  // off while the sink is full
  Watch sink_watch_;    // on only then
  Timer finish_;
  std::vector<char> pending_;  // what the sink did not take
  std::size_t pending_offset_ = 0;
  std::uint64_t copied_ = 0;
  std::size_t finish_budget_ = 0;  // bytes still to take after finish()
  bool finishing_ = false;
  bool source_ended_ = false;
  bool discarding_ = false;
  bool ended_now_ = false;  // the sink failed and nothing can be delivered
  bool ended_ = false;
};

}  // namespace icebox::shim
