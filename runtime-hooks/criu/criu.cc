// SPDX-License-Identifier: Apache-2.0
#include "runtime-hooks/criu/criu.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>

#include "oci/base/file.h"
#include "oci/base/strings.h"
#include "oci/base/subprocess.h"

namespace icebox::criu {
namespace {

constexpr std::size_t kMaxLog = 64 * 1024 * 1024;
constexpr const char* kWayOut =
    "install CRIU 4.1 or later (scripts/setup.sh does) or set `criu` in the Icebox configuration";

// Lines that follow from an earlier failure and explain nothing.
constexpr std::array kConsequences = {
    std::string_view("exited, status="),       std::string_view("Dumping FAILED"),
    std::string_view("Restoring FAILED"),      std::string_view("Can't send response"),
    std::string_view("Unable to send"),        std::string_view("killed by signal 9"),
    std::string_view("Failed to kill"),        std::string_view("couldn't be killed"),
    std::string_view("Unlock network failed"), std::string_view("Dump mappings"),
    std::string_view("cgroupd: recv req"),     std::string_view("Dump files (pid"),
    std::string_view("Dumping mappings (pid"),
};

// No CAP_SYS_RESOURCE: CRIU says so as an error and goes on. Never a reason: a CRIU that is killed
// has often said nothing else.
constexpr std::string_view kHarmless = "rlimit";

bool is_consequence(std::string_view text) {
  return std::any_of(kConsequences.begin(), kConsequences.end(), [&](std::string_view part) {
    return text.find(part) != std::string_view::npos;
  });
}

std::string folder_of(const std::string& path) { return path.substr(0, path.rfind('/')); }

}  // namespace

std::string to_string(const Version& version) {
  std::string text = std::to_string(version.major) + "." + std::to_string(version.minor);
  if (version.patch != 0) text += "." + std::to_string(version.patch);
  return text;
}

Result<Version> parse_version(std::string_view text) {
  constexpr std::string_view kLabel = "Version:";
  if (const auto at = text.find(kLabel); at != std::string_view::npos)
    text.remove_prefix(at + kLabel.size());
  text = trim(text.substr(0, text.find('\n')));
  text = text.substr(0, text.find_first_not_of("0123456789."));
  const auto parts = split(text, '.', SplitEmpty::keep);
  std::array<int, 3> numbers = {0, 0, 0};
  if (parts.size() < 2 || parts.size() > 3) {
    return make_error(Code::invalid_argument, "not a CRIU version: '" + std::string(text) + "'");
  }
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const auto number = ICEBOX_TRY(parse_u64(parts[i]).context("not a CRIU version"));
    if (number > 100000)
      return make_error(Code::invalid_argument, "not a CRIU version: '" + std::string(text) + "'");
    numbers[i] = static_cast<int>(number);
  }
  return Version{numbers[0], numbers[1], numbers[2]};
}

Result<Criu> find_criu(const std::string& configured) {
  Criu criu;
  std::string wanted = configured;
  if (wanted.empty()) wanted = ::access(kPrivateCriu, X_OK) == 0 ? kPrivateCriu : "criu";
  auto found = find_program(wanted);
  if (!found.ok()) {
    return make_error(Code::failed_precondition,
                      "CRIU is missing: " + found.error().message + "; " + kWayOut);
  }
  criu.program = std::move(found).value();
  if (criu.program.substr(criu.program.rfind('/') + 1) != "criu" || criu.program[0] != '/') {
    return make_error(Code::failed_precondition,
                      "CRIU must be an absolute path that ends in /criu, but is '" + criu.program +
                          "': the OCI runtime looks for that name in PATH");
  }
  const auto output =
      run({.argv = {criu.program, "--version"}}, {.deadline = std::chrono::seconds(10)});
  if (!output.ok() || output->wait_status != 0) {
    const std::string why = output.ok() ? std::string(trim(output->err)) : output.error().message;
    return make_error(Code::failed_precondition,
                      "CRIU does not run: " + criu.program + " --version: " + why + "; " + kWayOut);
  }
  const auto version = parse_version(output->out);
  if (!version.ok()) {
    return make_error(Code::failed_precondition,
                      criu.program + " --version: " + version.error().message + "; " + kWayOut);
  }
  criu.version = *version;
  if (criu.version < kMinimum) {
    return make_error(Code::failed_precondition, "CRIU " + to_string(criu.version) + " (" +
                                                     criu.program + ") is too old: " + kWayOut);
  }
  return criu;
}

std::vector<std::string> runtime_environment(const Criu& criu, const std::string& empty_folder,
                                             const std::string& config_file) {
  std::vector<std::string> environment;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    if (text.starts_with("PATH=") || text.starts_with("CRIU_LIBS_DIR=") ||
        text.starts_with("CRIU_CONFIG_FILE=") || text.starts_with("NOTIFY_SOCKET=")) {
      continue;
    }
    environment.emplace_back(text);
  }
  const char* path = std::getenv("PATH");
  environment.push_back(
      "PATH=" + folder_of(criu.program) +
      (path != nullptr ? ":" + std::string(path) : std::string(":/usr/sbin:/usr/bin:/sbin:/bin")));
  environment.push_back("CRIU_LIBS_DIR=" + empty_folder);
  if (!config_file.empty()) environment.push_back("CRIU_CONFIG_FILE=" + config_file);
  return environment;
}

std::string last_error_in(std::string_view log_text) {
  std::string best;
  std::string fallback;
  for (const auto line : split(log_text, '\n', SplitEmpty::drop)) {
    const auto at = line.find("Error (");
    if (at == std::string_view::npos) continue;
    const auto close = line.find("): ", at);
    const auto text =
        trim(close == std::string_view::npos ? line.substr(at) : line.substr(close + 3));
    if (text.empty() || text.find(kHarmless) != std::string_view::npos) continue;
    fallback = text;
    if (!is_consequence(text)) best = text;
  }
  return best.empty() ? fallback : best;
}

std::string last_error(const std::string& log_file) {
  const auto text = read_file(log_file, kMaxLog);
  return text.ok() ? last_error_in(*text) : std::string();
}

}  // namespace icebox::criu
