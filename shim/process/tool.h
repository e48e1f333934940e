// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "oci/base/result.h"
#include "oci/base/subprocess.h"
#include "oci/base/unique_fd.h"
#include "shim/loop/event_loop.h"
#include "shim/process/supervisor.h"

namespace icebox::shim {

// A helper program to run beside the loop.
struct ToolRequest {
  Command command;  // stdout and stderr that it does not map are captured, stdin that it does not
                    // map is /dev/null
  std::optional<std::string> input;  // what the program reads on stdin instead
  std::optional<std::chrono::milliseconds>
      deadline;                             // then it is killed; absent = it may take for ever
  std::chrono::milliseconds term_grace{0};  // SIGTERM at the deadline, SIGKILL only this much later
  bool kill_group = false;  // the deadline's signals go to its process group (needs new_session)
  std::size_t max_output = 1024 * 1024;   // stdout beyond it is read, dropped, and reported as cut
  std::size_t max_error_tail = 8 * 1024;  // last bytes of stderr that are kept
};

struct ToolResult {
  pid_t pid = 0;
  int wait_status = 0;
  unsigned exit_code = 0;  // exit code, or 128 + signal
  std::string out;
  bool out_cut = false;
  std::string error_tail;
};

// Runs helper programs without blocking the loop. Destroying it drops the callbacks; the programs
// run on.
class ToolRunner {
 public:
  using Done = UniqueFunction<void(Result<ToolResult>)>;
  using Id = std::uint64_t;

  // Both are borrowed and must outlive this.
  ToolRunner(EventLoop& loop, Supervisor& supervisor);
  ToolRunner(const ToolRunner&) = delete;
  ToolRunner& operator=(const ToolRunner&) = delete;
  ~ToolRunner();

  // Starts the program; `done` is called exactly once, from the loop and never from inside this
  // call: with the result when the program ended (whatever its exit code), with an Error when it
  // could not be started (not_found, sys_errno), or with deadline_exceeded, naming the program and
  // the end of its stderr, when the deadline killed it. What descendants write after the program's
  // own end is not waited for. fds of the command are needed only until this returns. Blocks for
  // fork and exec, about a millisecond.
  Id start(ToolRequest request, Done done);

  // Signals a running program; not_found when it has ended.
  [[nodiscard]] Result<void> signal(Id id, int signo) const;

  // Number of programs that have not ended.
  [[nodiscard]] std::size_t running() const { return tools_.size(); }

 private:
  struct Tool;
  Result<std::unique_ptr<Tool>> launch(Id id, ToolRequest& request);
  Result<void> capture(Tool& tool, Id id);
  void on_deadline(Id id);
  void on_exit(Id id, const ProcessExit& exit);

  EventLoop* loop_;
  Supervisor* supervisor_;
  Id next_id_ = 1;
  std::map<Id, std::unique_ptr<Tool>> tools_;
};

// An anonymous file (memfd_create(2)) positioned at the start of `content`: a stdin that never
// blocks its writer.
Result<UniqueFd> memory_file(std::string_view content);

}  // namespace icebox::shim
