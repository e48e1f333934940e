// SPDX-License-Identifier: Apache-2.0
#include "tests/component/cuda/sim_host.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sstream>

#include "oci/base/file.h"
#include "oci/base/subprocess.h"

namespace icebox::cuda::testing {
namespace {

namespace fs = std::filesystem;

// A test's own surroundings are broken: no result could be trusted.
[[noreturn]] void give_up(const std::string& why) {
  std::fprintf(stderr, "sim_host: %s\n", why.c_str());
  std::abort();
}

template <typename T>
T must(Result<T> result) {
  if (!result.ok()) give_up(result.error().message);
  return std::move(result).value();
}

}  // namespace

SimHost::SimHost(const std::string& lines) {
  std::string pattern = (fs::temp_directory_path() / "icebox-sim-XXXXXX").string();
  if (::mkdtemp(pattern.data()) == nullptr) give_up("no temporary folder");
  folder_ = pattern;
  const fs::path fakes = fs::path(ICEBOX_BUILD_DIR) / "fakes";
  for (const char* library : {"libcuda.so.1", "libnvidia-ml.so.1"}) {
    fs::create_symlink(fakes / library, folder_ / library);
  }
  // A misc device, as the end-to-end tests have it: a character device that CRIU would refuse.
  const std::string node = path("nvidia0");
  if (::mknod(node.c_str(), S_IFCHR | 0666, makedev(10, 237)) != 0) {
    give_up("cannot make a device node (the test needs root): " + std::string(strerror(errno)));
  }
  const auto written = write_file_atomic(path("icebox-sim.conf"), "device=" + node + "\n" + lines,
                                         0644, Durable::no);
  if (!written.ok()) give_up(written.error().message);
}

SimHost::~SimHost() {
  std::error_code ignored;
  fs::remove_all(folder_, ignored);
}

GpuAgent::Options SimHost::options() const {
  GpuAgent::Options options;
  options.agent_path = std::string(ICEBOX_BIN_DIR) + "/icebox-gpu";
  options.libcuda = libcuda();
  options.libnvidia_ml = path("libnvidia-ml.so.1");
  return options;
}

GpuAgent SimHost::agent() const { return must(GpuAgent::start(options())); }

Sample::Sample(const SimHost& host, std::vector<std::string> command) {
  static int number = 0;
  knobs_ = host.path("knobs." + std::to_string(++number));
  set_knobs("");
  int in[2];
  int out[2];
  if (::pipe2(in, O_CLOEXEC) != 0 || ::pipe2(out, O_CLOEXEC) != 0) give_up("pipe");
  const UniqueFd their_input(in[0]);
  const UniqueFd their_output(out[1]);
  input_ = UniqueFd(in[1]);
  output_ = UniqueFd(out[0]);
  Command program;
  command[0] = std::string(ICEBOX_BUILD_DIR) + "/samples/" + command[0];
  program.argv = std::move(command);
  program.env = {"LD_LIBRARY_PATH=" + host.folder(), "ICEBOX_SIM_KNOBS=" + knobs_};
  program.fds = {{their_input.get(), 0}, {their_output.get(), 1}, {2, 2}};
  program.death_signal = SIGKILL;
  process_ = std::move(must(spawn(program)).process);
  target_ = {process_.pid(), must(process_start_time(process_.pid()))};
  ready_line_ = read_line();
  if (!ready_line_.starts_with("ready")) give_up("no ready line from " + program.argv[0]);
}

Sample::~Sample() {
  kill();
  static_cast<void>(wait_status(process_).ok());
}

void Sample::kill() const { static_cast<void>(process_.signal(SIGKILL).ok()); }

void Sample::set_knobs(const std::string& lines) const {
  const auto written = write_file_atomic(knobs_, lines, 0644, Durable::no);
  if (!written.ok()) give_up(written.error().message);
}

void Sample::send(const std::string& request) const {
  const auto sent = write_all(input_.get(), request + "\n");
  if (!sent.ok()) give_up(sent.error().message);
}

std::string Sample::read_line(std::chrono::milliseconds patience) {
  const auto limit = std::chrono::steady_clock::now() + patience;
  for (;;) {
    const auto end = buffer_.find('\n');
    if (end != std::string::npos) {
      std::string line = buffer_.substr(0, end);
      buffer_.erase(0, end + 1);
      return line;
    }
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        limit - std::chrono::steady_clock::now());
    pollfd ready = {output_.get(), POLLIN, 0};
    if (left.count() <= 0 || ::poll(&ready, 1, static_cast<int>(left.count())) <= 0) return {};
    char bytes[512];
    const ssize_t got = ::read(output_.get(), bytes, sizeof bytes);
    if (got <= 0) return {};
    buffer_.append(bytes, static_cast<std::size_t>(got));
  }
}

std::map<std::string, std::string> Sample::ask(const std::string& request) {
  send(request);
  return words_of(read_line());
}

GpuUse Sample::use() const { return must(inspect_process(pid(), must(read_nvidia_majors()))); }

std::map<std::string, std::string> words_of(const std::string& line) {
  std::map<std::string, std::string> words;
  std::istringstream stream(line);
  for (std::string word; stream >> word;) {
    const auto equals = word.find('=');
    if (equals != std::string::npos) words[word.substr(0, equals)] = word.substr(equals + 1);
  }
  return words;
}

}  // namespace icebox::cuda::testing
