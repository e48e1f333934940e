// SPDX-License-Identifier: Apache-2.0
#include "tests/component/fakes/harness.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

namespace icebox::sim::test {
namespace {

using Clock = std::chrono::steady_clock;

/// A character device that CRIU refuses to dump (loop-control).
constexpr unsigned int kDeviceMajor = 10;
constexpr unsigned int kDeviceMinor = 237;

std::vector<char*> pointers(const std::vector<std::string>& words) {
  std::vector<char*> result;
  result.reserve(words.size() + 1);
  for (const std::string& word : words) result.push_back(const_cast<char*>(word.c_str()));
  result.push_back(nullptr);
  return result;
}

[[noreturn]] void exec_child(const std::vector<std::string>& argv,
                             const Process::Environment& environment, int input, int output) {
  ::setsid();
  ::dup2(input, STDIN_FILENO);
  ::dup2(output, STDOUT_FILENO);
  for (const auto& [name, value] : environment) ::setenv(name.c_str(), value.c_str(), 1);
  const auto words = pointers(argv);
  ::execvp(words[0], words.data());
  ::perror(words[0]);
  ::_exit(127);
}

}  // namespace

bool eventually(const std::function<bool()>& condition) {
  const auto deadline = Clock::now() + 20s;
  while (!condition()) {
    if (Clock::now() >= deadline) return false;
    std::this_thread::sleep_for(2ms);
  }
  return true;
}

std::string read_file(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

void write_file(const std::string& path, const std::string& text) {
  // Replaced as a whole: the driver may read it at any time.
  std::ofstream(path + ".new") << text;
  std::filesystem::rename(path + ".new", path);
}

Process::Process(const std::vector<std::string>& argv, const Environment& environment,
                 const std::string& output_file) {
  int in[2];
  int out[2];
  EXPECT_EQ(::pipe2(in, O_CLOEXEC), 0);
  EXPECT_EQ(::pipe2(out, O_CLOEXEC), 0);
  UniqueFd child_input(in[0]);
  UniqueFd child_output(out[1]);
  input_.reset(in[1]);
  output_.reset(out[0]);
  if (!output_file.empty()) {
    child_output.reset(
        ::open(output_file.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
    child_input.reset(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  }
  pid_ = ::fork();
  if (pid_ == 0) exec_child(argv, environment, child_input.get(), child_output.get());
}

Process::~Process() {
  if (pid_ <= 0) return;
  ::kill(-pid_, SIGKILL);  // the session: children of the sample as well
  ::kill(pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
}

void Process::write(const std::string& text) const {
  EXPECT_EQ(::write(input_.get(), text.data(), text.size()), static_cast<ssize_t>(text.size()));
}

std::string Process::line(milliseconds limit) {
  const auto deadline = Clock::now() + limit;
  for (;;) {
    if (const auto end = buffer_.find('\n'); end != std::string::npos) {
      std::string line = buffer_.substr(0, end);
      buffer_.erase(0, end + 1);
      return line;
    }
    const auto left = std::chrono::duration_cast<milliseconds>(deadline - Clock::now());
    pollfd ready{output_.get(), POLLIN, 0};
    if (left <= 0ms || ::poll(&ready, 1, static_cast<int>(left.count())) <= 0) return {};
    char bytes[4096];
    const ssize_t got = ::read(output_.get(), bytes, sizeof bytes);
    if (got <= 0) return {};
    buffer_.append(bytes, static_cast<std::size_t>(got));
  }
}

std::string Process::line_with(const std::string& text, milliseconds limit) {
  const auto deadline = Clock::now() + limit;
  for (;;) {
    const auto left = std::chrono::duration_cast<milliseconds>(deadline - Clock::now());
    std::string next = line(std::max(left, 0ms));
    if (next.empty() || next.find(text) != std::string::npos) return next;
  }
}

int Process::wait(milliseconds limit) {
  const auto deadline = Clock::now() + limit;
  int status = -1;
  while (::waitpid(pid_, &status, WNOHANG) == 0) {
    if (Clock::now() >= deadline) return -1;
    std::this_thread::sleep_for(2ms);
  }
  pid_ = -1;
  return status;
}

std::vector<Mapping> mappings(pid_t pid) {
  std::vector<Mapping> result;
  std::istringstream lines(read_file("/proc/" + std::to_string(pid) + "/maps"));
  for (std::string line; std::getline(lines, line);) {
    Mapping entry{};
    char dash = 0;
    std::string offset;
    std::string device;
    std::string inode;
    std::istringstream fields(line);
    fields >> std::hex >> entry.start >> dash >> entry.end >> entry.access >> offset >> device >>
        inode;
    std::getline(fields >> std::ws, entry.name);
    result.push_back(entry);
  }
  return result;
}

std::vector<Mapping> new_mappings(const std::vector<Mapping>& before,
                                  const std::vector<Mapping>& after) {
  std::vector<Mapping> result;
  for (const Mapping& entry : after)
    if (std::find(before.begin(), before.end(), entry) == before.end()) result.push_back(entry);
  return result;
}

std::vector<int> fds_to(pid_t pid, const std::string& target) {
  std::vector<int> result;
  std::error_code error;
  for (const auto& entry :
       std::filesystem::directory_iterator("/proc/" + std::to_string(pid) + "/fd", error)) {
    if (std::filesystem::read_symlink(entry.path(), error) == target)
      result.push_back(std::stoi(entry.path().filename()));
  }
  return result;
}

void SimTest::SetUp() {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root: makes a device node";
  char name[] = "/tmp/icebox-sim-test.XXXXXX";
  ASSERT_NE(::mkdtemp(name), nullptr);
  dir_ = name;
  ASSERT_EQ(::mknod(device().c_str(), S_IFCHR | 0600, makedev(kDeviceMajor, kDeviceMinor)), 0)
      << std::strerror(errno);
  set_knobs("");
  // The test itself is a caller of the checkpoint API.
  ::setenv("ICEBOX_SIM_DEVICE", device().c_str(), 1);
  ::unsetenv("ICEBOX_SIM_HOST");
}

void SimTest::TearDown() {
  if (!dir_.empty()) std::filesystem::remove_all(dir_);
}

void SimTest::set_knobs(const std::string& lines) const {
  write_file(path("knobs"), "log=" + path("log") + "\n" + lines);
}

void SimTest::set_host(const std::string& lines) const {
  write_file(path("host"), lines);
  ::setenv("ICEBOX_SIM_HOST", path("host").c_str(), 1);
}

std::vector<std::string> SimTest::log() const {
  std::vector<std::string> result;
  std::istringstream lines(read_file(path("log")));
  for (std::string line; std::getline(lines, line);)
    if (line.rfind("get-state", 0) != 0) result.push_back(line);
  return result;
}

Process::Environment SimTest::environment() const {
  return {{"LD_LIBRARY_PATH", ICEBOX_BUILD_DIR "/fakes"},
          {"ICEBOX_SIM_DEVICE", device()},
          {"ICEBOX_SIM_KNOBS", path("knobs")}};
}

std::vector<std::string> SimTest::sample(const std::string& name,
                                         const std::vector<std::string>& arguments) const {
  std::vector<std::string> argv{ICEBOX_BUILD_DIR "/samples/" + name};
  argv.insert(argv.end(), arguments.begin(), arguments.end());
  return argv;
}

std::vector<std::string> sim_ctl(const std::string& action, pid_t pid) {
  const std::string program = ICEBOX_BIN_DIR "/sim-ctl";
  const std::string library = ICEBOX_BUILD_DIR "/fakes/libcuda.so.1";
  return {program, "--lib", library, action, std::to_string(pid)};
}

State state_of(pid_t pid) {
  cu::ProcessState state{};
  const cu::Result result = cu::cuCheckpointProcessGetState(pid, &state);
  return {result, static_cast<int>(state)};
}

bool is_running(pid_t pid) { return state_of(pid) == State{cu::Result::success, 0}; }
bool is_locked(pid_t pid) { return state_of(pid) == State{cu::Result::success, 1}; }
bool is_checkpointed(pid_t pid) { return state_of(pid) == State{cu::Result::success, 2}; }

cu::Result lock(pid_t pid, unsigned int timeout_ms) {
  cu::LockArgs args{};
  args.timeout_ms = timeout_ms;
  return cu::cuCheckpointProcessLock(pid, &args);
}

cu::Result checkpoint(pid_t pid) {
  cu::CheckpointArgs args{};
  return cu::cuCheckpointProcessCheckpoint(pid, &args);
}

cu::Result restore(pid_t pid, std::vector<cu::GpuPair> pairs) {
  cu::RestoreArgs args{};
  args.gpu_pairs = pairs.empty() ? nullptr : pairs.data();
  args.gpu_pairs_count = static_cast<unsigned int>(pairs.size());
  return cu::cuCheckpointProcessRestore(pid, &args);
}

cu::Result unlock(pid_t pid) {
  cu::UnlockArgs args{};
  return cu::cuCheckpointProcessUnlock(pid, &args);
}

void suspend(pid_t pid) {
  ASSERT_EQ(lock(pid), cu::Result::success);
  ASSERT_EQ(checkpoint(pid), cu::Result::success);
}

void resume(pid_t pid) {
  ASSERT_EQ(restore(pid), cu::Result::success);
  ASSERT_EQ(unlock(pid), cu::Result::success);
}

}  // namespace icebox::sim::test
