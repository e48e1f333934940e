// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace icebox::samples {

/// How to run the pattern program; also what each child of sample-multi does.
struct PatternRun {
  std::uint64_t mib = 64;
  std::uint64_t seed = 1;
  std::uint64_t tick_ms = 100;  // pause between two looks
  std::uint64_t beats = 0;      // end after so many looks; 0: never
  unsigned int blocks = 1;      // allocations
  int device = 0;
  const char* shm = nullptr;  // file whose first 8 bytes count the looks
};

/// Fills device memory, then looks at it for ever and prints "beat K ok bytes=B hash=H gpu=UUID"
/// each time. On a difference prints "MISMATCH ..." and returns 3.
int run_pattern(const PatternRun& run);

}  // namespace icebox::samples
