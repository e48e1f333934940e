// SPDX-License-Identifier: Apache-2.0
//
// The simulated driver's state machine: what it answers, what it does to the process.
#include <sys/ptrace.h>
#include <sys/uio.h>
#include <sys/wait.h>

#include <csignal>
#include <filesystem>
#include <future>
#include <sstream>

#include "tests/component/fakes/harness.h"

namespace icebox::sim::test {
namespace {

using cu::Result;
using StateTest = SimTest;

std::vector<std::string> counter_arguments() { return {"--stdin", "--mib", "8"}; }

std::string token_of(const std::string& answer) {
  const auto start = answer.find("token=");
  return start == std::string::npos ? "" : answer.substr(start, 6 + 32);
}

/// Bytes of a process's memory.
std::string peek(pid_t pid, std::uint64_t address, std::size_t size) {
  std::string bytes(size, '\0');
  iovec here{bytes.data(), size};
  iovec there{reinterpret_cast<void*>(address), size};
  const ssize_t got = ::process_vm_readv(pid, &here, 1, &there, 1, 0);
  bytes.resize(got < 0 ? 0 : static_cast<std::size_t>(got));
  return bytes;
}

/// The anonymous, private, writable mappings that are in `after` only. (The stack may grow
/// meanwhile.)
std::vector<Mapping> new_anonymous(const std::vector<Mapping>& before,
                                   const std::vector<Mapping>& after) {
  std::vector<Mapping> result;
  for (const Mapping& entry : new_mappings(before, after))
    if (entry.access == "rw-p" && entry.name.empty()) result.push_back(entry);
  return result;
}

TEST_F(StateTest, AnswersAsTheRealDriverDid) {
  Process contract({ICEBOX_BIN_DIR "/driver-contract"}, environment());
  std::istringstream expected(read_file(ICEBOX_SOURCE_DIR "/tests/fakes/cuda/contract-580.txt"));
  int lines = 0;
  for (std::string line; std::getline(expected, line); ++lines) EXPECT_EQ(contract.line(), line);
  EXPECT_GT(lines, 80);
  EXPECT_EQ(contract.wait(), 0);
}

TEST_F(StateTest, CarriesContentThroughACycle) {
  Process counter(sample("sample-counter", counter_arguments()), environment());
  ASSERT_NE(counter.line_with("ready"), "");
  counter.write("inc\ninc\n");
  counter.line();
  const std::string before = counter.line();
  EXPECT_EQ(before.rfind("counter=2 ", 0), 0U) << before;
  suspend(counter.pid());
  EXPECT_TRUE(is_checkpointed(counter.pid()));
  resume(counter.pid());
  EXPECT_TRUE(is_running(counter.pid()));
  counter.write("inc\n");
  const std::string after = counter.line();
  EXPECT_EQ(after.rfind("counter=3 ", 0), 0U) << after;
  EXPECT_EQ(token_of(after), token_of(before));
}

TEST_F(StateTest, CudaCallsWaitWhileLocked) {
  Process counter(sample("sample-counter", counter_arguments()), environment());
  ASSERT_NE(counter.line_with("ready"), "");
  ASSERT_EQ(lock(counter.pid()), Result::success);
  counter.write("inc\n");
  EXPECT_EQ(counter.line(200ms), "");
  ASSERT_EQ(checkpoint(counter.pid()), Result::success);
  EXPECT_EQ(counter.line(200ms), "");
  ASSERT_EQ(restore(counter.pid()), Result::success);
  EXPECT_EQ(counter.line(200ms), "");
  ASSERT_EQ(unlock(counter.pid()), Result::success);
  EXPECT_EQ(counter.line().rfind("counter=1 ", 0), 0U);
}

TEST_F(StateTest, DeviceMemoryIsInOneNewMappingWhileCheckpointed) {
  constexpr std::uint64_t kMib = 24;
  constexpr std::uint64_t kContext = 2;
  Process pattern(
      sample("sample-pattern", {"--mib", std::to_string(kMib), "--blocks", "3", "--tick-ms", "5"}),
      environment());
  ASSERT_NE(pattern.line_with("beat 1 ok"), "");
  ASSERT_EQ(lock(pattern.pid()), Result::success);
  const auto running = mappings(pattern.pid());
  ASSERT_EQ(checkpoint(pattern.pid()), Result::success);
  const auto checkpointed = mappings(pattern.pid());

  const auto region = new_anonymous(running, checkpointed);
  ASSERT_EQ(region.size(), 1U);
  EXPECT_EQ(region[0].size(), (kMib + kContext) << 20);

  // Where device memory was there is only a reservation, and nothing to be read.
  std::uint64_t gone = 0;
  for (const Mapping& entry : new_anonymous(checkpointed, running)) {
    gone += entry.size();
    EXPECT_EQ(peek(pattern.pid(), entry.start, 16), "");
  }
  EXPECT_EQ(gone, (kMib + kContext) << 20);

  ASSERT_EQ(restore(pattern.pid()), Result::success);
  for (const Mapping& entry : mappings(pattern.pid()))
    EXPECT_FALSE(entry.start == region[0].start && entry.access == "rw-p");
  ASSERT_EQ(unlock(pattern.pid()), Result::success);
  EXPECT_NE(pattern.line_with(" ok "), "");
}

TEST_F(StateTest, ASampleSeesDeviceMemoryThatWasChanged) {
  // The proof that "ok" means something: one byte of the saved region is changed behind its back.
  Process pattern(sample("sample-pattern", {"--mib", "16", "--tick-ms", "5"}), environment());
  ASSERT_NE(pattern.line_with("beat 1 ok"), "");
  ASSERT_EQ(lock(pattern.pid()), Result::success);
  const auto running = mappings(pattern.pid());
  ASSERT_EQ(checkpoint(pattern.pid()), Result::success);
  const auto region = new_anonymous(running, mappings(pattern.pid()));
  ASSERT_EQ(region.size(), 1U);
  const std::uint64_t victim = region[0].end - (5 << 20);  // not in the context's own 2 MiB
  char byte = static_cast<char>(peek(pattern.pid(), victim, 1)[0] ^ 1);
  iovec here{&byte, 1};
  iovec there{reinterpret_cast<void*>(victim), 1};
  ASSERT_EQ(::process_vm_writev(pattern.pid(), &here, 1, &there, 1, 0), 1);
  resume(pattern.pid());
  EXPECT_NE(pattern.line_with("MISMATCH"), "");
  const int status = pattern.wait();
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 3);
}

TEST_F(StateTest, DeviceFdIsReplacedByAnEventFdOfTheSameNumber) {
  Process counter(sample("sample-counter", counter_arguments()), environment());
  ASSERT_NE(counter.line_with("ready"), "");
  const auto before = fds_to(counter.pid(), device());
  ASSERT_EQ(before.size(), 1U);
  ASSERT_EQ(lock(counter.pid()), Result::success);
  EXPECT_EQ(fds_to(counter.pid(), device()), before);
  ASSERT_EQ(checkpoint(counter.pid()), Result::success);
  EXPECT_TRUE(fds_to(counter.pid(), device()).empty());
  EXPECT_EQ(fds_to(counter.pid(), "anon_inode:[eventfd]"), before);
  ASSERT_EQ(restore(counter.pid()), Result::success);
  EXPECT_EQ(fds_to(counter.pid(), device()), before);
}

TEST_F(StateTest, RestoreNeedsTheDeviceNode) {
  Process counter(sample("sample-counter", counter_arguments()), environment());
  ASSERT_NE(counter.line_with("ready"), "");
  suspend(counter.pid());
  std::filesystem::rename(device(), path("elsewhere"));
  EXPECT_EQ(restore(counter.pid()), Result::operating_system);
  EXPECT_TRUE(is_checkpointed(counter.pid()));
  std::filesystem::rename(path("elsewhere"), device());
  resume(counter.pid());
  counter.write("get\n");
  EXPECT_EQ(counter.line().rfind("counter=0 ", 0), 0U);
}

TEST_F(StateTest, StartsOnlyWithTheDeviceNode) {
  std::filesystem::remove(device());
  Process counter(sample("sample-counter", counter_arguments()), environment());
  EXPECT_EQ(counter.line(), "");
  const int status = counter.wait();
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 2);
}

