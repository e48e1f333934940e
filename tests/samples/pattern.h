// SPDX-License-Identifier: Apache-2.0
//
// Device memory filled with a pattern that depends on a seed and on every word's place.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "tests/samples/device.h"

namespace icebox::samples {

/// Device memory in one or more allocations, and what must be in it.
class Pattern {
 public:
  /// Allocates `bytes` (a multiple of 8) in `blocks` allocations and fills them. Failures end the
  /// program.
  Pattern(std::uint64_t bytes, unsigned int blocks, std::uint64_t seed);

  /// What one look over all of it found.
  struct Look {
    std::uint64_t bytes = 0;
    std::uint64_t hash = 0;                // FNV-1a over the words read
    std::uint64_t first_mismatch = ~0ULL;  // byte offset; ~0: none
  };

  /// Reads everything back and compares.
  Look verify();

  /// The hash that every Look must have.
  std::uint64_t expected_hash() const { return expected_hash_; }

 private:
  struct Block {
    cu::DevicePtr address;
    std::uint64_t bytes;
    std::uint64_t offset;  // of its first byte in the whole
  };

  void fill(const Block& block);

  std::uint64_t seed_;
  std::uint64_t expected_hash_;
  std::vector<Block> blocks_;
  std::vector<std::uint64_t> chunk_;
};

}  // namespace icebox::samples
