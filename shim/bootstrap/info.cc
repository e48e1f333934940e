// SPDX-License-Identifier: Apache-2.0
#include "shim/bootstrap/info.h"

#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <vector>

#include "containerd/types.pb.h"
#include "oci/base/file.h"
#include "oci/base/strings.h"
#include "oci/base/subprocess.h"
#include "shim/runtime/engine.h"
#include "shim/runtime/options.h"

namespace icebox::shim {
namespace {

constexpr std::size_t kMaxInput = 10UL << 20;
constexpr std::chrono::milliseconds kDeadline{5000};

// What `<runtime> features` prints, "" if it cannot (runc before 1.1).
std::string features(const RuntimeOptions& options) {
  const Result<std::string> program = find_engine();
  if (!program.ok()) return "";
  std::vector<std::string> environment;
  for (char** entry = environ; *entry != nullptr; ++entry) environment.emplace_back(*entry);
  Command command;
  command.argv = {*program, "features"};
  command.env = engine_environment(environment, options.binary_name);
  RunOptions limits;
  limits.deadline = kDeadline;
  const Result<Output> output = run(command, limits);
  if (!output.ok() || !WIFEXITED(output->wait_status) || WEXITSTATUS(output->wait_status) != 0) {
    return "";
  }
  const std::string_view text = trim(output->out);
  return text.starts_with('{') ? std::string(text) : "";
}

}  // namespace

std::string version_text() {
  return std::string("containerd-shim-icebox-v1:\n  Version:  ") + ICEBOX_VERSION + "\n";
}

Result<std::string> runtime_info() {
  const std::string input = ICEBOX_TRY(read_all(STDIN_FILENO, kMaxInput).context("stdin"));
  containerd::types::RuntimeInfo info;
  info.set_name(kRuntimeName);
  info.mutable_version()->set_version(ICEBOX_VERSION);
  RuntimeOptions options;
  if (!input.empty()) {
    if (!info.mutable_options()->ParseFromString(input)) {
      return make_error(Code::invalid_argument, "standard input is not a protobuf Any");
    }
    options = ICEBOX_TRY(decode_runtime_options(info.options()));
  }
  if (std::string json = features(options); !json.empty()) {
    info.mutable_features()->set_type_url(
        "types.containerd.io/opencontainers/runtime-spec/1/features/Features");
    info.mutable_features()->set_value(std::move(json));
  }
  return info.SerializeAsString();
}

}  // namespace icebox::shim
