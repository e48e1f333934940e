// SPDX-License-Identifier: Apache-2.0
#include "runtime-hooks/criu/pre_resume.h"

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <set>
#include <string_view>

#include "oci/base/file.h"
#include "oci/base/strings.h"
#include "runtime-hooks/container/cgroup.h"
#include "runtime-hooks/container/process.h"

namespace icebox::criu {
namespace {

// Everything in the container's cgroup that is not part of the restored tree, i.e. CRIU, its helpers and this script.
Result<void> move_out(const container::Cgroup& cgroup, pid_t init, const std::string& home) {
  const auto pids = ICEBOX_TRY(cgroup.processes());
  const auto processes = ICEBOX_TRY(container::read_processes(pids));
  for (const auto& process : ICEBOX_TRY(container::not_descending_from(init, processes))) {
    const auto moved = container::Cgroup::move_process(home, process.pid);
    if (!moved.ok() && moved.error().code != Code::not_found) return moved;
  }
  return {};
}

Result<void> run_script() {
  const char* action = std::getenv("CRTOOLS_SCRIPT_ACTION");
  if (action == nullptr || std::string_view(action) != "pre-resume") return {};
  const char* init_text = std::getenv("CRTOOLS_INIT_PID");
  const char* home = std::getenv(kPreResumeHome);
  if (init_text == nullptr || home == nullptr) {
    return make_error(Code::invalid_argument, "CRTOOLS_INIT_PID or ICEBOX_PRE_RESUME_HOME is not set");
  }
  const auto init = static_cast<pid_t>(ICEBOX_TRY(parse_i64(init_text)));
  const auto cgroup = ICEBOX_TRY(container::Cgroup::of_container("", "", init));
  ICEBOX_TRY(move_out(cgroup, init, home));
  return cgroup.request_freeze();
}

}  // namespace

int pre_resume_main() {
  const auto result = run_script();
  if (result.ok()) return 0;
  std::fprintf(stderr, "%s: %s\n", kPreResumeName, result.error().message.c_str());
  return 1;
}

Result<std::string> write_restore_config(const std::string& folder) {
  const std::string script = folder + "/" + kPreResumeName;
  const auto program = ICEBOX_TRY(read_link("/proc/self/exe"));
  if (::unlink(script.c_str()) != 0 && errno != ENOENT) return errno_error(script);
  if (::symlink(program.c_str(), script.c_str()) != 0) return errno_error(script);
  const std::string config = folder + "/criu.conf";
  ICEBOX_TRY(write_file_atomic(config, "action-script " + script + "\n", 0600, Durable::no));
  return config;
}

}  // namespace icebox::criu
