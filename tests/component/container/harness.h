// SPDX-License-Identifier: Apache-2.0
//
// Real cgroups and real processes for the tests of runtime-hooks/container. Everything needs root;
// without it the tests are skipped. The hierarchies (v1 freezer, v1 memory, v2) are mounted in a
// private mount namespace of the test program, so that both versions are tested on every machine,
// however its /sys/fs/cgroup is laid out. Cgroups are removed and processes killed when a
// TestCgroup ends, and by a guardian process if the test program itself dies.
#pragma once

#include <sys/mman.h>
#include <sys/types.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <new>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "oci/base/result.h"
#include "oci/base/unique_fd.h"
#include "runtime-hooks/container/cgroup.h"

namespace icebox::container::test {

enum class Version { v1, v2 };
std::string version_name(const ::testing::TestParamInfo<Version>& info);

// Where the hierarchies are mounted; `memory` is empty where v1 memory control cannot be had (v2
// has it).
struct Hierarchies {
  std::string freezer;
  std::string memory;
  std::string unified;
  std::string directory;  // a tmpfs for whatever a test needs
};
const Hierarchies& hierarchies();

// Skips as another user than root; as root every test runs.
class RootTest : public ::testing::Test {
 protected:
  void SetUp() override;
};
class VersionTest : public ::testing::TestWithParam<Version> {
 protected:
  void SetUp() override;
};

// Whether `condition` becomes true within 20 s.
bool eventually(const std::function<bool()>& condition);

// A cgroup and the processes that were started in it. The destructor thaws, kills, reaps and
// removes.
class TestCgroup {
 public:
  explicit TestCgroup(Version version, const std::string& below = "");
  TestCgroup(const TestCgroup&) = delete;
  TestCgroup& operator=(const TestCgroup&) = delete;
  ~TestCgroup();

  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] Cgroup cgroup() const {
    return Cgroup::from_paths(version_ == Version::v2, path_, "");
  }

  // Makes a child cgroup; its path.
  std::string make_child(const std::string& name) const;

  // Forks a process that enters `directory` (default: this cgroup), runs `body` and exits. It dies
  // with this program.
  pid_t start(const std::function<void()>& body, const std::string& directory = "");

 private:
  Version version_;
  std::string path_;
  std::set<pid_t> processes_;
};

// Memory shared with every process that is forked later.
template <typename T>
class Shared {
 public:
  Shared() {
    void* memory =
        ::mmap(nullptr, sizeof(T), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) std::abort();
    value_ = new (memory) T();
  }
  Shared(const Shared&) = delete;
  Shared& operator=(const Shared&) = delete;
  ~Shared() { ::munmap(value_, sizeof(T)); }
  T* operator->() { return value_; }
  T& operator*() { return *value_; }

 private:
  T* value_;
};

constexpr std::size_t kMaxCounters = 128;
using Counters = std::array<std::atomic<std::uint64_t>, kMaxCounters>;

// What the user threads and the one "driver thread" of a test's processes do.
struct Board {
  Counters user = {};
  std::atomic<std::size_t> used{0};  // of `user`
  std::atomic<std::uint64_t> driver{0};
  std::atomic<pid_t> driver_tid{0};
};

// Counts in the next free slot of the board for ever: the loop has no system call in it.
[[noreturn]] void count_for_ever(Board& board);

// A process body: `threads` counting threads, one of which is the main thread.
void run_busy(Board& board, int threads);

// The same with a driver thread that counts slowly and sleeps in between; its id is on the board
// before the others count.
void run_busy_with_driver(Board& board, int threads);
void start_driver_thread(Board& board);

// The user counters in use.
std::vector<std::uint64_t> snapshot(const Board& board);

// Waits until `slots` counters are in use and all move (and the driver's, if there is one): the
// container is up.
bool all_move(const Board& board, std::size_t slots);

// Waits until the driver thread has counted `times` more.
bool driver_moves(const Board& board, std::uint64_t times);

// TracerPid of a thread; -1 when it is gone.
pid_t tracer_of(pid_t process, pid_t tid);

// Whether no thread of any process in the cgroup (and below) is traced.
bool nothing_traced(const Cgroup& cgroup);

// State letter of a process in /proc.
char state_of(pid_t process);

// A pipe whose mutex is held for ever, by a process that is in a page fault which nobody answers.
// Who writes into the pipe sleeps uninterruptibly (state D): no signal, freezer or ptrace reaches
// it, until release().
class StuckPipe {
 public:
  StuckPipe();
  StuckPipe(const StuckPipe&) = delete;
  StuckPipe& operator=(const StuckPipe&) = delete;
  ~StuckPipe();
  void get_stuck() const;  // in a child process; sleeps when it is let go
  void release();

 private:
  UniqueFd read_end_;
  UniqueFd write_end_;
  pid_t holder_ = -1;
};

// Fault points for the time of its life.
class Faults {
 public:
  explicit Faults(const std::string& lines);
  Faults(const Faults&) = delete;
  Faults& operator=(const Faults&) = delete;
  ~Faults();
  static void clear();  // no lines any more
};

}  // namespace icebox::container::test