TEST_F(StateTest, OnlyTheRestoreThreadIsNeeded) {
  // Icebox stops every other thread by ptrace for the time of Checkpoint and Restore, wherever it
  // is.
  std::filesystem::create_directory(path("busy"));
  Process busy(sample("sample-busy", {"--dir", path("busy"), "--threads", "3", "--cuda"}),
               environment());
  ASSERT_NE(busy.line_with("ready"), "");
  int restore_thread = 0;
  ASSERT_TRUE(eventually([&] {
    return cu::cuCheckpointProcessGetRestoreThreadId(busy.pid(), &restore_thread) ==
           Result::success;
  }));
  ASSERT_EQ(lock(busy.pid()), Result::success);
  std::vector<pid_t> stopped;
  for (const auto& entry :
       std::filesystem::directory_iterator("/proc/" + std::to_string(busy.pid()) + "/task")) {
    const pid_t tid = std::stoi(entry.path().filename());
    if (tid == restore_thread) continue;
    ASSERT_EQ(::ptrace(PTRACE_SEIZE, tid, nullptr, nullptr), 0);
    ASSERT_EQ(::ptrace(PTRACE_INTERRUPT, tid, nullptr, nullptr), 0);
    ASSERT_EQ(::waitpid(tid, nullptr, __WALL), tid);
    stopped.push_back(tid);
  }
  EXPECT_GE(stopped.size(), 5U);
  EXPECT_EQ(checkpoint(busy.pid()), Result::success);
  EXPECT_EQ(restore(busy.pid()), Result::success);
  EXPECT_EQ(unlock(busy.pid()), Result::success);
  for (const pid_t tid : stopped) ::ptrace(PTRACE_DETACH, tid, nullptr, nullptr);
  EXPECT_TRUE(is_running(busy.pid()));
}

