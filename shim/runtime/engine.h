// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <signal.h>

#include <chrono>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "oci/base/result.h"
#include "shim/loop/unique_function.h"
#include "shim/process/stdio.h"
#include "shim/process/tool.h"
#include "shim/runtime/cli_args.h"

namespace icebox::shim {

// How one engine command ended.
struct EngineResult {
  std::optional<Error> error;  // its own words, or why it could not be run
  bool crashed = false;        // ended by a signal: it may have left the container half-way

  [[nodiscard]] bool ok() const { return !error.has_value(); }
};

// Runs icebox-runc for one container, beside the loop. A failed command is reported with the last
// error of its JSON log (what the engine and the OCI runtime wrote for the user), else with the end
// of its stderr, else with its exit status.
class Engine {
 public:
  struct Settings {
    std::string program;  // path of icebox-runc
    std::string root;     // state directory of the OCI runtime for this namespace
    std::string bundle;
    std::string binary_name;  // Options.binary_name: handed on as ICEBOX_RUNTIME, "" = not
    bool systemd_cgroup = false;
  };
  // Kill does not wait for its turn, so it may run beside another command and has a log of its own:
  // neither may take the other's error for its own.
  enum class Log { main, kill };
  struct RunOptions {
    ProcessIo* io = nullptr;  // the process that the command starts gets this stdio
    Log log = Log::main;
    std::optional<std::chrono::milliseconds> deadline;  // then it is killed
    // What the command gets when this daemon dies. SIGTERM for those that move a container between
    // states and can undo what they did.
    int death_signal = SIGKILL;
  };
  using Done = UniqueFunction<void(EngineResult)>;
  using Id = ToolRunner::Id;

  // `tools` is borrowed and must outlive this and its commands.
  Engine(ToolRunner& tools, Settings settings);

  // To build an argv with.
  [[nodiscard]] EngineContext context(Log log = Log::main) const;

  // Starts a command; `done` is called exactly once, from the loop and never from inside this call.
  Id run(Argv argv, RunOptions options, Done done);

  // Signals a running command. not_found when it has ended.
  [[nodiscard]] Result<void> signal(Id id, int signo) const { return tools_->signal(id, signo); }

 private:
  ToolRunner* tools_;
  Settings settings_;
  std::vector<std::string> environment_;
};

// The environment that engine commands run with: `inherited` without NOTIFY_SOCKET (runc would talk
// to the service manager of containerd), with ICEBOX_RUNTIME when `binary_name` is not "". Pure.
[[nodiscard]] std::vector<std::string> engine_environment(const std::vector<std::string>& inherited,
                                                          std::string_view binary_name);

// Path of icebox-runc: beside this program's own file, else in PATH.
[[nodiscard]] Result<std::string> find_engine();

// The engine's state directory for a namespace: `root` of the options or the default, plus `ns`.
[[nodiscard]] std::string runtime_root(std::string_view root, std::string_view ns);

// Whether a failed command says that the container (or process) does not exist (any more). Such
// words are all that runc and crun give.
[[nodiscard]] bool says_not_found(const Error& error);

}  // namespace icebox::shim
