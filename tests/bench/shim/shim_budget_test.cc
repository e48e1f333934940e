// SPDX-License-Identifier: Apache-2.0
// The daemon's budgets: memory with one container and after many, start of the process, time of a
// call. Every figure is printed, so that a creeping one is seen before its budget is gone.
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "oci/base/subprocess.h"
#include "tests/component/shim/shim_fixture.h"

namespace icebox::test {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::microseconds;

constexpr long kMaxRssKb = 4096;
constexpr long kMaxPrivateDirtyKb = 1024;
constexpr long kMaxGrowthKb = 64;
constexpr microseconds kMaxStart{5000};
constexpr microseconds kMaxCall{1000};

struct Memory {
  long rss_kb = 0;
  long private_dirty_kb = 0;
};

Memory memory_of(pid_t pid) {
  Memory memory;
  std::ifstream rollup("/proc/" + std::to_string(pid) + "/smaps_rollup");
  std::string key;
  while (rollup >> key) {
    if (key == "Rss:") rollup >> memory.rss_kb;
    if (key == "Private_Dirty:") rollup >> memory.private_dirty_kb;
  }
  EXPECT_GT(memory.rss_kb, 0);
  return memory;
}

// A file that was just linked has dirty pages in the page cache, and those of its text would count
// as private dirty.
void flush_program() {
  const int fd = ::open(ICEBOX_SHIM, O_RDONLY | O_CLOEXEC);
  ASSERT_GE(fd, 0);
  EXPECT_EQ(::fsync(fd), 0);
  ::close(fd);
}

microseconds median(std::vector<microseconds> times) {
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

void report(const char* what, const Memory& memory) {
  std::printf("%-40s rss %ld kB, private dirty %ld kB\n", what, memory.rss_kb,
              memory.private_dirty_kb);
}

class Budget : public ShimTest {
 protected:
  void SetUp() override {
    ShimTest::SetUp();
    if (!IsSkipped()) flush_program();
  }

  // One container's life with an exec in it.
  void live_and_die(TtrpcClient& client, const std::string& id) {
    make_bundle(id, {"sleep", "1000"});
    create(client, id);
    start(client, id);
    exec(client, id, "e", {"true"});
    start(client, id, "e");
    wait(client, id, "e");
    remove(client, id, "e");
    EXPECT_EQ(kill(client, id, SIGKILL), 0);
    wait(client, id);
    EXPECT_EQ(remove(client, id).code, 0);
  }
};

TEST_F(Budget, MemoryWithOneContainerAndAfterMany) {
  make_bundle("bench", {"sleep", "1000"});
  TtrpcClient client(start_daemon("bench"));
  const pid_t daemon = daemon_pid(client);
  report("idle", memory_of(daemon));
  create(client, "bench");
  start(client, "bench");
  const Memory one = memory_of(daemon);
  report("one container", one);
  EXPECT_LE(one.rss_kb, kMaxRssKb);
  EXPECT_LE(one.private_dirty_kb, kMaxPrivateDirtyKb);

  for (int i = 0; i < 20; ++i) live_and_die(client, "warm-" + std::to_string(i));
  const Memory warm = memory_of(daemon);
  report("after 20 more", warm);
  for (int i = 0; i < 100; ++i) live_and_die(client, "c-" + std::to_string(i));
  const Memory many = memory_of(daemon);
  report("after 120 more", many);
  EXPECT_LE(many.rss_kb, kMaxRssKb);
  EXPECT_LE(many.private_dirty_kb, kMaxPrivateDirtyKb);
  EXPECT_LE(many.rss_kb - warm.rss_kb, kMaxGrowthKb) << "something is kept for every container";
  finish(client, "bench");
}

TEST_F(Budget, StartOfTheProcess) {
  std::vector<microseconds> times;
  for (int i = 0; i < 100; ++i) {
    Command command;
    command.argv = {ICEBOX_SHIM, "-v"};
    const auto begin = Clock::now();
    const auto output = run(command, {});
    times.push_back(std::chrono::duration_cast<microseconds>(Clock::now() - begin));
    ASSERT_TRUE(output.ok());
    ASSERT_EQ(output->wait_status, 0);
  }
  const microseconds middle = median(times);
  std::printf("%-40s %ld us\n", "fork to end of `-v`, median of 100",
              static_cast<long>(middle.count()));
  EXPECT_LE(middle, kMaxStart);
}

TEST_F(Budget, TimeOfACall) {
  make_bundle("bench", {"sleep", "1000"});
  TtrpcClient client(start_daemon("bench"));
  create(client, "bench");
  start(client, "bench");
  std::vector<microseconds> times;
  for (int i = 0; i < 2000; ++i) {
    const auto begin = Clock::now();
    state(client, "bench");
    times.push_back(std::chrono::duration_cast<microseconds>(Clock::now() - begin));
  }
  std::sort(times.begin(), times.end());
  const microseconds p50 = times[times.size() / 2];
  const microseconds p99 = times[times.size() * 99 / 100];
  std::printf("%-40s p50 %ld us, p99 %ld us\n", "State, 2000 calls", static_cast<long>(p50.count()),
              static_cast<long>(p99.count()));
  EXPECT_LE(p50, kMaxCall);
  finish(client, "bench");
}

}  // namespace
}  // namespace icebox::test
