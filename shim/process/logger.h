// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "oci/base/result.h"
#include "oci/base/unique_fd.h"
#include "shim/loop/event_loop.h"
#include "shim/process/stdio_target.h"
#include "shim/process/supervisor.h"

namespace icebox::shim {

// A program that consumes a process's output (binary:// stdio). It gets the pipes' read ends as fds
// 3 (stdout) and 4 (stderr), a ready pipe as fd 5, its parameters as arguments, and nothing in its
// environment but CONTAINER_ID and CONTAINER_NAMESPACE.
class Logger {
 public:
  struct Config {
    StdioTarget target;
    std::string process_id;
    std::string name_space;
    UniqueFd out;
    UniqueFd err;
  };

  // Fails when the program cannot be started. Both are borrowed and must outlive the program.
  static Result<std::unique_ptr<Logger>> start(EventLoop& loop, Supervisor& supervisor,
                                               Config config);
  Logger(const Logger&) = delete;
  Logger& operator=(const Logger&) = delete;
  // SIGTERM now, SIGKILL 12 s later if it is still there. It is reaped either way.
  ~Logger();

  // Calls `ready` once, from the loop, when the program has written its byte; for `binary` the end
  // of the pipe counts too. unavailable when it ended before or was silent for 10 s.
  void when_ready(UniqueFunction<void(Result<void>)> ready);

 private:
  struct State;
  explicit Logger(std::shared_ptr<State> state) : state_(std::move(state)) {}
  std::shared_ptr<State> state_;  // shared with the exit handler: the kill timer lives until then
};

}  // namespace icebox::shim
