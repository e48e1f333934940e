// SPDX-License-Identifier: Apache-2.0
#include "shim/process/supervisor.h"

#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "oci/base/file.h"
#include "oci/base/log.h"
#include "oci/base/strings.h"
#include "oci/base/subprocess.h"

namespace icebox::shim {
namespace {

constexpr Duration kFirstRetry = std::chrono::milliseconds(1);
constexpr Duration kLastRetry = std::chrono::milliseconds(100);
constexpr int kUnknownStatus = 255 << 8;

// The kernel's siginfo of a child as the wait status that waitpid would have given.
int wait_status_of(const siginfo_t& info) {
  if (info.si_code == CLD_EXITED) return (info.si_status & 0xff) << 8;
  return (info.si_status & 0x7f) | (info.si_code == CLD_DUMPED ? 0x80 : 0);
}

enum class Reap { reaped, not_yet, gone };

// One try at a process whose pidfd says that it ended. not_yet: its parent or a tracer has it
// still; ECHILD turns into success when the process is reparented here, and "traced" when the
// tracer has let go. gone: somebody reaped it, which the null signal tells (a zombie can still be
// signalled).
Reap reap(const PidRef& process, int& wait_status) {
  siginfo_t info = {};
  const int rc = ::waitid(P_PIDFD, static_cast<id_t>(process.fd()), &info, WEXITED | WNOHANG);
  if (rc == 0 && info.si_pid != 0) {
    wait_status = wait_status_of(info);
    return Reap::reaped;
  }
  if (rc != 0 && errno == ECHILD) {
    const auto present = process.signal(0);
    if (!present.ok() && present.error().sys_errno == ESRCH) return Reap::gone;
  }
  return Reap::not_yet;
}

}  // namespace

Result<void> Supervisor::become_subreaper() {
  if (::prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0) return errno_error("become subreaper");
  return {};
}

Result<void> Supervisor::watch(PidRef process, ExitHandler on_exit) {
  const pid_t pid = process.pid();
  if (processes_.contains(pid)) {
    return make_error(Code::already_exists,
                      "process " + std::to_string(pid) + " is watched already");
  }
  auto entry = std::make_unique<Process>();
  entry->ref = std::move(process);
  entry->on_exit = std::move(on_exit);
  entry->watch = ICEBOX_TRY(loop_->watch(entry->ref.fd(), EPOLLIN, "process exit",
                                         [this, pid](std::uint32_t) { try_reap(pid); }));
  processes_.emplace(pid, std::move(entry));
  return {};
}

Result<void> Supervisor::watch_pid(pid_t pid, ExitHandler on_exit) {
  PidRef process = ICEBOX_TRY(PidRef::open(pid));
  return watch(std::move(process), std::move(on_exit));
}

void Supervisor::forget(pid_t pid) {
  const auto it = processes_.find(pid);
  if (it != processes_.end()) it->second->on_exit = nullptr;
}

Result<void> Supervisor::signal(pid_t pid, int signo) const {
  const auto it = processes_.find(pid);
  if (it == processes_.end()) {
    return make_error(Code::not_found, "process " + std::to_string(pid) + " is not running");
  }
  return it->second->ref.signal(signo);
}

void Supervisor::try_reap(pid_t pid) {
  const auto it = processes_.find(pid);
  if (it == processes_.end()) return;
  Process& process = *it->second;
  int wait_status = kUnknownStatus;
  if (reap(process.ref, wait_status) != Reap::not_yet) {
    finish(pid, wait_status);
    return;
  }
  // The pidfd stays readable, so leave the poll set and try again: when another process of ours
  // ends (it may have been the parent), and by a timer for a parent or tracer that we do not watch.
  static_cast<void>(process.watch.set_interest(0).ok());
  process.retry_after = process.retry_after == Duration::zero()
                            ? kFirstRetry
                            : std::min(process.retry_after * 2, kLastRetry);
  process.retry = loop_->after(process.retry_after, "process exit", [this, pid] { try_reap(pid); });
}

void Supervisor::finish(pid_t pid, int wait_status) {
  auto node = processes_.extract(pid);
  ExitHandler on_exit = std::move(node.mapped()->on_exit);
  node.mapped().reset();
  retry_unreaped();
  if (!on_exit) return;
  ProcessExit exit;
  exit.pid = pid;
  exit.wait_status = wait_status;
  exit.exit_code = static_cast<unsigned>(exit_code_of(wait_status));
  exit.at = std::chrono::system_clock::now();
  on_exit(exit);
}

void Supervisor::retry_unreaped() {
  for (auto& [pid, process] : processes_) {
    if (!process->retry.active()) continue;
    process->retry = loop_->after(Duration::zero(), "process exit",
                                  [this, watched = pid] { try_reap(watched); });
  }
}

Result<std::size_t> Supervisor::reap_strays() const {
  const std::string path = "/proc/self/task/" + std::to_string(::syscall(SYS_gettid)) + "/children";
  constexpr std::size_t kMaxChildren = 1 << 20;
  const std::string text = ICEBOX_TRY(read_file(path, kMaxChildren));
  std::size_t reaped = 0;
  for (const std::string_view word : split(trim(text), ' ', SplitEmpty::drop)) {
    const auto pid = parse_u64(word);
    if (!pid.ok() || watching(static_cast<pid_t>(*pid))) continue;
    siginfo_t info = {};
    const int rc = ::waitid(P_PID, static_cast<id_t>(*pid), &info, WEXITED | WNOHANG);
    if (rc == 0 && info.si_pid != 0) ++reaped;
  }
  if (reaped > 0) log::debug("reaped stray children", {{"count", std::to_string(reaped)}});
  return reaped;
}

}  // namespace icebox::shim
