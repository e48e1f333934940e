// SPDX-License-Identifier: Apache-2.0
//
// Processes on the simulated driver, for the tests of the simulation and of the samples. Everything
// needs root (a device node is made); as another user the tests are skipped.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <map>
#include <ostream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "oci/base/unique_fd.h"
#include "tests/fakes/cuda/driver.h"

namespace icebox::sim::test {

using namespace std::chrono_literals;
using std::chrono::milliseconds;

/// Whether `condition` becomes true within 20 s.
bool eventually(const std::function<bool()>& condition);

std::string read_file(const std::string& path);
void write_file(const std::string& path, const std::string& text);

/// A program with its standard output in a pipe, killed and reaped at the end of the scope.
class Process {
 public:
  using Environment = std::map<std::string, std::string>;

  /// Starts argv[0] in a session of its own, with `environment` added to the test's. With
  /// `output_file` standard output goes there instead.
  explicit Process(const std::vector<std::string>& argv, const Environment& environment = {},
                   const std::string& output_file = {});
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;
  ~Process();

  pid_t pid() const { return pid_; }

  /// Writes to its standard input.
  void write(const std::string& text) const;

  /// The next line; empty when none came within `limit` or at the end.
  std::string line(milliseconds limit = 20s);

  /// The next line that has `text` in it; empty when none came within `limit`.
  std::string line_with(const std::string& text, milliseconds limit = 20s);

  /// Its wait status; -1 if it has not ended within `limit`.
  int wait(milliseconds limit = 20s);

  /// Another process stands for it now (the test is its reaper): CRIU has restored it.
  void adopt(pid_t pid) { pid_ = pid; }

 private:
  pid_t pid_ = -1;
  UniqueFd input_;
  UniqueFd output_;
  std::string buffer_;
};

/// One entry of /proc/PID/maps.
struct Mapping {
  std::uint64_t start;
  std::uint64_t end;
  std::string access;
  std::string name;

  std::uint64_t size() const { return end - start; }
  bool operator==(const Mapping&) const = default;
};
std::vector<Mapping> mappings(pid_t pid);

/// Those of `after` that no entry of `before` equals.
std::vector<Mapping> new_mappings(const std::vector<Mapping>& before,
                                  const std::vector<Mapping>& after);

/// Descriptors of `pid` whose link is `target`.
std::vector<int> fds_to(pid_t pid, const std::string& target);

/// A folder with a device node, the knob file and the log of one test.
class SimTest : public ::testing::Test {
 protected:
  void SetUp() override;
  void TearDown() override;

  std::string path(const std::string& name) const { return dir_ + "/" + name; }
  std::string device() const { return path("nvidia0"); }

  /// Replaces the knob file; the log knob is always there.
  void set_knobs(const std::string& lines) const;

  /// Describes the machine to processes started from now on and to this test as a caller.
  void set_host(const std::string& lines) const;

  /// The lines of the log whose first word is not "get-state".
  std::vector<std::string> log() const;

  /// The environment of a target.
  Process::Environment environment() const;

  /// samples/NAME with arguments, on the simulated driver.
  std::vector<std::string> sample(const std::string& name,
                                  const std::vector<std::string>& arguments) const;

 private:
  std::string dir_;
};

/// sim-ctl ACTION PID, a caller of the checkpoint API that is another process.
std::vector<std::string> sim_ctl(const std::string& action, pid_t pid);

// The checkpoint API of the simulated driver, called from the test's own process.
struct State {
  cu::Result result;
  int value;
  bool operator==(const State&) const = default;
};
State state_of(pid_t pid);
bool is_running(pid_t pid);
bool is_locked(pid_t pid);
bool is_checkpointed(pid_t pid);
cu::Result lock(pid_t pid, unsigned int timeout_ms = 10000);
cu::Result checkpoint(pid_t pid);
cu::Result restore(pid_t pid, std::vector<cu::GpuPair> pairs = {});
cu::Result unlock(pid_t pid);
/// Lock and Checkpoint; Restore and Unlock. Fail the test if they do not succeed.
void suspend(pid_t pid);
void resume(pid_t pid);

}  // namespace icebox::sim::test

namespace icebox::cu {
/// For GoogleTest's messages.
inline std::ostream& operator<<(std::ostream& out, Result result) {
  return out << static_cast<int>(result);
}
}  // namespace icebox::cu
