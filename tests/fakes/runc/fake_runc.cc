// SPDX-License-Identifier: Apache-2.0
// A runtime with runc's command line and no containers: processes run on the machine as they are.
// It stands in for icebox-runc under the real shim, so that tests decide when each command ends,
// how, and in which order things happen. Pausing is SIGSTOP, a checkpoint is a file with the args.
//
// $FAKE_RUNC_DIR: every call is appended to the file `calls` there, and a file named after the
// command scripts it, one step a line, before the command's work ("after <step>": behind it):
//   touch FILE          tell the test that this point was reached
//   wait FILE           go on when FILE exists
//   fail MESSAGE        log an error and exit 1
//   die                 end by SIGKILL
//   init-exits CODE     (create) init ends before create does
//   exec-exits CODE     (exec) likewise
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "oci/base/file.h"
#include "oci/base/log.h"
#include "oci/base/strings.h"
#include "tests/fakes/runc/containers.h"

namespace icebox::fake {
namespace {

constexpr std::size_t kMaxFile = 1UL << 20;

struct Call {
  std::string command;
  std::map<std::string, std::string> options;  // flags that are set have "1"
  std::string id;
  std::vector<std::string> rest;

  [[nodiscard]] std::string get(const std::string& name) const {
    const auto found = options.find(name);
    return found == options.end() ? "" : found->second;
  }
  [[nodiscard]] std::string directory() const { return get("root") + "/" + id; }
};

bool takes_value(const std::string& name) {
  for (const char* known :
       {"root", "log", "log-format", "bundle", "pid-file", "console-socket", "process", "resources",
        "image-path", "work-path", "parent-path", "empty-ns", "format"}) {
    if (name == known) return true;
  }
  return false;
}

Call parse(int argc, char** argv) {
  Call call;
  std::vector<std::string> words;
  for (int i = 1; i < argc; ++i) {
    std::string word = argv[i];
    if (!word.starts_with("-") || word == "-") {
      words.push_back(word);
      continue;
    }
    word.erase(0, word.starts_with("--") ? 2 : 1);
    call.options[word] = takes_value(word) && i + 1 < argc ? argv[++i] : "1";
  }
  if (!words.empty()) call.command = words[0];
  if (words.size() > 1) call.id = words[1];
  if (words.size() > 2) call.rest.assign(words.begin() + 2, words.end());
  return call;
}

[[noreturn]] void fail(const Call& call, const std::string& message) {
  if (const std::string path = call.get("log"); !path.empty()) {
    const Result<UniqueFd> log = open_file(path, O_WRONLY | O_CREAT | O_APPEND, 0644);
    if (log.ok()) {
      (void)write_all(log->get(), R"({"level":"error","msg":)" + log::json_quote(message) + "}\n");
    }
  }
  std::cerr << message << '\n';
  ::exit(1);
}

struct Script {
  std::vector<std::string> before;
  std::vector<std::string> after;
  int exit_code = -1;  // of init-exits and exec-exits
};

Script load_script(const std::string& command) {
  Script script;
  const char* directory = ::getenv("FAKE_RUNC_DIR");
  if (directory == nullptr) return script;
  const std::string text = read_file(std::string(directory) + "/" + command, kMaxFile).value_or("");
  for (const std::string_view line : split(text, '\n', SplitEmpty::drop)) {
    if (line.starts_with("after ")) {
      script.after.emplace_back(line.substr(6));
    } else if (line.starts_with("init-exits ") || line.starts_with("exec-exits ")) {
      script.exit_code = static_cast<int>(parse_i64(line.substr(11)).value_or(0));
    } else {
      script.before.emplace_back(line);
    }
  }
  return script;
}

void play(const Call& call, const std::vector<std::string>& steps) {
  for (const std::string& step : steps) {
    const std::size_t space = step.find(' ');
    const std::string verb = step.substr(0, space);
    const std::string rest = space == std::string::npos ? "" : step.substr(space + 1);
    if (verb == "touch") {
      (void)write_file_atomic(rest, "", 0600, Durable::no);
    } else if (verb == "wait") {
      while (!exists(rest)) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    } else if (verb == "die") {
      ::raise(SIGKILL);
    } else if (verb == "fail") {
      fail(call, rest);
    }
  }
}

void record_call(int argc, char** argv) {
  const char* directory = ::getenv("FAKE_RUNC_DIR");
  if (directory == nullptr) return;
  std::string line;
  for (int i = 1; i < argc; ++i) line += std::string(i > 1 ? " " : "") + argv[i];
  const Result<UniqueFd> calls =
      open_file(std::string(directory) + "/calls", O_WRONLY | O_CREAT | O_APPEND, 0600);
  if (calls.ok()) (void)write_all(calls->get(), line + "\n");
}

Result<void> write_pid(const Call& call, pid_t pid) {
  return write_file_atomic(call.get("pid-file"), std::to_string(pid), 0644, Durable::no);
}

Result<void> create(const Call& call, const Script& script) {
  if (exists(call.directory())) {
    return make_error(Code::already_exists, "container with given ID already exists");
  }
  ICEBOX_TRY(make_directories(call.directory(), 0711));
  Process process;
  process.args = ICEBOX_TRY(process_args(call.get("bundle") + "/config.json"));
  process.console_socket = call.get("console-socket");
  process.exit_at_once = script.exit_code;
  process.gate = call.directory() + "/gate";
  if (::mkfifo(process.gate.c_str(), 0600) != 0) return errno_error("mkfifo");
  const pid_t pid = ICEBOX_TRY(launch(process));
  if (script.exit_code >= 0) {
    while (alive(pid)) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  ICEBOX_TRY(write_pid(call, pid));
  return save(call.directory(), Record{pid, false, false});
}

Result<void> start(const Call& call) {
  Record record = ICEBOX_TRY(load(call.directory()));
  // The gate is opened by init; when init is dead nobody does.
  UniqueFd gate;
  while (!gate) {
    if (!alive(record.pid)) {
      return make_error(Code::unknown, "cannot start a container that has stopped");
    }
    gate =
        UniqueFd(::open((call.directory() + "/gate").c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC));
    if (!gate) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  record.started = true;
  ICEBOX_TRY(save(call.directory(), record));
  return write_all(gate.get(), "x");
}

Result<void> exec(const Call& call, const Script& script) {
  const Record record = ICEBOX_TRY(load(call.directory()));
  if (!alive(record.pid)) return make_error(Code::unknown, "cannot exec in a stopped container");
  Process process;
  process.args = ICEBOX_TRY(process_args(call.get("process")));
  process.console_socket = call.get("console-socket");
  process.exit_at_once = script.exit_code;
  const pid_t pid = ICEBOX_TRY(launch(process));
  if (script.exit_code >= 0) {
    while (alive(pid)) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return write_pid(call, pid);
}

Result<void> kill_container(const Call& call) {
  const Record record = ICEBOX_TRY(load(call.directory()));
  const int signo =
      call.rest.empty() ? SIGTERM : static_cast<int>(parse_i64(call.rest[0]).value_or(SIGTERM));
  if (!alive(record.pid)) return make_error(Code::unknown, "container not running");
  if (::kill(record.pid, signo) != 0) return errno_error("kill");
  return {};
}

Result<void> remove(const Call& call) {
  const bool force = !call.get("force").empty();
  const Result<Record> record = load(call.directory());
  if (!record.ok()) {
    if (!force) return record.error();
    return remove_tree(call.directory());
  }
  if (alive(record->pid)) {
    if (record->started && !force) {
      return make_error(Code::unknown, "cannot delete container that is not stopped");
    }
    ::kill(record->pid, SIGKILL);
  }
  return remove_tree(call.directory());
}

Result<void> set_paused(const Call& call, bool paused) {
  Record record = ICEBOX_TRY(load(call.directory()));
  if (record.paused == paused) {
    return make_error(Code::unknown, paused ? "container already paused" : "container not paused");
  }
  ::kill(-record.pid, paused ? SIGSTOP : SIGCONT);
  record.paused = paused;
  return save(call.directory(), record);
}

Result<void> checkpoint(const Call& call) {
  const Record record = ICEBOX_TRY(load(call.directory()));
  const std::string cmdline =
      ICEBOX_TRY(read_file("/proc/" + std::to_string(record.pid) + "/cmdline", kMaxFile));
  ICEBOX_TRY(write_file_atomic(call.get("image-path") + "/fake.img", cmdline, 0600, Durable::no));
  if (!call.get("leave-running").empty()) return {};
  ::kill(record.pid, SIGKILL);
  return remove_tree(call.directory());
}

Result<void> restore(const Call& call) {
  const std::string image = ICEBOX_TRY(read_file(call.get("image-path") + "/fake.img", kMaxFile));
  ICEBOX_TRY(make_directories(call.directory(), 0711));
  Process process;
  for (const std::string_view arg : split(image, '\0', SplitEmpty::drop)) {
    process.args.emplace_back(arg);
  }
  process.console_socket = call.get("console-socket");
  const pid_t pid = ICEBOX_TRY(launch(process));
  ICEBOX_TRY(write_pid(call, pid));
  return save(call.directory(), Record{pid, true, false});
}

Result<void> run_command(const Call& call, const Script& script) {
  if (call.command == "create") return create(call, script);
  if (call.command == "start") return start(call);
  if (call.command == "exec") return exec(call, script);
  if (call.command == "kill") return kill_container(call);
  if (call.command == "delete") return remove(call);
  if (call.command == "pause") return set_paused(call, true);
  if (call.command == "resume") return set_paused(call, false);
  if (call.command == "checkpoint") return checkpoint(call);
  if (call.command == "restore") return restore(call);
  if (call.command == "update") {
    const std::string resources = ICEBOX_TRY(read_file(call.get("resources"), kMaxFile));
    return write_file_atomic(call.directory() + "/resources.json", resources, 0600, Durable::no);
  }
  if (call.command == "features") {
    std::cout << R"({"ociVersionMin":"1.0.0"})" << '\n';
    return {};
  }
  return make_error(Code::unknown, "no such command: " + call.command);
}

}  // namespace
}  // namespace icebox::fake

int main(int argc, char** argv) {
  using namespace icebox::fake;  // NOLINT(google-build-using-namespace)
  const Call call = parse(argc, argv);
  record_call(argc, argv);
  const Script script = load_script(call.command);
  play(call, script.before);
  if (const icebox::Result<void> done = run_command(call, script); !done.ok()) {
    fail(call, done.error().message);
  }
  play(call, script.after);
  return 0;
}
