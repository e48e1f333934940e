// SPDX-License-Identifier: Apache-2.0
#include "runtime-hooks/criu/restore_script.h"

#include <fcntl.h>
#include <net/if.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "oci/base/file.h"
#include "oci/base/strings.h"
#include "runtime-hooks/container/cgroup.h"
#include "runtime-hooks/container/process.h"

namespace icebox::criu {
namespace {

constexpr const char* kFreezeHomeFile = "/freeze-home";
constexpr const char* kResultFile = "/result";
constexpr std::size_t kMaxText = 64 * 1024;

// Everything in the container's cgroup that is not part of the restored tree, i.e. CRIU, its
// helpers and this script.
Result<void> move_out(const container::Cgroup& cgroup, pid_t init, const std::string& home) {
  const auto pids = ICEBOX_TRY(cgroup.processes());
  const auto processes = ICEBOX_TRY(container::read_processes(pids));
  for (const auto& process : ICEBOX_TRY(container::not_descending_from(init, processes))) {
    const auto moved = container::Cgroup::move_process(home, process.pid);
    if (!moved.ok() && moved.error().code != Code::not_found) return moved;
  }
  return {};
}

Result<void> freeze_tree(pid_t init, const std::string& home) {
  // Not of_container(): it refuses a cgroup that the caller is in, as this script still is.
  const auto directory = ICEBOX_TRY(container::Cgroup::freezer_directory_of(init));
  if (directory == home) {
    return make_error(Code::failed_precondition,
                      "the container shares the cgroup " + home + " with its engine");
  }
  const auto cgroup = container::Cgroup::from_paths(container::unified_hierarchy(), directory, "");
  ICEBOX_TRY(move_out(cgroup, init, home));
  return cgroup.request_freeze();
}

// Sets the loopback device of init's network namespace up, unless that namespace is this process's
// own. The process stays in that namespace: it is a script that ends.
Result<void> raise_loopback(pid_t init) {
  const std::string path = "/proc/" + std::to_string(init) + "/ns/net";
  const auto target = ICEBOX_TRY(open_file(path, O_RDONLY));
  struct stat theirs = {};
  struct stat ours = {};
  if (::fstat(target.get(), &theirs) != 0 || ::stat("/proc/self/ns/net", &ours) != 0)
    return errno_error(path);
  if (theirs.st_ino == ours.st_ino) return {};
  if (::setns(target.get(), CLONE_NEWNET) != 0) return errno_error(path);
  const UniqueFd socket(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!socket) return errno_error("socket");
  struct ifreq request = {};
  std::strncpy(request.ifr_name, "lo", sizeof request.ifr_name - 1);
  if (::ioctl(socket.get(), SIOCGIFFLAGS, &request) != 0) return errno_error("loopback device");
  request.ifr_flags = static_cast<short>(request.ifr_flags | IFF_UP);
  if (::ioctl(socket.get(), SIOCSIFFLAGS, &request) != 0) return errno_error("loopback device");
  return {};
}

Result<void> run_script(const std::string& folder) {
  const char* action_text = std::getenv("CRTOOLS_SCRIPT_ACTION");
  const char* init_text = std::getenv("CRTOOLS_INIT_PID");
  const std::string_view action = action_text != nullptr ? action_text : "";
  if (action != "pre-resume" && action != "post-setup-namespaces") return {};
  if (init_text == nullptr)
    return make_error(Code::invalid_argument, "CRTOOLS_INIT_PID is not set");
  const auto init = static_cast<pid_t>(ICEBOX_TRY(parse_i64(init_text)));
  if (action == "post-setup-namespaces") return raise_loopback(init);
  const auto home = ICEBOX_TRY(read_file(folder + kFreezeHomeFile, kMaxText));
  if (!home.empty()) ICEBOX_TRY(freeze_tree(init, home));
  return write_file_atomic(folder + kResultFile, "ok", 0600, Durable::no);
}

}  // namespace

int restore_script_main(const std::string& program) {
  const std::string folder = program.substr(0, program.rfind('/'));
  const auto result = run_script(folder);
  if (result.ok()) return 0;
  static_cast<void>(
      write_file_atomic(folder + kResultFile, result.error().message, 0600, Durable::no).ok());
  return 1;
}

Result<std::string> write_restore_config(const RestoreScript& script) {
  const std::string link = script.folder + "/" + kScriptName;
  const auto program = ICEBOX_TRY(read_link("/proc/self/exe"));
  if (::unlink(link.c_str()) != 0 && errno != ENOENT) return errno_error(link);
  if (::symlink(program.c_str(), link.c_str()) != 0) return errno_error(link);
  ICEBOX_TRY(
      write_file_atomic(script.folder + kFreezeHomeFile, script.freeze_home, 0600, Durable::no));
  std::string config = "action-script " + link + "\n";
  if (!script.cgroup_root.empty()) config += "cgroup-root " + script.cgroup_root + "\n";
  const std::string path = script.folder + "/criu.conf";
  ICEBOX_TRY(write_file_atomic(path, config, 0600, Durable::no));
  return path;
}

Result<void> restore_script_result(const RestoreScript& script) {
  const auto text = read_file(script.folder + kResultFile, kMaxText);
  if (text.ok() && *text == "ok") return {};
  const std::string why = text.ok() ? *text : "CRIU did not run it";
  return make_error(Code::unknown, "the restore script failed: " + why);
}

}  // namespace icebox::criu
