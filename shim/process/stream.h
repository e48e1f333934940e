// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "oci/base/result.h"
#include "oci/base/unique_fd.h"
#include "shim/loop/event_loop.h"

namespace icebox::shim {

// Copies bytes from one fd to another on the loop: pipe to FIFO or file, FIFO to pipe, pseudo terminal either way.
// Back pressure is a chain: while the sink is full the source is not read, so the writer behind it blocks, as it would
// without a copier. Memory is one transfer buffer shared by all streams and, only while a sink is full, what did not
// fit (at most kChunk bytes).
//
// It ends, closing every fd it owns in that moment, when the source is at its end (EOF, or EIO of a pseudo terminal
// whose last user closed it) and all is delivered, or on close(). A sink that fails (EPIPE, ENOSPC) ends a stream with
// SinkFailure::end; with SinkFailure::discard it is logged once and the source is drained, so that a full disk never
// blocks the container.
class Stream {
 public:
  enum class SinkFailure { end, discard };
  struct Config {
    const char* name = "stream";  // literal; for logs and slow-turn warnings
    UniqueFd source;
    UniqueFd sink;
    UniqueFd held;                // kept open until the stream ends, e.g. the second end of a FIFO
    SinkFailure on_sink_failure = SinkFailure::end;
    UniqueFunction<void()> on_end;  // called once, from the loop; the Stream may be destroyed inside it
  };
  static constexpr std::size_t kChunk = 64 * 1024;

  // Makes source and sink non-blocking and starts. `loop` is borrowed and must outlive the stream.
  static Result<std::unique_ptr<Stream>> start(EventLoop& loop, Config config);
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  ~Stream() = default;

  // Takes what the source holds at this moment, delivers it as fast as the sink allows, then ends, without waiting for
  // the source's end: for a pseudo terminal whose main process is gone while others keep it open.
  void finish();

  // Closes the held fd now: for a stdin FIFO, the end of input comes once the client's end is closed too. Idempotent.
  void release_held() { held_.reset(); }

  // Ends now; what was not delivered is dropped. on_end is not called. Idempotent.
  void close();

  [[nodiscard]] bool ended() const { return ended_; }
  [[nodiscard]] std::uint64_t copied() const { return copied_; }

 private:
  Stream(EventLoop& loop, Config config);
  Result<void> begin();
  void on_source(std::uint32_t events);
  void on_sink(std::uint32_t events);
  bool pull();
  bool push(const char* data, std::size_t size);
  void stall(const char* data, std::size_t size);
  void sink_failed(int err);
  void end();

  EventLoop* loop_;
  Config config_;
  UniqueFd source_;
  UniqueFd sink_;
  UniqueFd held_;
  Watch source_watch_;
  Watch sink_watch_;
  std::vector<char> pending_;
  std::size_t pending_offset_ = 0;
  std::uint64_t copied_ = 0;
  bool finishing_ = false;
  bool discarding_ = false;
  bool ended_ = false;
};

}  // namespace icebox::shim
