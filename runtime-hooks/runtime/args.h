// SPDX-License-Identifier: Apache-2.0
//
// runc's command line (urfave/cli): global options, a command, its options, then positional
// arguments. crun takes the same. Unknown options are kept: what the engine does not handle itself
// goes to the runtime word for word.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "oci/base/result.h"

namespace icebox::engine {

// One option as given: name without dashes; value absent for a switch.
struct Option {
  std::string name;
  std::optional<std::string> value;
};

// The options and arguments behind a command.
struct CommandArgs {
  std::vector<Option> options;
  std::vector<std::string> positional;

  [[nodiscard]] bool has(std::string_view name) const;
  // Last value given for `name`.
  [[nodiscard]] std::optional<std::string> value(std::string_view name) const;
};

struct Invocation {
  std::vector<std::string> global;  // global options word for word, for the runtime
  std::string root;                 // --root, made absolute; the runtime's default if absent
  std::string log_file;             // --log, empty = none
  bool log_json = false;            // --log-format json
  bool debug = false;
  bool systemd_cgroup = false;
  std::string command;            // empty when there is none (--version, --help)
  std::vector<std::string> rest;  // everything behind the command, word for word
};

// Splits a command line (without argv[0]). invalid_argument when an option lacks its value.
Result<Invocation> parse_invocation(const std::vector<std::string>& args,
                                    const std::string& runtime_name);

// Parses what follows `command` (checkpoint, restore, pause, resume, kill, delete). Options may
// stand on both sides of the positional arguments; "--" ends them.
Result<CommandArgs> parse_command(const std::string& command, const std::vector<std::string>& rest);

}  // namespace icebox::engine
