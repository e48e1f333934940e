// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "oci/base/result.h"

namespace icebox::container {

enum class FreezerState { thawed, freezing, frozen };

// A memory limit as it was before it was raised, so that it can be put back: file and value,
// outermost cgroup last.
struct SavedLimit {
  std::string file;   // absolute path, e.g. /sys/fs/cgroup/memory/x/memory.limit_in_bytes
  std::string value;  // what was read from it
};

// Whether this machine (or this mount namespace) runs on cgroup v2 alone: what /sys/fs/cgroup is,
// as runc and CRIU decide.
bool unified_hierarchy();

// The cgroup of one container: where its processes are listed and frozen and its memory is limited.
// Works for cgroup v1 (freezer and memory hierarchies), hybrid and v2. A value: holds paths only.
// All calls may block on the kernel for as long as they say; none spawns a process.
class Cgroup {
 public:
  // Finds the cgroup of container `id`: runc's <runtime_root>/<id>/state.json ("cgroup_paths") if
  // there, else crun's status file ("cgroup-path"), else /proc/<init>/cgroup. not_found when the
  // container has none; failed_precondition when it is the root cgroup or the caller's own
  // (freezing it would freeze the host).
  static Result<Cgroup> of_container(const std::string& runtime_root, const std::string& id,
                                     pid_t init);

  // Directory of the cgroup of process `pid` in the hierarchy that freezes (v1 freezer, else v2),
  // whoever it belongs to.
  static Result<std::string> freezer_directory_of(pid_t pid);

  // From absolute paths. `freezer` is the v2 directory or the v1 freezer directory; `memory` may be
  // empty.
  static Cgroup from_paths(bool unified, std::string freezer, std::string memory);

  [[nodiscard]] bool unified() const { return unified_; }
  [[nodiscard]] const std::string& freezer_path() const { return freezer_; }
  [[nodiscard]] const std::string& memory_path() const { return memory_; }

  // Process ids (thread group leaders) of this cgroup and all below it, ascending, without
  // duplicates. A child cgroup that vanishes meanwhile is skipped; not_found when the cgroup itself
  // is gone.
  [[nodiscard]] Result<std::vector<pid_t>> processes() const;

  // Those of processes() that thaw() would let run: without those in child cgroups that are frozen
  // on their own (a paused container inside the container). Same order and failures.
  [[nodiscard]] Result<std::vector<pid_t>> processes_thawed_with() const;

  // freezer.state, or cgroup.freeze and the "frozen" line of cgroup.events. v2 kernels set that
  // line too early for a cgroup with both processes and child cgroups: there the children and the
  // threads are looked at as well.
  [[nodiscard]] Result<FreezerState> state() const;

  // Freezes and waits until every task is frozen, at most `timeout`. v1 can stay FREEZING when
  // tasks fork meanwhile: FROZEN is written again, with short thaws in between as runc does. On
  // failure the cgroup is thawed again (only if it was thawed before) and the error names a task
  // that would not freeze with its state and wchan.
  [[nodiscard]] Result<void> freeze(std::chrono::milliseconds timeout) const;

  // Asks for freezing without waiting: for a moment in which tasks are ptrace-stopped by somebody
  // else (CRIU).
  [[nodiscard]] Result<void> request_freeze() const;

  // Waits for a freeze that was requested.
  [[nodiscard]] Result<void> wait_frozen(std::chrono::milliseconds timeout) const;

  // Thaws. Does not wait for tasks to run. failed_precondition when a frozen cgroup above (named)
  // keeps it frozen.
  [[nodiscard]] Result<void> thaw() const;

  // Moves a process into the cgroup at `freezer_dir` of the freezer (v1) or unified (v2) hierarchy.
  static Result<void> move_process(const std::string& cgroup_dir, pid_t pid);

  // Makes room for `extra` bytes on top of the present usage, in this cgroup and its ancestors:
  // raises memory.max / memory.limit_in_bytes (and memsw, in the order the kernel asks for;
  // memory.high too) where limit - usage < extra, with a margin for page tables and per-processor
  // charges. Returns what was changed, for restore_limits. resource_exhausted when the host itself
  // (MemAvailable) lacks the room, naming both figures. On failure nothing stays changed. Without a
  // memory controller: nothing, success. `note` (may be empty) is called before each change with
  // all that has been and is about to be changed, so that a journal knows of it whatever happens
  // next; its failure is a failure.
  using NoteLimits = std::function<Result<void>(const std::vector<SavedLimit>&)>;
  [[nodiscard]] Result<std::vector<SavedLimit>> raise_memory_limit(
      std::uint64_t extra, const NoteLimits& note = {}) const;

  // Puts saved limits back, last first; any order works. A limit below what can be reclaimed is not
  // set (v1: EBUSY from the kernel; v2 would kill processes, so it is looked at first): retried for
  // a second, then an error that names file, limit and usage. A cgroup that is gone is success.
  static Result<void> restore_limits(const std::vector<SavedLimit>& saved);

 private:
  bool unified_ = false;
  std::string freezer_;
  std::string memory_;
};

}  // namespace icebox::container
