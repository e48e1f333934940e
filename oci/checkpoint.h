// SPDX-License-Identifier: Apache-2.0
//
// The model of a checkpoint directory: flat regular files, CRIU's images plus `icebox.json`, which
// is the authority on what the directory holds. A directory is a checkpoint of Icebox once
// icebox.json is there under its final name; while one is being made it holds icebox.json.partial
// instead and must not be restored.
#pragma once

#include <sys/types.h>

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "oci/base/result.h"
#include "oci/json.h"

namespace icebox {

inline constexpr const char* kCheckpointFile = "icebox.json";
inline constexpr const char* kPartialCheckpointFile = "icebox.json.partial";
// Version of icebox.json. A reader refuses another major and reads any minor of its own.
inline constexpr int kCheckpointMajor = 1;
inline constexpr int kCheckpointMinor = 0;

// A GPU of the host at the time of the checkpoint.
struct CheckpointGpu {
  std::string uuid;   // "GPU-..."
  std::string model;  // NVML name
  std::uint64_t memory_bytes = 0;
  std::string compute_capability;  // "9.0"
  std::string pci_bus_id;
};

// A process whose GPU state is in the checkpoint.
struct CheckpointProcess {
  pid_t host_pid = 0;          // at the time of the checkpoint
  std::vector<pid_t> ns_pids;  // from the container's pid namespace inwards; how it is found again
                               // after the restore
  std::string command_line;
  std::uint64_t gpu_bytes =
      0;  // in use on all GPUs when it was suspended; 0 when the driver did not tell
  std::map<std::string, std::uint64_t> gpu_bytes_by_uuid;
};

// The flags of the OCI runtime's checkpoint that its restore needs again, without dashes. Nothing
// else is taken from an icebox.json: it may come from anybody, and its flags end up on the
// runtime's command line.
inline constexpr std::array<std::string_view, 5> kDumpOptions = {
    "tcp-established", "ext-unix-sk", "shell-job", "file-locks", "empty-ns"};

struct CheckpointInfo {
  int major = kCheckpointMajor;
  int minor = kCheckpointMinor;
  std::string icebox_version;
  std::string created;  // RFC 3339

  std::string container_id;
  std::string
      cgroups_path;     // linux.cgroupsPath of the checkpointed container, empty when it had none
  std::string runtime;  // program name of the OCI runtime

  std::string kernel;
  std::string architecture;
  std::vector<std::string> cpu_features;  // sorted
  std::string criu_version;               // "4.1.1"

  std::string gpu_state;  // "none", or "inline": GPU bytes are inside CRIU's pages-*.img
  std::string driver_version;
  int cuda_version = 0;                      // as cuDriverGetVersion() counts: 13000
  std::vector<CheckpointGpu> gpus;           // all GPUs of the host, in the driver's order
  std::vector<CheckpointProcess> processes;  // CUDA processes

  std::vector<std::string>
      dump_options;  // OCI runtime flags that the restore needs again, e.g. "--file-locks"
  std::vector<std::string>
      left_out;  // command lines of processes CRIU does not save (exec'ed into the container)

  std::map<std::string, std::uint64_t> files;  // name -> bytes of every other file in the directory
  std::map<std::string, std::int64_t> timings_ms;  // phase -> milliseconds

  // Sum of gpu_bytes.
  [[nodiscard]] std::uint64_t gpu_bytes() const;
};

// The JSON form, with every field.
Json checkpoint_to_json(const CheckpointInfo& info);

// Strict about what it uses: a missing or mistyped member, another format or major version is an
// Error that names it.
Result<CheckpointInfo> checkpoint_from_json(const Json& document);

// What `directory` is. `plain`: CRIU images without icebox.json (made by another shim). Fails when
// it is neither, when it is an unfinished checkpoint, or when icebox.json is damaged or files it
// lists are missing or of another size.
struct CheckpointDirectory {
  bool plain = false;
  CheckpointInfo info;  // empty when plain
};
Result<CheckpointDirectory> read_checkpoint_directory(const std::string& directory);

// Begins a checkpoint in `directory` (created if needed): removes an old icebox.json and leaves
// icebox.json.partial, so that the directory counts as unfinished from here on.
Result<void> begin_checkpoint(const std::string& directory);

// Lists the files of `directory`, fsyncs them all, and writes `info` (its `files` filled in here)
// under its final name, durable: the last step of a checkpoint. Refuses anything but regular files.
// Blocks on the disk.
Result<void> sync_checkpoint_files(const std::string& directory, CheckpointInfo& info);
Result<void> seal_checkpoint(const std::string& directory, const CheckpointInfo& info);

}  // namespace icebox
