// SPDX-License-Identifier: Apache-2.0
#include "runtime-hooks/container/process.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "oci/base/file.h"
#include "oci/base/pid_ref.h"
#include "oci/base/strings.h"
#include "oci/base/unique_fd.h"

namespace icebox::container {
namespace {

constexpr std::size_t kMaxStat = 4096;
constexpr std::size_t kMaxStatus = 64 * 1024;
constexpr std::size_t kMaxCommandLine = 200;

// An open /proc/PID directory names one process: reads through it fail with ESRCH once that process
// is gone, also when the pid has been given to another one.
Result<std::string> read_below(const UniqueFd& directory, const char* name, std::size_t max_bytes) {
  const UniqueFd fd(::openat(directory.get(), name, O_RDONLY | O_CLOEXEC));
  if (!fd) return errno_error(name);
  return read_all(fd.get(), max_bytes);
}

// State (field 3), parent (4) and start time (22) of a stat line. The command name (field 2) may
// hold spaces and parentheses: fields are counted from the last ')'.
Result<void> parse_stat(std::string_view text, Process& process) {
  const auto open = text.find('(');
  const auto close = text.rfind(')');
  if (open == std::string_view::npos || close == std::string_view::npos || close < open) {
    return make_error(Code::unknown, "unexpected content of stat");
  }
  process.comm = std::string(text.substr(open + 1, close - open - 1));
  const auto fields = split(text.substr(close + 1), ' ', SplitEmpty::drop);
  constexpr std::size_t kStartTime = 19;  // field 22, counted from field 3
  if (fields.size() <= kStartTime) return make_error(Code::unknown, "unexpected content of stat");
  process.state = fields[0][0];
  process.parent = static_cast<pid_t>(ICEBOX_TRY(parse_i64(fields[1])));
  process.start_time = ICEBOX_TRY(parse_u64(fields[kStartTime]));
  return {};
}

// TracerPid and NSpid of a status file. A kernel without pid namespaces writes no NSpid.
Result<void> parse_status(std::string_view text, Process& process) {
  for (const auto line : split(text, '\n', SplitEmpty::drop)) {
    if (line.starts_with("TracerPid:")) {
      process.tracer = static_cast<pid_t>(ICEBOX_TRY(parse_i64(trim(line.substr(10)))));
    } else if (line.starts_with("NSpid:")) {
      for (const auto pid : split(trim(line.substr(6)), '\t', SplitEmpty::drop)) {
        process.ns_pids.push_back(static_cast<pid_t>(ICEBOX_TRY(parse_i64(pid))));
      }
    }
  }
  if (process.ns_pids.empty()) process.ns_pids.push_back(process.pid);
  return {};
}

// The arguments joined by spaces; the command name in brackets for a process without any (kernel
// thread, zombie).
std::string command_line_of(const UniqueFd& directory, const std::string& comm) {
  const UniqueFd fd(::openat(directory.get(), "cmdline", O_RDONLY | O_CLOEXEC));
  char buffer[kMaxCommandLine];
  ssize_t n = -1;
  if (fd) {
    do {
      n = ::read(fd.get(), buffer, sizeof buffer);
    } while (n < 0 && errno == EINTR);
  }
  std::string text(buffer, static_cast<std::size_t>(std::max<ssize_t>(n, 0)));
  while (!text.empty() && text.back() == '\0') text.pop_back();
  std::replace(text.begin(), text.end(), '\0', ' ');
  return text.empty() ? "[" + comm + "]" : text;
}

Result<Process> read_open_process(const UniqueFd& directory, pid_t pid) {
  Process process;
  process.pid = pid;
  const auto stat = ICEBOX_TRY(read_below(directory, "stat", kMaxStat));
  ICEBOX_TRY(parse_stat(stat, process));
  const auto status = ICEBOX_TRY(read_below(directory, "status", kMaxStatus));
  ICEBOX_TRY(parse_status(status, process));
  process.command_line = command_line_of(directory, process.comm);
  if (process.zombie()) {
    const auto threads = threads_of(pid);
    process.threads_left = threads.ok() && threads->size() > 1;
  }
  return process;
}

// Walks up from processes to see which descend from one of them. Each parent is looked up once.
class Ancestry {
 public:
  Ancestry(pid_t init, const std::vector<Process>& processes) : init_(init) {
    for (const auto& process : processes) parents_[process.pid] = process.parent;
  }

  bool descends(pid_t pid) {
    std::set<pid_t> seen;  // parent links cannot form a ring, but they are read one after the other
    while (pid > 0 && seen.insert(pid).second) {
      if (pid == init_) return true;
      pid = parent_of(pid);
    }
    return false;
  }

 private:
  // 0 for a process that is gone: what it left has been given to another parent, or is seen again
  // next time.
  pid_t parent_of(pid_t pid) {
    const auto known = parents_.find(pid);
    if (known != parents_.end()) return known->second;
    const auto process = read_process(pid);
    return parents_[pid] = process.ok() ? process->parent : 0;
  }

  pid_t init_;
  std::map<pid_t, pid_t> parents_;
};

}  // namespace

Result<Process> read_process(pid_t pid) {
  const std::string path = "/proc/" + std::to_string(pid);
  const UniqueFd directory(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!directory) return errno_error("process " + std::to_string(pid));
  return read_open_process(directory, pid).context("process " + std::to_string(pid));
}

Result<std::vector<Process>> read_processes(const std::vector<pid_t>& pids) {
  std::vector<Process> processes;
  for (const pid_t pid : pids) {
    auto process = read_process(pid);
    if (process.ok()) {
      processes.push_back(std::move(process).value());
    } else if (process.error().code != Code::not_found) {
      return std::move(process).error();
    }
  }
  return processes;
}

Result<std::vector<pid_t>> threads_of(pid_t pid) {
  const auto names = ICEBOX_TRY(list_directory("/proc/" + std::to_string(pid) + "/task"));
  std::vector<pid_t> threads;
  threads.reserve(names.size());
  for (const auto& name : names) threads.push_back(static_cast<pid_t>(ICEBOX_TRY(parse_i64(name))));
  std::sort(threads.begin(), threads.end());
  return threads;
}

Result<std::vector<Process>> not_descending_from(pid_t init,
                                                 const std::vector<Process>& processes) {
  Ancestry ancestry(init, processes);
  std::vector<Process> strangers;
  for (const auto& process : processes) {
    if (!ancestry.descends(process.pid)) strangers.push_back(process);
  }
  return strangers;
}

Result<void> kill_processes(const std::vector<Process>& processes) {
  std::optional<Error> first;  // one that cannot be killed must not save the others
  for (const auto& process : processes) {
    const auto ref = PidRef::open(process.pid, process.start_time);
    const auto sent = ref.ok() ? ref->signal(SIGKILL) : Result<void>(ref.error());
    if (!sent.ok() && sent.error().code != Code::not_found && !first) first = sent.error();
  }
  if (first) return first->context("kill");
  return {};
}

}  // namespace icebox::container
