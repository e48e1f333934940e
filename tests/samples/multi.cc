// SPDX-License-Identifier: Apache-2.0
//
// sample-multi: several CUDA processes in one tree. The parent has no CUDA; each child is a fork
// and exec of this program with a context and a pattern of its own, and talks to the parent by a
// pipe.
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "tests/samples/device.h"
#include "tests/samples/pattern_main.h"

namespace {

using namespace icebox::samples;

struct Arguments {
  std::uint64_t processes = 3;
  std::uint64_t devices = 1;
  std::uint64_t late_ms = 0;
  bool late = false;
  bool is_child = false;
  std::uint64_t child = 0;
  PatternRun pattern;
};

struct Child {
  std::uint64_t index;
  pid_t pid;
  int output;
  std::string partial;  // a line that is not complete yet
};

[[noreturn]] void fail(const char* what) {
  std::fprintf(stderr, "%s: %s: %s\n", program_invocation_short_name, what, std::strerror(errno));
  std::exit(2);
}

[[noreturn]] void exec_child(const Arguments& arguments, std::uint64_t index, int output) {
  // A supervisor that dies must not leave children behind.
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  ::dup2(output, STDOUT_FILENO);
  const std::string words[] = {program_invocation_short_name,
                               "--child",
                               std::to_string(index),
                               "--mib",
                               std::to_string(arguments.pattern.mib),
                               "--seed",
                               std::to_string(arguments.pattern.seed + index),
                               "--tick-ms",
                               std::to_string(arguments.pattern.tick_ms),
                               "--device",
                               std::to_string(index % arguments.devices)};
  std::vector<char*> argv;
  for (const std::string& word : words) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  ::execv("/proc/self/exe", argv.data());
  fail("exec");
}

Child start_child(const Arguments& arguments, std::uint64_t index) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) fail("pipe");
  const pid_t pid = ::fork();
  if (pid < 0) fail("fork");
  if (pid == 0) exec_child(arguments, index, ends[1]);
  ::close(ends[1]);
  return {index, pid, ends[0], {}};
}

/// Prints the lines that have come from the child. False at its end.
bool forward_lines(Child& child) {
  char buffer[4096];
  const ssize_t got = ::read(child.output, buffer, sizeof buffer);
  if (got < 0 && errno == EINTR) return true;
  if (got <= 0) return false;
  child.partial.append(buffer, static_cast<std::size_t>(got));
  for (std::size_t end; (end = child.partial.find('\n')) != std::string::npos;) {
    say("child %llu pid=%d: %s", static_cast<unsigned long long>(child.index),
        static_cast<int>(child.pid), child.partial.substr(0, end).c_str());
    child.partial.erase(0, end + 1);
  }
  return true;
}

int end_all(const std::vector<Child>& children, const Child& ended) {
  int status = 0;
  while (::waitpid(ended.pid, &status, 0) < 0 && errno == EINTR) {
  }
  say("child %llu pid=%d: ended status=%d signal=%d", static_cast<unsigned long long>(ended.index),
      static_cast<int>(ended.pid), WIFEXITED(status) ? WEXITSTATUS(status) : -1,
      WIFSIGNALED(status) ? WTERMSIG(status) : 0);
  for (const Child& child : children)
    if (child.pid != ended.pid) ::kill(child.pid, SIGKILL);
  return 1;
}

/// Runs until a child ends, which they never do by themselves.
int supervise(const Arguments& arguments) {
  std::vector<Child> children;
  for (std::uint64_t i = 0; i < arguments.processes; ++i)
    children.push_back(start_child(arguments, i));
  bool late_due = arguments.late;
  const std::uint64_t late_at = now_ms() + arguments.late_ms;
  for (;;) {
    std::vector<pollfd> ready;
    ready.reserve(children.size());
    for (const Child& child : children) ready.push_back({child.output, POLLIN, 0});
    const std::uint64_t now = now_ms();
    const int wait = !late_due ? -1 : late_at > now ? static_cast<int>(late_at - now) : 0;
    if (::poll(ready.data(), ready.size(), wait) < 0 && errno != EINTR) fail("poll");
    for (std::size_t i = 0; i < ready.size(); ++i) {
      if (ready[i].revents != 0 && !forward_lines(children[i]))
        return end_all(children, children[i]);
    }
    if (late_due && now_ms() >= late_at) {
      late_due = false;
      children.push_back(start_child(arguments, arguments.processes));
    }
  }
}

Arguments parse(int argc, char** argv) {
  Arguments arguments;
  for (int i = 1; i < argc; i += 2) {
    const std::string_view word = argv[i];
    const char* value = i + 1 < argc ? argv[i + 1] : nullptr;
    if (word == "--processes") {
      arguments.processes = number("--processes", value);
    } else if (word == "--devices") {
      arguments.devices = number("--devices", value);
    } else if (word == "--exec-late") {
      arguments.late = true;
      arguments.late_ms = number("--exec-late", value);
    } else if (word == "--mib") {
      arguments.pattern.mib = number("--mib", value);
    } else if (word == "--seed") {
      arguments.pattern.seed = number("--seed", value);
    } else if (word == "--tick-ms") {
      arguments.pattern.tick_ms = number("--tick-ms", value);
    } else if (word == "--device") {
      arguments.pattern.device = static_cast<int>(number("--device", value));
    } else if (word == "--child") {
      arguments.is_child = true;
      arguments.child = number("--child", value);
    } else {
      std::fputs(
          "usage: sample-multi [--processes N] [--mib N] [--seed S] [--tick-ms T] [--devices K]\n"
          "                    [--exec-late MS]\n"
          "\n"
          "N child processes (3), each with N MiB and the pattern of seed S + its index, on "
          "device\n"
          "index % K (K = 1). --exec-late starts one more after MS milliseconds. Prints their "
          "lines;\n"
          "ends with exit status 1 when one of them ends.\n",
          stderr);
      std::exit(2);
    }
  }
  if (arguments.devices == 0) arguments.devices = 1;
  return arguments;
}

}  // namespace

int main(int argc, char** argv) {
  end_on_signals();
  const Arguments arguments = parse(argc, argv);
  return arguments.is_child ? run_pattern(arguments.pattern) : supervise(arguments);
}
