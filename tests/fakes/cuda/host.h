// SPDX-License-Identifier: Apache-2.0
//
// What the simulated machine looks like: its GPUs, driver version and device node. Read from the
// host file (README.md has its keys), then from the environment.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "tests/fakes/cuda/driver.h"

namespace icebox::sim {

inline constexpr int kMaxGpus = 16;

/// One simulated GPU.
struct Gpu {
  cu::Uuid uuid{};
  char name[64] = "Simulated GPU";
  std::uint64_t memory_bytes = 8ULL << 30;
  int compute_major = 9;
  int compute_minor = 0;
  bool persistence = true;
};

/// The simulated machine, as one process sees it.
struct Host {
  int gpu_count = 1;
  Gpu gpus[kMaxGpus];
  char driver_version[80];
  int cuda_version;
  char device_path[256] = "/dev/nvidia0";
  /// Folder of the files that hold device memory; empty: anonymous memory of the process.
  char vram_dir[256] = "";
  /// Knob file of the target; empty: none.
  char knobs_path[256] = "";
  /// Device memory that a context takes for itself.
  std::uint64_t context_bytes = 2ULL << 20;

  /// One GPU with a fixed UUID per index, and the version that this library was built as.
  Host();
};

/// Applies the lines of a host file to `host`. Returns an empty text, or what is wrong with which
/// line; `host` may then be half changed. Unknown keys are errors: a typing error in a test must
/// not pass as a default.
std::string parse_host(std::string_view text, Host& host);

/// The host as this process sees it: defaults, then the host file ($ICEBOX_SIM_HOST, else
/// icebox-sim.conf beside this library), then $ICEBOX_SIM_GPUS, _DEVICE, _KNOBS and _VRAM.
/// Returns an empty text or what is wrong. A host file that $ICEBOX_SIM_HOST names must exist.
std::string load_host(Host& host);

/// "GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx" of a UUID.
std::string uuid_text(const cu::Uuid& uuid);

/// Reads that form, with or without "GPU-". False if it is anything else.
bool parse_uuid(std::string_view text, cu::Uuid& uuid);

}  // namespace icebox::sim
