// SPDX-License-Identifier: Apache-2.0
#include "shim/bootstrap/delete.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <limits>
#include <vector>

#include "containerd/task_v2.pb.h"
#include "oci/base/file.h"
#include "oci/base/log.h"
#include "oci/base/strings.h"
#include "oci/base/subprocess.h"
#include "shim/bootstrap/start.h"
#include "shim/runtime/cli_args.h"
#include "shim/runtime/engine.h"
#include "shim/runtime/engine_log.h"
#include "shim/runtime/options.h"
#include "shim/runtime/rootfs.h"
#include "shim/task/events.h"
#include "shim/task/exit_record.h"
#include "shim/task/temp_checkpoint.h"

namespace icebox::shim {
namespace {

// containerd kills this process after 5 s.
constexpr std::chrono::milliseconds kEngineDeadline{4000};
constexpr std::size_t kMaxFile = 1UL << 20;
constexpr unsigned kKilledStatus = 128 + SIGKILL;

std::string own_bundle(const Args& args) {
  if (!args.bundle.empty()) return args.bundle;
  const std::string cwd = read_link("/proc/self/cwd").value_or(".");
  return cwd.substr(0, cwd.rfind('/')) + "/" + args.id;
}

ExitInfo exit_of(const std::string& bundle) {
  if (const Result<std::string> text = read_file(bundle + "/" + std::string(kExitFile), kMaxFile);
      text.ok()) {
    if (const Result<ExitInfo> exit = parse_exit(*text); exit.ok()) return *exit;
  }
  // Its end was never seen: it is about to be killed.
  ExitInfo exit;
  exit.status = kKilledStatus;
  exit.at = std::chrono::system_clock::now();
  exit.pid = -1;  // what the stock shim reports when it does not know, as unsigned
  if (const Result<std::string> text = read_file(bundle + "/init.pid", kMaxFile); text.ok()) {
    exit.pid = static_cast<pid_t>(parse_i64(trim(*text)).value_or(-1));
  }
  return exit;
}

Result<void> force_delete(const Args& args, const std::string& bundle) {
  RuntimeOptions options;
  if (const Result<std::string> json = read_file(bundle + "/options.json", kMaxFile); json.ok()) {
    options = options_from_json(*json).value_or(RuntimeOptions{});
  }
  EngineContext context;
  context.program = ICEBOX_TRY(find_engine());
  context.root = runtime_root(options.root, args.ns);
  context.log = bundle + "/log-delete.json";
  context.systemd_cgroup = options.systemd_cgroup;
  std::vector<std::string> environment;
  for (char** entry = environ; *entry != nullptr; ++entry) environment.emplace_back(*entry);

  Command command;
  command.argv = delete_argv(context, args.id, true);
  command.env = engine_environment(environment, options.binary_name);
  command.death_signal = SIGKILL;
  RunOptions limits;
  limits.deadline = kEngineDeadline;
  ::unlink(context.log.c_str());
  const Output output = ICEBOX_TRY(run(command, limits));
  if (WIFEXITED(output.wait_status) && WEXITSTATUS(output.wait_status) == 0) return {};
  const std::string text = failure_text(read_file(context.log, kMaxFile).value_or(""), output.err);
  Error error = make_error(Code::unknown, text.empty() ? "icebox-runc delete failed" : text);
  if (says_not_found(error)) return {};
  return error.context("cannot delete container " + args.id);
}

// The socket of a daemon that was killed; that of a living group stays.
void remove_stale_socket(const std::string& bundle) {
  constexpr std::string_view kScheme = "unix://";
  const Result<std::string> address = read_file(bundle + "/address", kMaxFile);
  if (!address.ok() || !address->starts_with(kScheme)) return;
  const std::string path = address->substr(kScheme.size());
  if (!answers(path)) ::unlink(path.c_str());
}

void remove_temporary_checkpoint(const std::string& bundle) {
  const Result<std::string> path =
      read_file(bundle + "/" + std::string(kTempCheckpointFile), kMaxFile);
  if (!path.ok() || !is_temporary_checkpoint(*path, "", temporary_directories())) return;
  if (const Result<void> gone = remove_tree(*path); !gone.ok()) {
    log::warn("cannot remove a temporary checkpoint", {{"reason", gone.error().message}});
  }
}

}  // namespace

Result<std::string> delete_task(const Args& args) {
  const std::string bundle = own_bundle(args);
  const ExitInfo exit = exit_of(bundle);
  if (!exists(bundle + "/" + std::string(kRemovedFile))) {
    ICEBOX_TRY(force_delete(args, bundle));
    ICEBOX_TRY(unmount_tree(bundle + "/rootfs"));
    remove_temporary_checkpoint(bundle);
  }
  remove_stale_socket(bundle);

  containerd::task::v2::DeleteResponse response;
  response.set_pid(static_cast<std::uint32_t>(exit.pid));
  response.set_exit_status(exit.status);
  *response.mutable_exited_at() = to_timestamp(exit.at);
  return response.SerializeAsString();
}

}  // namespace icebox::shim
