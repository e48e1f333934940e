// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "oci/base/result.h"
#include "oci/base/subprocess.h"
#include "runtime-hooks/runtime/args.h"

namespace icebox::engine {

// What `runc state ID` says.
struct RuntimeState {
  std::string id;
  std::string status;  // created, running, paused, stopped
  pid_t pid = 0;       // 0 when stopped
  std::string bundle;
};

// The OCI runtime behind the engine (runc or crun), called with the caller's own global options.
class OciRuntime {
 public:
  OciRuntime(std::string program, const Invocation& invocation)
      : program_(std::move(program)), invocation_(invocation) {}

  [[nodiscard]] const std::string& program() const { return program_; }

  // Argument vector: program, global options, `arguments`.
  [[nodiscard]] std::vector<std::string> argv(const std::vector<std::string>& arguments) const;

  // Replaces this process by the runtime running the caller's own command line. Returns only on
  // failure.
  [[nodiscard]] Error exec_through() const;

  // `state ID`. not_found when the runtime does not know the container. Blocks for some 10 ms.
  [[nodiscard]] Result<RuntimeState> state(const std::string& id) const;

  // Runs a command to its end. A non-zero exit is an Error with the runtime's own message (its JSON
  // log, else its stderr). `command.argv` holds the arguments only.
  [[nodiscard]] Result<Output> run(Command command, const RunOptions& options) const;

 private:
  [[nodiscard]] std::string failure_text(const std::string& what, const Output& output,
                                         std::size_t log_start) const;

  std::string program_;
  const Invocation& invocation_;
};

// The last error-level "msg" in a runtime's JSON log, empty if there is none. Pure.
std::string last_log_error(std::string_view json_lines);

}  // namespace icebox::engine
