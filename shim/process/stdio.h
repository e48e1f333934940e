// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "oci/base/result.h"
#include "oci/base/subprocess.h"
#include "shim/loop/event_loop.h"
#include "shim/process/stdio_target.h"
#include "shim/process/supervisor.h"

namespace icebox::shim {

// The stdio of one process as asked for in Create or Exec.
struct StdioSpec {
  std::string container_id;  // of the container, for messages
  std::string process_id;    // container id for init, exec id for an exec: CONTAINER_ID of a logger
  std::string name_space;    // CONTAINER_NAMESPACE of a logger
  bool terminal = false;
  std::string in, out, err;
  std::optional<std::pair<uid_t, gid_t>>
      owner;  // Options.io_uid/io_gid: owner of the pipe ends given to the process
};

// Standard input, output and error of one process, from its runtime call to its Delete:
//
//   auto io = ICEBOX_TRY(ProcessIo::open(loop, supervisor, spec));   // opens client FIFOs, makes
//   pipes, starts logger io->when_ready([..](Result<void> ready) {                        // logger
//   says it listens; at once without one
//     io->attach(command);  + "--console-socket", *io->console_socket()
//     tools.start(command, ...);  io->runtime_started();             // drops the process's pipe
//     ends here
//   });
//   ... io->process_exited();  io->drain(10s, [..] { reply to Delete });
//
// Output FIFOs are held at both ends, so that a client that leaves gives the container no SIGPIPE
// and may come back; they are closed the moment the process's output has ended, as containerd's
// client waits for that before it sends Delete. Nothing here blocks: all opens are non-blocking.
class ProcessIo {
 public:
  // Fails with not_found and the path when a FIFO is missing, invalid_argument for an unknown
  // scheme. `loop` and `supervisor` are borrowed and must outlive this.
  static Result<std::unique_ptr<ProcessIo>> open(EventLoop& loop, Supervisor& supervisor,
                                                 StdioSpec spec);
  ProcessIo(const ProcessIo&) = delete;
  ProcessIo& operator=(const ProcessIo&) = delete;
  // Closes all at once, dropping undelivered output; a logger gets SIGTERM now and SIGKILL 12 s
  // later.
  ~ProcessIo();

  // Calls `ready` once, from the loop: at once unless a binary logger must first say that it
  // listens (its ready byte; for `binary` the end of the pipe counts too). unavailable when the
  // logger ended or was silent for 10 s.
  void when_ready(UniqueFunction<void(Result<void>)> ready);

  // Maps fds 0, 1 and 2 of the runtime's command to the process's pipe ends or /dev/null. With a
  // terminal it maps nothing: the runtime makes the process's stdio itself, and its own may be
  // captured. To be used before runtime_started().
  void attach(Command& command) const;

  // Path for --console-socket; absent without a terminal and once the terminal has arrived.
  [[nodiscard]] std::optional<std::string> console_socket() const;

  // To call right after the runtime was spawned, on success and failure alike: closes the process's
  // pipe ends here, without which the end of the output could never be seen.
  void runtime_started();

  // Calls `done` when the terminal's master has arrived (at once without a terminal), or with the
  // Error. To call after the runtime returned; deadline_exceeded after `timeout`.
  void when_console(Duration timeout, UniqueFunction<void(Result<void>)> done);

  // Window size in characters; success without effect when there is no terminal.
  [[nodiscard]] Result<void> resize(std::uint32_t columns, std::uint32_t rows) const;

  // CloseIO: closes the daemon's own write end of the stdin FIFO. Idempotent.
  void close_stdin();

  // The process was reaped: stops stdin; with a terminal also ends the output after what is there
  // now. Pipes run on until their last writer closes.
  void process_exited();

  // Calls `done` once, from the loop, when all output has been delivered and every client FIFO is
  // closed, or after `timeout`, when the rest is dropped and closed.
  void drain(Duration timeout, UniqueFunction<void()> done);

  // Whether there is no output stream left.
  [[nodiscard]] bool drained() const;

 private:
  struct State;
  explicit ProcessIo(std::shared_ptr<State> state);
  std::shared_ptr<State> state_;  // shared with callbacks on the loop, which hold it weakly
};

}  // namespace icebox::shim
