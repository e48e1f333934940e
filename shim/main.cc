// SPDX-License-Identifier: Apache-2.0
// containerd-shim-icebox-v1: what containerd starts for a task. Reads the command line and picks
// the action; `start` runs this program again as the daemon.
#include <fcntl.h>
#include <linux/close_range.h>
#include <unistd.h>

#include <string>
#include <string_view>

#include "oci/base/file.h"
#include "oci/base/log.h"
#include "oci/base/result.h"
#include "shim/bootstrap/args.h"
#include "shim/bootstrap/delete.h"
#include "shim/bootstrap/info.h"
#include "shim/bootstrap/serve.h"
#include "shim/bootstrap/start.h"

namespace icebox::shim {
namespace {

constexpr int kSinkFlags = O_WRONLY | O_NONBLOCK;

// containerd reads the output of `start` as the address, stderr included: logs go to the bundle's
// FIFO, or nowhere.
void keep_stderr_clean(UniqueFd& sink) {
  Result<UniqueFd> opened = open_file("log", kSinkFlags);
  if (!opened.ok()) opened = open_file("/dev/null", kSinkFlags);
  if (!opened.ok()) return;
  sink = std::move(opened).value();
  log::set_sink(sink.get(), log::Format::text);
}

Result<std::string> run_action(const Args& args) {
  if (args.version) return version_text();
  if (args.info) return runtime_info();
  if (args.ns.empty()) return make_error(Code::invalid_argument, "shim namespace cannot be empty");
  if (args.action == "start") return start(args);
  if (args.action == "delete") return delete_task(args);
  if (!args.action.empty()) {
    return make_error(Code::invalid_argument, "unknown action " + args.action);
  }
  ICEBOX_TRY(serve(args));
  return std::string();
}

int main_program(int argc, const char* const* argv) {
  UniqueFd log_sink;
  Result<Args> args = parse_args(argc, argv);
  if (args.ok() && args->action == "start") {
    // Whatever else was inherited must not live on in the daemon.
    ::close_range(3, ~0U, CLOSE_RANGE_CLOEXEC);
    keep_stderr_clean(log_sink);
  }
  const Result<std::string> output = args.ok() ? run_action(*args) : args.error();
  if (!output.ok()) {
    const std::string text = output.error().message + "\n";
    (void)write_all(STDERR_FILENO, text);
    return 1;
  }
  return write_all(STDOUT_FILENO, *output).ok() ? 0 : 1;
}

}  // namespace
}  // namespace icebox::shim

int main(int argc, char** argv) { return icebox::shim::main_program(argc, argv); }
