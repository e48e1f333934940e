// SPDX-License-Identifier: Apache-2.0
#include "runtime-hooks/runtime/args.h"

#include <algorithm>
#include <array>
#include <cstdlib>

#include "oci/base/file.h"

namespace icebox::engine {
namespace {

constexpr std::array kGlobalWithValue = {
    std::string_view("root"), std::string_view("log"),      std::string_view("log-format"),
    std::string_view("criu"), std::string_view("rootless"), std::string_view("cgroup-manager")};

// Options of checkpoint, restore, kill, delete that take a value (runc 1.1 to 1.5, crun).
constexpr std::array kCommandWithValue = {std::string_view("image-path"),
                                          std::string_view("work-path"),
                                          std::string_view("parent-path"),
                                          std::string_view("status-fd"),
                                          std::string_view("page-server"),
                                          std::string_view("manage-cgroups-mode"),
                                          std::string_view("empty-ns"),
                                          std::string_view("console-socket"),
                                          std::string_view("bundle"),
                                          std::string_view("b"),
                                          std::string_view("pid-file"),
                                          std::string_view("lsm-profile"),
                                          std::string_view("lsm-mount-context"),
                                          std::string_view("network-lock"),
                                          std::string_view("preserve-fds")};

template <typename Names>
bool takes_value(const Names& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// Parses the option word args[at]; advances `at` past what it used.
template <typename Names>
Result<Option> take_option(const std::vector<std::string>& args, std::size_t& at,
                           const Names& with_value) {
  std::string word = args[at++];
  word.erase(0, word.starts_with("--") ? 2 : 1);
  Option option;
  const auto equals = word.find('=');
  option.name = word.substr(0, equals);
  if (equals != std::string::npos) {
    option.value = word.substr(equals + 1);
  } else if (takes_value(with_value, option.name)) {
    if (at >= args.size())
      return make_error(Code::invalid_argument, "option --" + option.name + " needs a value");
    option.value = args[at++];
  }
  return option;
}

bool is_option(const std::string& word) { return word.size() > 1 && word[0] == '-'; }

}  // namespace

bool CommandArgs::has(std::string_view name) const {
  return std::any_of(options.begin(), options.end(),
                     [&](const Option& o) { return o.name == name && o.value != "false"; });
}

std::optional<std::string> CommandArgs::value(std::string_view name) const {
  std::optional<std::string> found;
  for (const auto& option : options) {
    if (option.name == name && option.value) found = option.value;
  }
  return found;
}

Result<Invocation> parse_invocation(const std::vector<std::string>& args,
                                    const std::string& runtime_name) {
  Invocation invocation;
  invocation.root = "/run/" + runtime_name.substr(runtime_name.rfind('/') + 1);
  std::size_t at = 0;
  while (at < args.size() && is_option(args[at])) {
    const std::size_t first = at;
    const auto option = ICEBOX_TRY(take_option(args, at, kGlobalWithValue));
    invocation.global.insert(invocation.global.end(),
                             args.begin() + static_cast<std::ptrdiff_t>(first),
                             args.begin() + static_cast<std::ptrdiff_t>(at));
    if (option.name == "root" && option.value) invocation.root = absolute_path(*option.value);
    if (option.name == "log" && option.value) invocation.log_file = *option.value;
    if (option.name == "log-format") invocation.log_json = option.value == "json";
    if (option.name == "debug") invocation.debug = option.value != "false";
    if (option.name == "systemd-cgroup") invocation.systemd_cgroup = option.value != "false";
  }
  if (at < args.size()) invocation.command = args[at++];
  invocation.rest.assign(args.begin() + static_cast<std::ptrdiff_t>(at), args.end());
  return invocation;
}

Result<CommandArgs> parse_command(const std::string& command,
                                  const std::vector<std::string>& rest) {
  CommandArgs parsed;
  std::size_t at = 0;
  bool only_positional = false;
  while (at < rest.size()) {
    // `kill ID -9`: a negative-looking signal is an argument.
    const bool signal = command == "kill" && !parsed.positional.empty();
    if (rest[at] == "--" && !only_positional) {
      only_positional = true;
      ++at;
    } else if (!only_positional && !signal && is_option(rest[at])) {
      parsed.options.push_back(ICEBOX_TRY(take_option(rest, at, kCommandWithValue)));
    } else {
      parsed.positional.push_back(rest[at++]);
    }
  }
  if (parsed.positional.empty()) {
    return make_error(Code::invalid_argument, command + ": the container id is missing");
  }
  return parsed;
}

}  // namespace icebox::engine
