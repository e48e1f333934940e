// SPDX-License-Identifier: Apache-2.0
//
// A simulated machine for the agent's tests: a folder with the simulated driver, its host file and
// a device node, and CUDA processes that run on it.
#pragma once

#include <chrono>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "oci/base/pid_ref.h"
#include "oci/base/unique_fd.h"
#include "runtime-hooks/cuda/discovery.h"
#include "runtime-hooks/cuda/gpu_client.h"

namespace icebox::cuda::testing {

/// What must happen does so long before this; nothing that passes waits it out.
inline constexpr std::chrono::milliseconds kPatience{20'000};

class SimHost {
 public:
  /// `lines` go into the host file (tests/fakes/cuda/README.md), e.g. "gpus=2\n".
  explicit SimHost(const std::string& lines = {});
  ~SimHost();
  SimHost(const SimHost&) = delete;
  SimHost& operator=(const SimHost&) = delete;

  [[nodiscard]] std::string folder() const { return folder_.string(); }
  [[nodiscard]] std::string path(const std::string& name) const { return folder_ / name; }
  [[nodiscard]] std::string libcuda() const { return path("libcuda.so.1"); }
  [[nodiscard]] GpuAgent::Options options() const;
  /// A started agent; the test ends if it does not start.
  [[nodiscard]] GpuAgent agent() const;

 private:
  std::filesystem::path folder_;
};

/// A sample program on the simulated driver, with a knob file of its own. Killed at the end.
class Sample {
 public:
  explicit Sample(const SimHost& host,
                  std::vector<std::string> command = {"sample-counter", "--stdin"});
  ~Sample();
  Sample(const Sample&) = delete;
  Sample& operator=(const Sample&) = delete;

  [[nodiscard]] Target target() const { return target_; }
  [[nodiscard]] pid_t pid() const { return target_.pid; }
  [[nodiscard]] const std::string& ready_line() const { return ready_line_; }
  /// Replaces the knob file ("lock=busy"), in one step.
  void set_knobs(const std::string& lines) const;
  [[nodiscard]] std::string knob_file() const { return knobs_; }

  /// Sends a request to sample-counter without waiting for its answer.
  void send(const std::string& request) const;
  /// One line of its output, or empty if none came within `patience`.
  std::string read_line(std::chrono::milliseconds patience = kPatience);
  /// send and read_line, as "key=value" words.
  std::map<std::string, std::string> ask(const std::string& request);

  /// What discovery sees of it.
  [[nodiscard]] GpuUse use() const;
  void kill() const;

 private:
  std::string knobs_;
  UniqueFd input_;
  UniqueFd output_;
  PidRef process_;
  Target target_;
  std::string buffer_;
  std::string ready_line_;
};

/// "key=value" words of a line.
std::map<std::string, std::string> words_of(const std::string& line);

/// True once `condition` holds; looks again every few milliseconds until kPatience has passed.
template <typename Condition>
bool eventually(Condition condition);

}  // namespace icebox::cuda::testing

#include <thread>

template <typename Condition>
bool icebox::cuda::testing::eventually(Condition condition) {
  const auto limit = std::chrono::steady_clock::now() + kPatience;
  while (!condition()) {
    if (std::chrono::steady_clock::now() >= limit) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return true;
}
