// SPDX-License-Identifier: Apache-2.0
//
// What the engine needs to know of CRIU, which it never runs for a dump or restore itself: the OCI
// runtime does. Here is which CRIU that will be, whether it is new enough, how it is configured,
// and what it says when it fails.
#pragma once

#include <compare>
#include <string>
#include <string_view>
#include <vector>

#include "oci/base/result.h"

namespace icebox::criu {

struct Version {
  int major = 0;
  int minor = 0;
  int patch = 0;
  friend auto operator<=>(const Version&, const Version&) = default;
};

// The oldest CRIU that works with this engine: 4.1 (cgroup freezer handling, kernels from 6.x on).
inline constexpr Version kMinimum{4, 1, 0};
// Where scripts/setup.sh puts a private CRIU on distributions whose own is too old.
inline constexpr const char* kPrivateCriu = "/opt/icebox/criu/bin/criu";

std::string to_string(const Version& version);

// "Version: 4.1.1" (first line of `criu --version`), "4.2", "4.1-rc1".
Result<Version> parse_version(std::string_view text);

// A CRIU that can be used: its program and version.
struct Criu {
  std::string
      program;  // absolute path; its base name is "criu", because runc >= 1.2 looks in PATH only
  Version version;
};

// Finds the CRIU to use: `configured` if not empty, else kPrivateCriu if it is there, else `criu`
// in PATH; runs `criu --version`. The Error says what is missing or too old and how to get one.
// Blocks for some milliseconds.
Result<Criu> find_criu(const std::string& configured);

// Environment (KEY=value list, based on this process's) in which an OCI runtime runs that CRIU: its
// folder first in PATH; CRIU_LIBS_DIR = `empty_folder`, so that an installed cuda_plugin can
// neither thaw the frozen tree nor restore the GPU by itself (CRIU, plugin.c); CRIU_CONFIG_FILE =
// `config_file` where not empty.
std::vector<std::string> runtime_environment(const Criu& criu, const std::string& empty_folder,
                                             const std::string& config_file);

// The reason in a CRIU log: the last "Error (file:line): text" line that is not a known consequence
// of an earlier one, without the prefix. Empty when the log has no error or cannot be read.
std::string last_error(const std::string& log_file);
// The same for text in hand. Pure.
std::string last_error_in(std::string_view log_text);

}  // namespace icebox::criu
