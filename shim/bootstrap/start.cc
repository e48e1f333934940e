// SPDX-License-Identifier: Apache-2.0
#include "shim/bootstrap/start.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <cstring>

#include "oci/base/file.h"
#include "oci/base/scope_guard.h"
#include "oci/base/strings.h"
#include "oci/base/subprocess.h"
#include "shim/bootstrap/grouping.h"
#include "shim/bootstrap/start_input.h"
#include "shim/runtime/bundle_config.h"
#include "shim/runtime/cgroup.h"
#include "shim/runtime/engine.h"

namespace icebox::shim {
namespace {

constexpr std::size_t kMaxInput = 10UL << 20;
constexpr std::size_t kMaxSocketPath = 106;  // containerd's limit; the kernel's is one more
constexpr int kBacklog = 128;
constexpr int kDaemonSocketFd = 3;
constexpr std::int64_t kMaxOomScoreAdj = 1000;

Result<sockaddr_un> socket_address(const std::string& path) {
  if (path.size() > kMaxSocketPath) {
    return make_error(Code::invalid_argument, "socket path " + path + " is longer than " +
                                                  std::to_string(kMaxSocketPath) + " bytes");
  }
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  return address;
}

Result<UniqueFd> new_socket(int flags) {
  UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | flags, 0));
  if (!fd) return errno_error("cannot make a socket");
  return fd;
}

// Core scheduling for the daemon and, by inheritance, its containers: one cookie for the process
// group (prctl(2), Linux 5.14). Asked for by containerd's sched_core setting.
Result<void> share_core() {
  constexpr int kSchedCore = 62;
  constexpr unsigned long kCreate = 1;
  constexpr unsigned long kProcessGroup = 2;
  if (::prctl(kSchedCore, kCreate, 0UL, kProcessGroup, 0UL) != 0) {
    return errno_error("cannot enable core scheduling");
  }
  return {};
}

// The kernel's out-of-memory killer should take a shim before containerd: one point more.
Result<void> adjust_oom_score(pid_t daemon) {
  const std::string own =
      ICEBOX_TRY(read_file("/proc/" + std::to_string(::getppid()) + "/oom_score_adj", 64));
  const std::int64_t score = ICEBOX_TRY(parse_i64(trim(own)));
  const Result<void> written =
      write_control_file("/proc/" + std::to_string(daemon) + "/oom_score_adj",
                         std::to_string(std::min(score + 1, kMaxOomScoreAdj)));
  // Lowering is a privilege that a user namespace may lack.
  if (!written.ok() && written.error().sys_errno != EPERM && written.error().sys_errno != EACCES) {
    return written.error();
  }
  return {};
}

Result<pid_t> spawn_daemon(const Args& args, bool debug, const UniqueFd& listener) {
  Command command;
  command.argv = {ICEBOX_TRY(read_link("/proc/self/exe")),
                  "-namespace",
                  args.ns,
                  "-id",
                  args.id,
                  "-address",
                  args.address};
  if (debug) command.argv.emplace_back("-debug");
  command.fds = {{listener.get(), kDaemonSocketFd}};
  command.new_session = true;
  const Child child = ICEBOX_TRY(spawn(command).context("cannot start the daemon"));
  return child.process.pid();
}

Result<std::string> publish_address(const std::string& socket) {
  const std::string address = "unix://" + socket;
  // containerd 1.x finds its way back to the daemon by this file.
  ICEBOX_TRY(write_file_atomic("address", address, 0600, Durable::no));
  return address;
}

}  // namespace

bool answers(const std::string& path) {
  const Result<sockaddr_un> address = socket_address(path);
  const Result<UniqueFd> fd = new_socket(SOCK_NONBLOCK);
  if (!address.ok() || !fd.ok()) return false;
  if (::connect(fd->get(), reinterpret_cast<const sockaddr*>(&*address), sizeof *address) == 0) {
    return true;
  }
  return errno == EAGAIN;  // its queue is full: it lives
}

Result<GroupSocket> claim_socket(const std::string& path) {
  const sockaddr_un address = ICEBOX_TRY(socket_address(path));
  const std::string directory = path.substr(0, path.rfind('/'));
  ICEBOX_TRY(make_directories(directory, 0700));
  // Between another start's bind and listen its socket looks dead.
  const UniqueFd lock = ICEBOX_TRY(open_file(directory, O_RDONLY | O_DIRECTORY));
  while (::flock(lock.get(), LOCK_EX) != 0) {
    if (errno != EINTR) return errno_error("cannot lock " + directory);
  }
  GroupSocket group;
  group.path = path;
  UniqueFd listener = ICEBOX_TRY(new_socket(0));
  const auto bind_here = [&] {
    return ::bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address);
  };
  if (bind_here() != 0) {
    if (errno != EADDRINUSE) return errno_error("cannot bind " + path);
    if (answers(path)) return group;
    if (::unlink(path.c_str()) != 0 && errno != ENOENT) return errno_error("cannot remove " + path);
    if (bind_here() != 0) return errno_error("cannot bind " + path);
  }
  if (::listen(listener.get(), kBacklog) != 0 || ::chmod(path.c_str(), 0600) != 0) {
    const Error error = errno_error("cannot listen on " + path);
    ::unlink(path.c_str());
    return error;
  }
  group.listener = std::move(listener);
  return group;
}

Result<std::string> start(const Args& args) {
  // Only what this program prints reaches the client: of a daemon that ends it hears "closed".
  ICEBOX_TRY(find_engine().context(
      "the engine is missing: install icebox-runc beside this shim or in containerd's PATH"));
  const std::string data = ICEBOX_TRY(read_all(STDIN_FILENO, kMaxInput).context("stdin"));
  const StartInput input = ICEBOX_TRY(decode_start_input(data, args.id, args.ns));
  std::string key = args.id;
  if (exists("config.json")) {  // a sandboxer of containerd 2.x may leave it out
    key = grouping_key(ICEBOX_TRY(read_bundle_config(".")), args.id);
  }
  const std::string path =
      args.socket.empty() ? socket_path(input.socket_dir, args.address, args.ns, key) : args.socket;
  const GroupSocket group = ICEBOX_TRY(claim_socket(path));
  if (!group.listener) return publish_address(path);

  ScopeGuard undo_socket([&] { ::unlink(path.c_str()); });
  if (const char* wanted = ::getenv("SCHED_CORE"); wanted != nullptr && *wanted != '\0') {
    ICEBOX_TRY(share_core());
  }
  const pid_t daemon = ICEBOX_TRY(spawn_daemon(args, args.debug || input.debug, group.listener));
  ScopeGuard undo_daemon([&] { ::kill(daemon, SIGKILL); });
  if (!input.options.shim_cgroup.empty()) {
    ICEBOX_TRY(join_cgroup(input.options.shim_cgroup, daemon).context("shim_cgroup"));
  }
  ICEBOX_TRY(adjust_oom_score(daemon));
  std::string address = ICEBOX_TRY(publish_address(path));
  undo_daemon.dismiss();
  undo_socket.dismiss();
  return address;
}

}  // namespace icebox::shim