TEST_F(StateTest, AForkedChildIsNoCudaProcess) {
  Process parent(sample("sample-fork", {}), environment());
  const std::string ready = parent.line_with("ready");
  const auto at = ready.find("child=");
  ASSERT_NE(at, std::string::npos) << ready;
  const pid_t child = std::stoi(ready.substr(at + 6));
  int tid = 0;
  EXPECT_EQ(cu::cuCheckpointProcessGetRestoreThreadId(child, &tid), Result::not_initialized);
  EXPECT_EQ(state_of(child).result, Result::not_initialized);
  EXPECT_EQ(fds_to(child, device()).size(), 1U);
  EXPECT_TRUE(is_running(parent.pid()));
}

TEST_F(StateTest, OneCallerAtATime) {
  Process counter(sample("sample-counter", counter_arguments()), environment());
  ASSERT_NE(counter.line_with("ready"), "");
  // Every caller gets the answer to its own request: of eight Locks one succeeds.
  for (int round = 0; round < 20; ++round) {
    std::vector<std::future<Result>> callers;
    callers.reserve(8);
    for (int i = 0; i < 8; ++i)
      callers.push_back(std::async(std::launch::async, [&] { return lock(counter.pid()); }));
    int locked = 0;
    for (auto& caller : callers) {
      const Result result = caller.get();
      locked += result == Result::success ? 1 : 0;
      EXPECT_TRUE(result == Result::success || result == Result::illegal_state);
    }
    EXPECT_EQ(locked, 1);
    ASSERT_EQ(unlock(counter.pid()), Result::success);
  }
}

TEST_F(StateTest, ACallerThatDiesLeavesTheOperationToTheTarget) {
  set_knobs("checkpoint=slow:300\n");
  Process counter(sample("sample-counter", counter_arguments()), environment());
  ASSERT_NE(counter.line_with("ready"), "");
  ASSERT_EQ(lock(counter.pid()), Result::success);
  const auto before = mappings(counter.pid());
  {
    Process caller(sim_ctl("checkpoint", counter.pid()), environment());
    ASSERT_TRUE(
        eventually([&] { return !new_anonymous(before, mappings(counter.pid())).empty(); }));
    EXPECT_EQ(caller.line(0ms), "");
  }
  EXPECT_TRUE(is_checkpointed(counter.pid()));
  resume(counter.pid());
}

}  // namespace
}  // namespace icebox::sim::test
