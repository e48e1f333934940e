// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <string>

#include "oci/base/result.h"

namespace icebox::engine {

inline constexpr const char* kConfigVariable = "ICEBOX_CONFIG";
inline constexpr const char* kDefaultConfig = "/etc/icebox/config.toml";
// Set by the shim from the task's Options.binary_name: overrides `runtime`.
inline constexpr const char* kRuntimeVariable = "ICEBOX_RUNTIME";

// The engine's configuration, with its defaults. TOML keys have the same names.
struct Config {
  std::string runtime = "runc";  // OCI runtime: a name in PATH or an absolute path
  std::string criu;  // empty: the private prefix of scripts/setup.sh if there, else `criu` in PATH
  std::string libcuda = "libcuda.so.1";
  std::string libnvidia_ml = "libnvidia-ml.so.1";
  std::chrono::milliseconds lock_timeout{
      10'000};  // key lock_timeout_ms: total time for locking all CUDA processes
  std::chrono::milliseconds driver_timeout{
      60'000};  // key driver_timeout_ms: what a driver Checkpoint or Restore may take, on top of
                // 1 s per 512 MiB of device memory
  std::string state_dir = "/run/icebox";  // journals and locks; must not survive a reboot
};

// Reads `path`. Strict: an unknown key, a wrong type or value is invalid_argument with file and
// line.
Result<Config> parse_config(const std::string& text, const std::string& path);

// The configuration this process is to use: the file named by $ICEBOX_CONFIG (which must exist),
// else kDefaultConfig (which need not), then $ICEBOX_RUNTIME.
Result<Config> load_config();

}  // namespace icebox::engine
