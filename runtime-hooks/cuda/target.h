// SPDX-License-Identifier: Apache-2.0
//
// The words that the engine and the GPU agent share: which process is meant, what was done to it,
// and what came out. Plain data; protocol.h puts it on the wire.
#pragma once

#include <sys/types.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace icebox::cuda {

/// One process, named so that a reused pid is never mistaken for it.
struct Target {
  pid_t pid = 0;                 // in the agent's pid namespace (the host's); never a thread id
  std::uint64_t start_time = 0;  // field 22 of /proc/PID/stat, clock ticks since boot

  friend bool operator==(const Target&, const Target&) = default;
};

/// What the driver says about a process. `busy` stands for every value this version does not know
/// (newer drivers: checkpointing, restoring). `failed` is final: only killing the process helps.
enum class ProcessState { running, locked, checkpointed, failed, busy };

/// "running", "locked", ... as used in messages and on the wire.
std::string_view to_string(ProcessState state);
std::optional<ProcessState> parse_process_state(std::string_view text);

/// What is asked of a list of targets.
enum class Operation { restore_thread, state, lock, checkpoint, restore, unlock };
std::string_view to_string(Operation operation);
std::optional<Operation> parse_operation(std::string_view text);

/// How an operation on one target ended.
enum class Ending {
  ok,            // done, and the process is in the state that follows
  driver_error,  // the driver answered with an error: `code` and `name` tell which
  wrong_state,   // the driver reported success, but the process is in another state afterwards
  no_answer,     // the driver did not come back in time; the call is still pending in the agent
  refused,       // not tried: thread id, other start time, or an earlier call is still pending
  gone,          // the process has ended (before, or while the operation ran)
};
std::string_view to_string(Ending ending);
std::optional<Ending> parse_ending(std::string_view text);

/// One target's result. `message` is a whole sentence fragment that names the process.
struct Outcome {
  Target target;
  Ending ending = Ending::refused;
  int code = 0;         // CUresult where ending is driver_error, else 0
  std::string name;     // "CUDA_ERROR_NOT_READY"; empty without a driver error
  std::string message;  // empty where ending is ok
  /// State after the operation, where the driver answered that too.
  std::optional<ProcessState> state;
  /// Only for Operation::restore_thread that ended ok: thread id in the agent's pid namespace.
  pid_t restore_thread = 0;
  /// Time in the driver for this target (state query not included).
  std::chrono::milliseconds elapsed{0};

  [[nodiscard]] bool ok() const { return ending == Ending::ok; }
};

/// One entry of a GPU remap: both as "GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx".
struct GpuPair {
  std::string old_uuid;
  std::string new_uuid;
};

/// The 16 bytes of "GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx"; nullopt for any other text
/// ("MIG-..." too: the driver cannot checkpoint on a slice of a GPU).
std::optional<std::array<unsigned char, 16>> parse_gpu_uuid(std::string_view text);

/// One GPU of this host, as NVML sees it.
struct Gpu {
  std::string uuid;
  std::string name;
  std::uint64_t total_bytes = 0;
  std::uint64_t free_bytes = 0;
  std::string pci_bus_id;
  int compute_major = 0;
  int compute_minor = 0;
  bool mig_enabled = false;
  bool persistence_mode = false;
};

/// What a process uses on one GPU (NVML's compute process list).
struct GpuProcess {
  std::string gpu_uuid;
  pid_t pid = 0;
  std::optional<std::uint64_t> used_bytes;  // absent where the driver does not know
};

/// The driver of this host.
struct DriverInfo {
  std::string driver_version;       // "580.159.04", from NVML
  int cuda_version = 0;             // cuDriverGetVersion(): 13000 = CUDA 13.0
  bool has_checkpoint_api = false;  // driver >= 570 and all entry points present
  bool can_remap_gpus = false;      // driver >= 580
  std::string libcuda;              // file that was loaded
  std::vector<Gpu> gpus;
};

}  // namespace icebox::cuda
