// SPDX-License-Identifier: Apache-2.0
#include "oci/base/subprocess.h"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "oci/base/file.h"

namespace icebox {
namespace {

// What the child reports through the close-on-exec pipe when it cannot become the program.
struct ChildFailure {
  int err;
  char step;  // 'u' unshare, 'm' mount, 'c' chdir, 'f' fds, 'e' exec
};

const char* step_name(char step) {
  switch (step) {
    case 'u': return "private mount namespace";
    case 'm': return "private mount propagation";
    case 'c': return "working directory";
    case 'f': return "file descriptors";
    default: return "exec";
  }
}

std::vector<char*> pointers(const std::vector<std::string>& strings) {
  std::vector<char*> result;
  result.reserve(strings.size() + 1);
  for (const auto& text : strings) result.push_back(const_cast<char*>(text.c_str()));
  result.push_back(nullptr);
  return result;
}

// Everything the child needs, prepared before fork: after it only async-signal-safe calls are made.
struct ChildPlan {
  const Command* command;
  std::string program;
  std::vector<char*> argv;
  std::vector<char*> envp;
  std::vector<std::pair<int, int>> fds;
  int report_fd;
  pid_t parent;
};

[[noreturn]] void fail_child(int fd, char step) {
  const ChildFailure failure = {errno, step};
  [[maybe_unused]] const ssize_t n = ::write(fd, &failure, sizeof failure);
  ::_exit(127);
}

// Moves every source out of the way of every target first, so that a swap such as {0->1, 1->0}
// works.
bool install_fds(ChildPlan& plan) {
  int floor = plan.report_fd + 1;
  for (const auto& [from, to] : plan.fds) floor = std::max({floor, to + 1, from + 1});
  // The report pipe too: a target such as 5 may be its number, and a failed exec would look like a
  // started program.
  const int report_fd = ::fcntl(plan.report_fd, F_DUPFD_CLOEXEC, floor);
  if (report_fd < 0) return false;
  plan.report_fd = report_fd;
  for (auto& [from, to] : plan.fds) {
    from = ::fcntl(from, F_DUPFD_CLOEXEC, floor);
    if (from < 0) return false;
  }
  for (const auto& [from, to] : plan.fds) {
    if (::dup2(from, to) < 0) return false;
  }
  return true;
}

[[noreturn]] void run_child(ChildPlan& plan) {
  const Command& command = *plan.command;
  sigset_t none;
  ::sigemptyset(&none);
  for (int signo = 1; signo < NSIG; ++signo) ::signal(signo, SIG_DFL);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  if (command.death_signal != 0) {
    ::prctl(PR_SET_PDEATHSIG, command.death_signal);
    if (::getppid() != plan.parent) ::_exit(127);
  }
  if (command.new_session) ::setsid();
  if (command.private_mounts) {
    if (::unshare(CLONE_NEWNS) != 0) fail_child(plan.report_fd, 'u');
    if (::mount(nullptr, "/", nullptr, MS_SLAVE | MS_REC, nullptr) != 0)
      fail_child(plan.report_fd, 'm');
  }
  if (!command.cwd.empty() && ::chdir(command.cwd.c_str()) != 0) fail_child(plan.report_fd, 'c');
  if (!install_fds(plan)) fail_child(plan.report_fd, 'f');
  ::execve(plan.program.c_str(), plan.argv.data(), plan.envp.data());
  fail_child(plan.report_fd, 'e');
}

// Keeps the last `limit` bytes.
void append_tail(std::string& text, const char* data, std::size_t size, std::size_t limit) {
  text.append(data, size);
  if (text.size() > limit) text.erase(0, text.size() - limit);
}

struct Capture {
  UniqueFd fd;
  std::string* text;
  bool tail;
};

// Reads what is there. False once the stream ended.
bool drain(Capture& capture, std::size_t limit) {
  char buffer[16384];
  for (;;) {
    const ssize_t n = ::read(capture.fd.get(), buffer, sizeof buffer);
    if (n < 0) return errno == EAGAIN || errno == EINTR;
    if (n == 0) return false;
    if (capture.tail) {
      append_tail(*capture.text, buffer, static_cast<std::size_t>(n), limit);
    } else if (capture.text->size() < limit) {
      capture.text->append(buffer,
                           std::min(static_cast<std::size_t>(n), limit - capture.text->size()));
    }
  }
}

Result<std::pair<UniqueFd, UniqueFd>> make_pipe() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return errno_error("pipe");
  return std::pair{UniqueFd(ends[0]), UniqueFd(ends[1])};
}

}  // namespace

