// SPDX-License-Identifier: Apache-2.0
//
// The samples, on the simulated driver.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include "tests/component/fakes/harness.h"

namespace icebox::sim::test {
namespace {

using SamplesTest = SimTest;

/// The value of "name=" in a line.
std::string field(const std::string& line, const std::string& name) {
  const auto start = line.find(name + "=");
  if (start == std::string::npos) return {};
  const auto value = start + name.size() + 1;
  return line.substr(value, line.find(' ', value) - value);
}

/// One datagram to the counter and its answer.
std::string exchange(int socket, const std::string& request) {
  EXPECT_EQ(::send(socket, request.data(), request.size(), 0),
            static_cast<ssize_t>(request.size()));
  char answer[512];
  const ssize_t got = ::recv(socket, answer, sizeof answer, 0);
  return got < 0 ? std::string() : std::string(answer, static_cast<std::size_t>(got));
}

UniqueFd connect_udp(int port) {
  UniqueFd fd(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(::connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  const timeval limit{10, 0};
  ::setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  return fd;
}

TEST_F(SamplesTest, CounterCountsAndKeepsItsToken) {
  Process counter(sample("sample-counter", {"--port", "0"}), environment());
  const std::string port = field(counter.line_with("ready"), "port");
  Process ask(sample("sample-counter", {"--ask", "127.0.0.1:" + port, "3"}), environment());
  const std::string first = ask.line();
  EXPECT_EQ(field(first, "counter"), "1");
  EXPECT_EQ(field(first, "pid"), std::to_string(counter.pid()));
  EXPECT_EQ(field(first, "token").size(), 32U);
  EXPECT_EQ(field(ask.line(), "counter"), "2");
  EXPECT_EQ(field(ask.line(), "token"), field(first, "token"));
  EXPECT_EQ(ask.wait(), 0);
  Process get(sample("sample-counter", {"--ask", "localhost:" + port, "1", "--get"}),
              environment());
  EXPECT_EQ(field(get.line(), "counter"), "3");
  // A process that starts afresh has another token: it cannot pass for a restored one.
  Process other(sample("sample-counter", {"--stdin"}), environment());
  other.write("inc\n");
  EXPECT_NE(field(other.line_with("counter"), "token"), field(first, "token"));
}

TEST_F(SamplesTest, CounterCountsARequestThatIsSentAgainOnce) {
  Process counter(sample("sample-counter", {"--port", "0"}), environment());
  const UniqueFd socket = connect_udp(std::stoi(field(counter.line_with("ready"), "port")));
  EXPECT_EQ(field(exchange(socket.get(), "inc 7"), "counter"), "1");
  EXPECT_EQ(field(exchange(socket.get(), "inc 7"), "counter"), "1");
  EXPECT_EQ(field(exchange(socket.get(), "inc 8"), "counter"), "2");
  EXPECT_EQ(field(exchange(socket.get(), "inc"), "counter"), "3");
  EXPECT_EQ(field(exchange(socket.get(), "inc"), "counter"), "4");
  EXPECT_EQ(exchange(socket.get(), "add 9").rfind("error", 0), 0U);
}

TEST_F(SamplesTest, AskFailsWhenNobodyAnswers) {
  UniqueFd silent(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  ASSERT_EQ(::bind(silent.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  ASSERT_EQ(::getsockname(silent.get(), reinterpret_cast<sockaddr*>(&address), &size), 0);
  const std::string port = std::to_string(ntohs(address.sin_port));
  Process ask(sample("sample-counter", {"--ask", "127.0.0.1:" + port, "1", "--timeout-ms", "300"}),
              environment());
  EXPECT_EQ(WEXITSTATUS(ask.wait()), 1);
}

TEST_F(SamplesTest, SigtermEndsAContainersFirstProcess) {
  // Process 1 of a pid namespace ignores signals that it has no handler for.
  auto argv = sample("sample-counter", {"--stdin"});
  argv.insert(argv.begin(), {"unshare", "--pid", "--fork", "--kill-child"});
  Process unshare(argv, environment());
  EXPECT_EQ(field(unshare.line_with("ready"), "pid"), "1");
  pid_t init = 0;
  std::istringstream(read_file("/proc/" + std::to_string(unshare.pid()) + "/task/" +
                               std::to_string(unshare.pid()) + "/children")) >>
      init;
  ASSERT_GT(init, 0);
  EXPECT_TRUE(is_running(init));  // reached by its pid out here
  ::kill(init, SIGTERM);
  EXPECT_EQ(WEXITSTATUS(unshare.wait()), 128 + SIGTERM);
}

TEST_F(SamplesTest, PatternBeatsAndCounts) {
  Process pattern(sample("sample-pattern", {"--mib", "6", "--blocks", "4", "--beats", "3",
                                            "--tick-ms", "1", "--shm", path("beats")}),
                  environment());
  EXPECT_NE(pattern.line_with("ready"), "");
  const std::string first = pattern.line_with("beat 1 ok");
  EXPECT_EQ(field(first, "bytes"), std::to_string(6 << 20));
  EXPECT_EQ(field(pattern.line_with("beat 3 ok"), "hash"), field(first, "hash"));
  EXPECT_EQ(pattern.wait(), 0);
  std::uint64_t beats = 0;
  std::memcpy(&beats, read_file(path("beats")).data(), sizeof beats);
  EXPECT_EQ(beats, 3U);
  Process other(sample("sample-pattern", {"--mib", "6", "--seed", "2", "--beats", "1"}),
                environment());
  EXPECT_NE(field(other.line_with("beat 1 ok"), "hash"), field(first, "hash"));
}

TEST_F(SamplesTest, MultiRunsItsChildrenAndEndsWithThem) {
  Process multi(sample("sample-multi",
                       {"--processes", "2", "--mib", "4", "--tick-ms", "5", "--exec-late", "300"}),
                environment());
  std::set<std::string> hashes;
  std::set<std::string> pids;
  ASSERT_TRUE(eventually([&] {
    const std::string line = multi.line_with("beat ");
    hashes.insert(field(line, "hash"));
    pids.insert(field(line, "pid"));
    return hashes.size() == 3;
  }));
  EXPECT_EQ(pids.size(), 3U);
  std::vector<pid_t> children;
  children.reserve(pids.size());
  for (const std::string& pid : pids) children.push_back(std::stoi(pid));
  for (const pid_t child : children) EXPECT_TRUE(is_running(child));
  EXPECT_EQ(state_of(multi.pid()).result, cu::Result::not_initialized);
  ::kill(children[0], SIGKILL);
  EXPECT_NE(multi.line_with("signal=9"), "");
  EXPECT_EQ(WEXITSTATUS(multi.wait()), 1);
  for (const pid_t child : children)
    EXPECT_TRUE(eventually([&] { return state_of(child).result != cu::Result::success; }));
}

/// What sample-busy --read prints: one count per thread and process.
std::vector<std::uint64_t> busy_counts(const std::vector<std::string>& read_command,
                                       const Process::Environment& environment) {
  Process read(read_command, environment);
  std::vector<std::uint64_t> counts;
  for (std::string line = read.line(); !line.empty(); line = read.line()) {
    std::istringstream words(line);
    std::string name;
    words >> name;
    for (std::uint64_t count = 0; words >> count;) counts.push_back(count);
  }
  return counts;
}

TEST_F(SamplesTest, BusyCountsInEveryThread) {
  std::filesystem::create_directory(path("busy"));
  Process busy(
      sample("sample-busy", {"--dir", path("busy"), "--threads", "2", "--children", "1", "--cuda"}),
      environment());
  ASSERT_NE(busy.line_with("ready"), "");
  ASSERT_NE(busy.line_with("ready"), "");
  const auto read = sample("sample-busy", {"--read", path("busy")});
  const auto all_moved = [&](const std::vector<std::uint64_t>& before) {
    return eventually([&] {
      const auto now = busy_counts(read, environment());
      for (std::size_t i = 0; i < before.size(); ++i)
        if (now[i] <= before[i]) return false;
      return true;
    });
  };
  const auto start = busy_counts(read, environment());
  ASSERT_EQ(start.size(), 6U);
  EXPECT_TRUE(all_moved(start));
  // Lock stops the calls on device memory of that process, and nothing else of it.
  suspend(busy.pid());
  const auto locked = busy_counts(read, environment());
  ASSERT_TRUE(eventually([&] { return busy_counts(read, environment())[0] > locked[0] + 1000; }));
  EXPECT_EQ(busy_counts(read, environment())[2], locked[2]);
  resume(busy.pid());
  EXPECT_TRUE(all_moved(locked));
}

TEST_F(SamplesTest, BusyWithoutCudaNeedsNoDevice) {
  std::filesystem::remove(device());
  std::filesystem::create_directory(path("busy"));
  Process busy(sample("sample-busy", {"--dir", path("busy"), "--threads", "1", "--no-cuda"}),
               environment());
  ASSERT_NE(busy.line_with("ready"), "");
  EXPECT_TRUE(eventually([&] {
    return busy_counts(sample("sample-busy", {"--read", path("busy")}), environment())[0] > 0;
  }));
}

}  // namespace
}  // namespace icebox::sim::test
