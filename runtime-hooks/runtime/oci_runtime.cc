// SPDX-License-Identifier: Apache-2.0
#include "runtime-hooks/runtime/oci_runtime.h"

#include <unistd.h>

#include <cerrno>

#include <nlohmann/json.hpp>

#include "oci/base/file.h"
#include "oci/base/strings.h"
#include "oci/json.h"

namespace icebox::engine {
namespace {

constexpr std::size_t kMaxLog = 16 * 1024 * 1024;

}  // namespace

std::string last_log_error(std::string_view json_lines) {
  std::string last;
  for (const auto line : split(json_lines, '\n', SplitEmpty::drop)) {
    const auto entry = parse_json(line, "log");
    if (!entry.ok()) continue;
    const auto level = json_string(*entry, "level");
    auto message = json_string(*entry, "msg");
    if (level.ok() && message.ok() && (*level == "error" || *level == "fatal"))
      last = std::move(message).value();
  }
  return last;
}

std::vector<std::string> OciRuntime::argv(const std::vector<std::string>& arguments) const {
  std::vector<std::string> words = {program_};
  words.insert(words.end(), invocation_.global.begin(), invocation_.global.end());
  words.insert(words.end(), arguments.begin(), arguments.end());
  return words;
}

Error OciRuntime::exec_through() const {
  const auto path = find_program(program_);
  if (!path.ok()) {
    return path.error().context(
        "OCI runtime (install it, or set `runtime` in the Icebox configuration)");
  }
  std::vector<std::string> words = argv({});
  if (!invocation_.command.empty()) words.push_back(invocation_.command);
  words.insert(words.end(), invocation_.rest.begin(), invocation_.rest.end());
  std::vector<char*> pointers;
  for (auto& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  ::execv(path->c_str(), pointers.data());
  return errno_error(*path);
}

Result<RuntimeState> OciRuntime::state(const std::string& id) const {
  const auto output = ICEBOX_TRY(run({.argv = {"state", id}}, {}));
  const auto document = ICEBOX_TRY(parse_json(output.out, "output of `" + program_ + " state`"));
  RuntimeState state;
  state.id = id;
  state.status = ICEBOX_TRY(json_string(document, "status"));
  state.pid = static_cast<pid_t>(json_int(document, "pid").value_or(0));
  state.bundle = json_string(document, "bundle").value_or("");
  return state;
}

std::string OciRuntime::failure_text(const std::string& what, const Output& output,
                                     std::size_t log_start) const {
  std::string reason;
  if (!invocation_.log_file.empty() && invocation_.log_json) {
    const auto log = read_file(invocation_.log_file, kMaxLog);
    if (log.ok() && log->size() > log_start)
      reason = last_log_error(std::string_view(*log).substr(log_start));
  }
  if (reason.empty()) {
    const auto lines = split(trim(output.err), '\n', SplitEmpty::drop);
    if (!lines.empty()) reason = std::string(trim(lines.back()));
  }
  if (reason.empty()) reason = "exit status " + std::to_string(exit_code_of(output.wait_status));
  return what + ": " + reason;
}

Result<Output> OciRuntime::run(Command command, const RunOptions& options) const {
  const std::string what = program_.substr(program_.rfind('/') + 1) + " " +
                           (command.argv.empty() ? "" : command.argv[0]);
  std::size_t log_start = 0;
  if (!invocation_.log_file.empty()) {
    const auto log = read_file(invocation_.log_file, kMaxLog);
    if (log.ok()) log_start = log->size();
  }
  command.argv = argv(command.argv);
  auto output = icebox::run(command, options);
  if (!output.ok()) {
    return output.error().context(
        "OCI runtime (install it, or set `runtime` in the Icebox configuration)");
  }
  if (output->wait_status != 0) {
    Error error = make_error(Code::unknown, failure_text(what, *output, log_start));
    if (error.message.find("does not exist") != std::string::npos) error.code = Code::not_found;
    return error;
  }
  return output;
}

}  // namespace icebox::engine
