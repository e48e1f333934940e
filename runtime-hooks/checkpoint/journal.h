// SPDX-License-Identifier: Apache-2.0
//
// What Icebox has promised about a container, on disk: <state_dir>/<runtime
// root>/<id>/journal.json, beside `lock`. It is written before every step that another engine would
// have to undo if this one died, and stays while a container is paused with its GPU held. Both
// files live on a tmpfs (/run): after a reboot there is no process left to look after.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "oci/base/result.h"
#include "oci/base/unique_fd.h"
#include "runtime-hooks/container/cgroup.h"
#include "runtime-hooks/cuda/target.h"

namespace icebox::engine {

enum class OperationKind { pause, resume, checkpoint, restore };
std::string_view to_string(OperationKind kind);

// A process named by pid and start time.
struct ProcessName {
  pid_t pid = 0;
  std::uint64_t start_time = 0;
};

struct Journal {
  OperationKind operation = OperationKind::pause;
  // The step under way, for people and logs. "held" = no operation: the container is paused and its
  // GPU processes are locked (or suspended: see `suspended`). "stuck" = the driver has not come
  // back from a call about a target.
  std::string phase;
  ProcessName engine;       // who wrote this
  ProcessName init;         // the container's init; pid 0 before a restore has made one
  bool was_paused = false;  // state before the operation, to which an undo returns
  bool suspended = false;   // held, and off the GPU: a driver Restore is due before Unlock
  std::vector<cuda::Target> targets;  // CUDA processes locked by Icebox
  std::map<std::string, std::uint64_t>
      gpu_bytes;  // GPU uuid -> device memory of the targets, where the driver told
  std::vector<container::SavedLimit> memory_limits;  // to be put back
  std::string bundle;                                // restore only: whose config.json was changed
  std::string
      original_spec;  // restore only: file with the config.json to be put back, empty if unchanged

  [[nodiscard]] bool held() const { return phase == "held"; }
  [[nodiscard]] bool stuck() const { return phase == "stuck"; }
};

// The directory that the engine keeps for one container, and the lock in it.
class ContainerState {
 public:
  // Pure. `runtime_root` is absolute; ids are runc's ([A-Za-z0-9_+.-]+): anything else is
  // invalid_argument.
  static Result<ContainerState> locate(const std::string& state_dir,
                                       const std::string& runtime_root, const std::string& id);

  [[nodiscard]] const std::string& directory() const { return directory_; }
  [[nodiscard]] std::string path(const std::string& name) const { return directory_ + "/" + name; }
  [[nodiscard]] bool present() const;

  // Takes the container's lock (flock on `lock`, made if needed): held until the returned fd
  // closes, also when this process dies. Does not wait: unavailable when another engine has it,
  // naming its operation.
  [[nodiscard]] Result<UniqueFd> lock() const;
  // The same, waiting up to `timeout`.
  [[nodiscard]] Result<UniqueFd> lock_within(std::chrono::milliseconds timeout) const;

  // nullopt when there is none. A damaged journal is an Error that names the file.
  [[nodiscard]] Result<std::optional<Journal>> read() const;
  [[nodiscard]] Result<void> write(const Journal& journal) const;
  // Forgets the operation; the directory and lock stay.
  [[nodiscard]] Result<void> clear() const;
  // Removes the directory (at delete). The caller should hold the lock.
  [[nodiscard]] Result<void> remove() const;

  // `kill -9` came while an engine works: it must not bring the container back.
  void mark_killed() const;
  [[nodiscard]] bool killed() const;

 private:
  std::string directory_;
};

}  // namespace icebox::engine
