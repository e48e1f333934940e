// SPDX-License-Identifier: Apache-2.0
//
// The engine's side of the GPU agent: starts `icebox-gpu`, sends it one request at a time, and
// turns its answers into values. The engine itself never loads a driver library.
//
//   auto agent = ICEBOX_TRY(GpuAgent::start(options));
//   auto locked = ICEBOX_TRY(agent.lock(targets, 10s));
//   if (!all_ok(locked)) { agent.unlock(those that are locked); ... }
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "oci/base/result.h"
#include "runtime-hooks/cuda/target.h"

namespace icebox::cuda {

/// True if every outcome ended ok (also for an empty list).
bool all_ok(const std::vector<Outcome>& outcomes);

/// One line that names every target that did not end ok and why; empty if all did. For error text.
std::string describe_failures(const std::vector<Outcome>& outcomes);

/// One running agent: one driver session. Not thread safe; one request at a time.
///
/// An Error from a method means that the agent could not do its part (it died, broke the protocol,
/// cannot load or initialise the driver, or did not answer in time): it names the operation that
/// was under way, and the targets must then be taken as being in an unknown state. What happened to
/// single targets is never an Error but an Outcome.
class GpuAgent {
 public:
  struct Options {
    std::string agent_path;                // icebox-gpu
    std::string libcuda = "libcuda.so.1";  // name or path given to dlopen
    std::string libnvidia_ml = "libnvidia-ml.so.1";
    /// Development only: capabilities that the agent keeps instead of its table ("sys_admin,...").
    std::string capabilities;
    /// How long the agent may take to answer its first request (loading a driver takes 0.1-3 s).
    std::chrono::milliseconds start_timeout{30'000};
  };

  /// Called about once a second while a long operation runs, with the time it has taken so far.
  /// False gives the operation up: it goes on in the driver, but this agent is of no more use, and
  /// outlives this object until the driver is done. Must not call back into the agent.
  using Progress = std::function<bool(std::chrono::milliseconds)>;

  /// Spawns the agent with an environment of its own (PATH only; nothing of the caller's, so
  /// neither LD_PRELOAD nor CUDA_* reaches the driver) and a socketpair as its descriptor 3, in its
  /// own session, and waits for its greeting. The driver is loaded at the first call that needs it.
  static Result<GpuAgent> start(const Options& options);

  GpuAgent(GpuAgent&&) noexcept;
  GpuAgent& operator=(GpuAgent&&) noexcept;
  GpuAgent(const GpuAgent&) = delete;
  GpuAgent& operator=(const GpuAgent&) = delete;
  /// Closes the socket, upon which the agent ends by itself, and reaps it. Never signals it: a
  /// killed caller leaves the driver's target in an undefined state. Where the driver still holds a
  /// call that was reported as no_answer, the agent outlives this object (until the call returns,
  /// whose effect it then undoes, or the target ends), and whoever is the parent by then reaps it.
  ~GpuAgent();

  /// Driver and GPUs. Needs NVML and libcuda to load; calls cuInit only in init().
  Result<DriverInfo> info();

  /// cuInit in the agent: a health probe of the host side (10 ms with one GPU, seconds with eight).
  /// The Error says that it is the host side, which library was used, and the way out. checkpoint()
  /// and restore() do it first; the others only where the driver says that it needs it.
  Result<void> init();

  /// What NVML lists as compute processes, on all GPUs. Pids are the host's.
  Result<std::vector<GpuProcess>> processes();

  /// Asks for the driver's restore thread of every target. It is the driver's way to say whether a
  /// process uses CUDA, and answers for a frozen process too. Ending::driver_error = no CUDA
  /// process; no_answer must not be read as that.
  Result<std::vector<Outcome>> restore_threads(const std::vector<Target>& targets);

  /// Driver state of every target. Hangs in the driver for a frozen target, and for one that the
  /// driver is busy with: reported as no_answer after `deadline`.
  Result<std::vector<Outcome>> states(
      const std::vector<Target>& targets,
      std::chrono::milliseconds deadline = std::chrono::seconds(20));

  /// Locks all targets in parallel under one total deadline (at least 1 ms). Returns the outcomes
  /// in the order of the targets; nothing is undone here: the caller unlocks those that are
  /// `locked`. A lock that the driver still holds when the deadline and a grace are over is
  /// reported as no_answer; should it succeed later, the agent unlocks that target at once.
  Result<std::vector<Outcome>> lock(const std::vector<Target>& targets,
                                    std::chrono::milliseconds deadline);

  /// Copies device memory of all (locked) targets into host memory and releases their GPUs, in
  /// parallel. Blocks until the driver is done with every one, or `progress` gives up
  /// (deadline_exceeded): a driver call cannot be cut short without making its target unusable. A
  /// target that ends meanwhile is `gone`.
  Result<std::vector<Outcome>> checkpoint(const std::vector<Target>& targets,
                                          const Progress& progress = {});

  /// Puts the state of all (checkpointed) targets back on the GPUs; they are `locked` afterwards.
  /// `gpu_map` is empty (same GPUs) or names EVERY GPU of the host, as a permutation; a partial map
  /// is refused by the driver with INVALID_VALUE and can be repeated with a complete one. Blocks
  /// like checkpoint(). After OUT_OF_MEMORY the process is stuck for good: kill it.
  Result<std::vector<Outcome>> restore(const std::vector<Target>& targets,
                                       const std::vector<GpuPair>& gpu_map = {},
                                       const Progress& progress = {});

  /// Lets all (locked) targets go on.
  Result<std::vector<Outcome>> unlock(const std::vector<Target>& targets);

  /// False once the agent is lost (an Error of any method): only a new one can go on.
  [[nodiscard]] bool usable() const;

  /// Pid of the agent, for the journal.
  [[nodiscard]] pid_t pid() const;

 private:
  class Impl;
  explicit GpuAgent(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace icebox::cuda
