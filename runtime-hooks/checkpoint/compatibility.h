// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "oci/base/result.h"
#include "oci/checkpoint.h"
#include "runtime-hooks/criu/criu.h"
#include "runtime-hooks/cuda/target.h"

namespace icebox::engine {

// What matters of this host for a restore.
struct HostFacts {
  std::string kernel;
  std::string architecture;
  std::vector<std::string> cpu_features;  // sorted
  criu::Version criu;
  std::optional<cuda::DriverInfo> driver;  // only where the checkpoint holds GPU state
};

// Kernel release and machine (uname(2)), instruction set features (/proc/cpuinfo).
Result<HostFacts> read_host_facts();

// The instruction set extensions among the "flags" of /proc/cpuinfo text, sorted: those whose
// absence makes a running program die of an illegal instruction. Flags that only describe the
// machine are left out, so that they cannot cause a false refusal. Pure.
std::vector<std::string> instruction_features(std::string_view cpuinfo);

// Every reason why `info` cannot be restored on `host`, each a sentence with both sides; empty = it
// can. Pure.
std::vector<std::string> incompatibilities(const CheckpointInfo& info, const HostFacts& host);

// Which GPU each GPU of the checkpoint becomes. Empty when all GPUs that were used are here under
// their own UUID; else a complete permutation by position, which needs as many GPUs as there were
// (the driver wants every GPU of the host in it). Pure.
Result<std::vector<cuda::GpuPair>> plan_gpu_map(const CheckpointInfo& info,
                                                const cuda::DriverInfo& driver);

}  // namespace icebox::engine
