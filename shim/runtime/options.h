// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "google/protobuf/any.pb.h"
#include "oci/base/result.h"
#include "shim/runtime/cli_args.h"

namespace icebox::shim {

// The options of a task, whichever message they came in (shim contract, section 6).
struct RuntimeOptions {
  bool no_pivot_root = false;
  bool no_new_keyring = false;
  bool systemd_cgroup = false;
  std::string shim_cgroup;      // cgroup path for the daemon, "" = stay
  std::string binary_name;      // OCI runtime that the engine is to use, "" = the engine's default
  std::string root;             // state directory of the OCI runtime, "" = kDefaultRuntimeRoot
  std::string criu_image_path;  // consumed by containerd; here: a directory that the user named
  std::string criu_work_path;
  std::uint32_t io_uid = 0;  // owner of the pipes that the container writes to
  std::uint32_t io_gid = 0;
};

// State directory of runc under containerd; a namespace is appended to it. Shared by every
// containerd of the machine.
inline constexpr std::string_view kDefaultRuntimeRoot = "/run/containerd/runc";

// Compares a type URL with a full message name: what follows the last '/' counts.
[[nodiscard]] bool has_type(const google::protobuf::Any& any, std::string_view full_name);

// Decodes containerd.runc.v1.Options or the legacy containerd.linux.runc.CreateOptions. An absent,
// empty or unknown message gives the defaults (an unknown one is logged): the stock shim crashes on
// those. invalid_argument for a known type that does not parse.
[[nodiscard]] Result<RuntimeOptions> decode_runtime_options(const google::protobuf::Any& any);

// Decodes checkpoint options (containerd.runc.v1 or the legacy message, whose paths are swapped)
// into `args`, except id and image path. No options at all means: leave the task running.
// `image_path` is the options' own, "" if none.
struct CheckpointOptions {
  CheckpointArgs args;
  std::string image_path;
};
[[nodiscard]] Result<CheckpointOptions> decode_checkpoint_options(const google::protobuf::Any& any);

// options.json and runtime as the stock shim writes them into the bundle, which its `delete` reads
// when it runs on our bundle (upgrade, downgrade, T11 of the contract). "{}" style JSON with the
// proto's field names; defaults are left out.
[[nodiscard]] std::string options_to_json(const RuntimeOptions& options);

// The part of options_to_json that `delete` needs back. Missing keys keep their defaults.
[[nodiscard]] Result<RuntimeOptions> options_from_json(std::string_view json);

}  // namespace icebox::shim
