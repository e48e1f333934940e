// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "oci/base/result.h"
#include "oci/json.h"

namespace icebox {

// linux.cgroupsPath of an OCI runtime spec, empty when it has none.
std::string spec_cgroups_path(const Json& spec);

// Sets linux.cgroupsPath; invalid_argument when the spec has no linux section.
Result<void> set_spec_cgroups_path(Json& spec, const std::string& path);

// The path a restored container gets when `ctr` hands over the checkpointed container's spec
// unchanged: the old path with its last part, where it is the old id (also as the NAME of systemd's
// "slice:prefix:NAME"), replaced by `new_id`; the new id as a sibling when the old one does not end
// in its id. nullopt when nothing is to be changed: the spec's path is another one (CRI makes its
// own), there is none, or the ids are equal.
std::optional<std::string> rewritten_cgroups_path(const std::string& spec_path,
                                                  const std::string& checkpointed_path,
                                                  const std::string& old_id,
                                                  const std::string& new_id);

// The cgroup v2 path (from the hierarchy's root) that runc and crun make of a linux.cgroupsPath:
// the path itself, or for systemd's "slice:prefix:name" the expanded slice with scope
// "prefix-name.scope". Empty for an empty or relative path, whose place depends on the runtime.
// Pure.
std::string unified_cgroup_path(const std::string& cgroups_path);

// Memory limits of linux.resources.memory: absent or not positive = unlimited.
struct SpecMemory {
  std::optional<std::int64_t> limit;
  std::optional<std::int64_t> swap;  // memory + swap, as the spec counts
};
SpecMemory spec_memory(const Json& spec);

// Raises the limits by `extra` bytes where there are any. Returns whether anything changed.
bool raise_spec_memory(Json& spec, std::uint64_t extra);

}  // namespace icebox
