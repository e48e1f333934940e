// SPDX-License-Identifier: Apache-2.0
//
// What the agent gives up before it loads NVIDIA's libraries: capabilities, new privileges, and the
// system calls that neither it nor the driver needs.
#pragma once

#include <sys/capability.h>

#include <span>
#include <string_view>
#include <vector>

#include "oci/base/result.h"

namespace icebox::cuda {

/// A capability the agent keeps, and why.
struct KeptCapability {
  cap_value_t value;
  std::string_view reason;
};

/// The one table of what is kept. README.md shows it to people.
std::span<const KeptCapability> kept_capabilities();

/// Parses "sys_ptrace,sys_admin" (with or without "cap_"). Error for an unknown name.
Result<std::vector<cap_value_t>> parse_capabilities(std::string_view list);

/// Names of the system calls that confine() makes fail with EPERM.
std::span<const std::string_view> denied_system_calls();

/// Confines this process and every thread it starts from now on: keeps only `capabilities` (those
/// that it has), clears the ambient and bounding sets, sets no_new_privs, installs the system call
/// filter. Call before any thread is started and before any library is loaded.
Result<void> confine(const std::vector<cap_value_t>& capabilities);

}  // namespace icebox::cuda
