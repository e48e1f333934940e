// SPDX-License-Identifier: Apache-2.0
//
// icebox-runc: runc's command line in front of an OCI runtime. It handles checkpoint, restore,
// pause, resume, kill and delete itself, guards the commands that could disturb one of them, and
// hands everything else through by exec.
#include <fcntl.h>
#include <signal.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "oci/base/file.h"
#include "oci/base/log.h"
#include "oci/base/strings.h"
#include "runtime-hooks/checkpoint/operations.h"
#include "runtime-hooks/criu/restore_script.h"
#include "runtime-hooks/runtime/args.h"
#include "runtime-hooks/runtime/config.h"

namespace icebox::engine {
namespace {

// Commands that end or look at containers must work even if the configuration cannot be read.
bool works_without_config(const std::string& command) {
  return command == "kill" || command == "delete" || command == "state" || command == "ps" ||
         command == "list";
}

bool is_guarded(const std::string& command) {
  return command == "exec" || command == "start" || command == "update";
}

bool is_handled(const std::string& command) {
  return command == "checkpoint" || command == "restore" || command == "pause" ||
         command == "resume" || command == "kill" || command == "delete";
}

// The first argument of exec, start, update that is no option cannot be found without knowing all
// their options: the id is the only word that names a container Icebox has a state directory for.
Result<void> guard_any(Engine& engine, const std::string& command,
                       const std::vector<std::string>& rest) {
  for (const auto& word : rest) {
    if (word.empty() || word[0] == '-' || word.find('/') != std::string::npos) continue;
    const auto state =
        ContainerState::locate(engine.config.state_dir, engine.invocation.root, word);
    if (!state.ok() || !state->present()) continue;
    CommandArgs args;
    args.positional.push_back(word);
    return guard(engine, command, args);
  }
  return {};
}

// True when the command is done, false when it is the runtime's.
Result<bool> dispatch(Engine& engine) {
  const std::string& command = engine.invocation.command;
  if (is_guarded(command)) {
    ICEBOX_TRY(guard_any(engine, command, engine.invocation.rest));
    return false;
  }
  if (!is_handled(command)) return false;
  for (const auto& word : engine.invocation.rest) {
    if (word == "--help" || word == "-h") return false;
  }
  const auto args = ICEBOX_TRY(parse_command(command, engine.invocation.rest));
  if (command == "kill") return kill(engine, args);
  if (command == "delete") ICEBOX_TRY(remove(engine, args));
  if (command == "pause") ICEBOX_TRY(pause(engine, args));
  if (command == "resume") ICEBOX_TRY(resume(engine, args));
  if (command == "checkpoint") ICEBOX_TRY(checkpoint(engine, args));
  if (command == "restore") ICEBOX_TRY(restore(engine, args));
  return true;
}

int fail(const Error& error, bool logged_to_file) {
  log::error(error.message);
  if (logged_to_file) std::fprintf(stderr, "%s\n", error.message.c_str());
  return 1;
}

int run_engine(const std::vector<std::string>& arguments) {
  auto config = load_config();
  Config usable = config.ok() ? *config : Config();
  if (!config.ok()) {
    if (const char* runtime = std::getenv(kRuntimeVariable); runtime != nullptr && *runtime != '\0')
      usable.runtime = runtime;
  }
  auto invocation = parse_invocation(arguments, usable.runtime);
  if (!invocation.ok()) return fail(invocation.error(), false);

  UniqueFd log_file;
  if (!invocation->log_file.empty()) {
    auto opened = open_file(invocation->log_file, O_WRONLY | O_APPEND | O_CREAT, 0644);
    if (!opened.ok()) return fail(opened.error().context("log"), false);
    log_file = std::move(opened).value();
    log::set_sink(log_file.get(), invocation->log_json ? log::Format::json : log::Format::text);
  } else {
    log::set_level(log::Level::warn);
  }
  if (invocation->debug) log::set_level(log::Level::debug);
  if (!config.ok()) {
    if (!works_without_config(invocation->command)) return fail(config.error(), log_file.valid());
    log::warn("the configuration cannot be used, defaults are: " + config.error().message);
  }

  Engine engine = {usable, *invocation, OciRuntime(usable.runtime, *invocation)};
  const auto done = dispatch(engine);
  if (!done.ok()) return fail(done.error(), log_file.valid());
  if (*done) return 0;
  return fail(engine.runtime.exec_through(), log_file.valid());
}

}  // namespace
}  // namespace icebox::engine

int main(int argc, char** argv) {
  const std::string_view self = argv[0];
  if (self.substr(self.rfind('/') + 1) == icebox::criu::kScriptName)
    return icebox::criu::restore_script_main(argv[0]);
  return icebox::engine::run_engine(std::vector<std::string>(argv + 1, argv + argc));
}