Result<Child> spawn(const Command& command) {
  if (command.argv.empty()) return make_error(Code::invalid_argument, "no program to run");
  ChildPlan plan = {};
  plan.command = &command;
  plan.program = ICEBOX_TRY(find_program(command.argv[0]));
  plan.argv = pointers(command.argv);
  if (command.env) {
    plan.envp = pointers(*command.env);
  } else {
    for (char** entry = environ; *entry != nullptr; ++entry) plan.envp.push_back(*entry);
    plan.envp.push_back(nullptr);
  }
  plan.fds = command.fds;
  UniqueFd null_fd;
  if (!command.inherit_stdio) {
    null_fd = ICEBOX_TRY(open_file("/dev/null", O_RDWR));
    for (int fd = 0; fd <= 2; ++fd) {
      const bool named = std::any_of(plan.fds.begin(), plan.fds.end(),
                                     [&](const auto& m) { return m.second == fd; });
      if (!named) plan.fds.emplace_back(null_fd.get(), fd);
    }
  }
  auto [read_end, write_end] = ICEBOX_TRY(make_pipe());
  plan.report_fd = write_end.get();
  plan.parent = ::getpid();

  const pid_t pid = ::fork();
  if (pid < 0) return errno_error("fork");
  if (pid == 0) run_child(plan);
  write_end.reset();
  ChildFailure failure = {};
  ssize_t n = -1;
  do {
    n = ::read(read_end.get(), &failure, sizeof failure);
  } while (n < 0 && errno == EINTR);
  if (n == static_cast<ssize_t>(sizeof failure)) {
    ::waitpid(pid, nullptr, 0);
    return errno_error(command.argv[0] + ": " + step_name(failure.step), failure.err);
  }
  return Child{ICEBOX_TRY(PidRef::open(pid))};
}

int exit_code_of(int wait_status) {
  if (WIFEXITED(wait_status)) return WEXITSTATUS(wait_status);
  if (WIFSIGNALED(wait_status)) return 128 + WTERMSIG(wait_status);
  return 255;
}

Result<int> wait_status(const PidRef& process) {
  int status = 0;
  for (;;) {
    const pid_t pid = ::waitpid(process.pid(), &status, 0);
    if (pid == process.pid()) return status;
    if (errno != EINTR) return errno_error("wait for process " + std::to_string(process.pid()));
  }
}

Result<Output> run(const Command& command, const RunOptions& options) {
  Command piped = command;
  Output output;
  std::vector<Capture> captures;
  std::vector<UniqueFd> child_ends;
  for (const int fd : {1, 2}) {
    const bool named = std::any_of(piped.fds.begin(), piped.fds.end(),
                                   [&](const auto& m) { return m.second == fd; });
    if (named || piped.inherit_stdio) continue;
    auto [read_end, write_end] = ICEBOX_TRY(make_pipe());
    ::fcntl(read_end.get(), F_SETFL, O_NONBLOCK);
    piped.fds.emplace_back(write_end.get(), fd);
    child_ends.push_back(std::move(write_end));
    captures.push_back({std::move(read_end), fd == 1 ? &output.out : &output.err, fd == 2});
  }
  const Child child = ICEBOX_TRY(spawn(piped));
  child_ends.clear();
  if (options.on_start) options.on_start(child.process);

  const auto start = std::chrono::steady_clock::now();
  bool timed_out = false;
  for (;;) {
    std::vector<struct pollfd> entries;
    entries.push_back({child.process.fd(), POLLIN, 0});
    for (const auto& capture : captures) entries.push_back({capture.fd.get(), POLLIN, 0});
    int timeout = -1;
    if (options.deadline && !timed_out) {
      const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
          start + *options.deadline - std::chrono::steady_clock::now());
      timeout = static_cast<int>(std::max<std::int64_t>(left.count(), 0));
    }
    const int n = ::poll(entries.data(), entries.size(), timeout);
    if (n < 0 && errno != EINTR) return errno_error("poll");
    if (n == 0) {
      timed_out = true;
      static_cast<void>(child.process.signal(SIGKILL).ok());
      continue;
    }
    const bool ended = (entries[0].revents & POLLIN) != 0;
    for (auto& capture : captures) {
      if (!drain(capture, options.max_output)) capture.fd.reset();
    }
    std::erase_if(captures, [](const Capture& capture) { return !capture.fd.valid(); });
    if (ended) break;
  }
  output.wait_status = ICEBOX_TRY(wait_status(child.process));
  if (timed_out) {
    return make_error(Code::deadline_exceeded, command.argv[0] + " did not end within " +
                                                   std::to_string(options.deadline->count()) +
                                                   " ms");
  }
  return output;
}

}  // namespace icebox
