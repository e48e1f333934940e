// SPDX-License-Identifier: Apache-2.0
#include "shim/runtime/engine.h"

#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <utility>

#include "oci/base/file.h"
#include "shim/runtime/engine_log.h"
#include "shim/runtime/options.h"

namespace icebox::shim {
namespace {

constexpr std::size_t kMaxLogBytes = 1UL << 20;

std::vector<std::string> own_environment() {
  std::vector<std::string> all;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    all.emplace_back(*entry);
  }
  return all;
}

// Size of the log before a command, so that only its own lines are read after it. A log that has
// grown too long to be read is started anew.
std::size_t log_position(const std::string& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) return 0;
  if (static_cast<std::size_t>(info.st_size) < kMaxLogBytes / 2) {
    return static_cast<std::size_t>(info.st_size);
  }
  ::unlink(path.c_str());
  return 0;
}

EngineResult judge(Result<ToolResult> ended, const std::string& log, std::size_t position) {
  EngineResult result;
  if (!ended.ok()) {
    result.error = std::move(ended).error();
    // Killed by its deadline: as half-way as a crash.
    result.crashed = result.error->code == Code::deadline_exceeded;
    return result;
  }
  if (WIFEXITED(ended->wait_status) && WEXITSTATUS(ended->wait_status) == 0) return result;
  result.crashed = WIFSIGNALED(ended->wait_status);
  const std::string lines = read_file(log, kMaxLogBytes).value_or("");
  const std::string_view own = std::string_view(lines).substr(std::min(position, lines.size()));
  std::string text = failure_text(own, ended->error_tail);
  if (result.crashed) {
    text = "the command was killed by signal " + std::to_string(WTERMSIG(ended->wait_status)) +
           (text.empty() ? "" : ": " + text);
  } else if (text.empty()) {
    text = "exit status " + std::to_string(ended->exit_code);
  }
  result.error = make_error(Code::unknown, std::move(text));
  return result;
}

}  // namespace

std::vector<std::string> engine_environment(const std::vector<std::string>& inherited,
                                            std::string_view binary_name) {
  std::vector<std::string> environment;
  for (const std::string& entry : inherited) {
    if (entry.starts_with("NOTIFY_SOCKET=")) continue;
    if (!binary_name.empty() && entry.starts_with("ICEBOX_RUNTIME=")) continue;
    environment.push_back(entry);
  }
  if (!binary_name.empty()) environment.push_back("ICEBOX_RUNTIME=" + std::string(binary_name));
  return environment;
}

Result<std::string> find_engine() {
  const std::string beside = ICEBOX_TRY(own_directory()) + "/icebox-runc";
  if (::access(beside.c_str(), X_OK) == 0) return beside;
  return find_program("icebox-runc");
}

std::string runtime_root(std::string_view root, std::string_view ns) {
  return std::string(root.empty() ? kDefaultRuntimeRoot : root) + "/" + std::string(ns);
}

bool says_not_found(const Error& error) {
  if (error.code == Code::not_found) return true;
  for (const std::string_view words : {"process already finished", "container not running",
                                       "no such process", "does not exist", "not running"}) {
    if (error.message.find(words) != std::string::npos) return true;
  }
  return false;
}

Engine::Engine(ToolRunner& tools, Settings settings)
    : tools_(&tools),
      settings_(std::move(settings)),
      environment_(engine_environment(own_environment(), settings_.binary_name)) {}

EngineContext Engine::context(Log log) const {
  EngineContext context;
  context.program = settings_.program;
  context.root = settings_.root;
  context.log = settings_.bundle + (log == Log::main ? "/log.json" : "/log-kill.json");
  context.systemd_cgroup = settings_.systemd_cgroup;
  return context;
}

Engine::Id Engine::run(Argv argv, RunOptions options, Done done) {
  ToolRequest request;
  request.command.argv = std::move(argv);
  request.command.env = environment_;
  request.command.cwd = settings_.bundle;
  request.command.death_signal = options.death_signal;
  request.deadline = options.deadline;
  if (options.io != nullptr) options.io->attach(request.command);
  std::string log = context(options.log).log;
  const std::size_t position = log_position(log);
  const Id id = tools_->start(
      std::move(request),
      [log = std::move(log), position, done = std::move(done)](Result<ToolResult> ended) {
        done(judge(std::move(ended), log, position));
      });
  if (options.io != nullptr) options.io->runtime_started();
  return id;
}

}  // namespace icebox::shim
