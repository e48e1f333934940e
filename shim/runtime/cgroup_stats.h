// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "google/protobuf/any.pb.h"
#include "oci/base/result.h"
#include "shim/runtime/cgroup.h"

namespace icebox::shim {

// The statistics of a container as the Any that Stats answers with:
// io.containerd.cgroups.v1.Metrics or .v2.Metrics. Files that do not exist count as 0. not_found
// when the cgroup is gone. Reads a few dozen small kernel files; does not block.
[[nodiscard]] Result<google::protobuf::Any> collect_stats(const CgroupPaths& paths);

// The serialized message of one cgroup version. A directory that vanishes meanwhile reads as zeros.
[[nodiscard]] std::string collect_stats_v1(const CgroupPaths& paths);
[[nodiscard]] std::string collect_stats_v2(const CgroupPaths& paths);

}  // namespace icebox::shim
