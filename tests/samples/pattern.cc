// SPDX-License-Identifier: Apache-2.0
#include "tests/samples/pattern.h"

#include <algorithm>

namespace icebox::samples {
namespace {

constexpr std::uint64_t kChunkBytes = 4ULL << 20;
constexpr std::uint64_t kHashStart = 0xcbf29ce484222325ULL;
constexpr std::uint64_t kHashPrime = 0x100000001b3ULL;

/// splitmix64: neighbouring words and seeds have nothing in common, so that a shifted, repeated or
/// foreign page is seen.
std::uint64_t word_at(std::uint64_t seed, std::uint64_t index) {
  std::uint64_t z = seed * 0xd1342543de82ef95ULL + (index + 1) * 0x9e3779b97f4a7c15ULL;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
  return z ^ (z >> 31);
}

std::uint64_t hash_word(std::uint64_t hash, std::uint64_t word) {
  return (hash ^ word) * kHashPrime;
}

}  // namespace

Pattern::Pattern(std::uint64_t bytes, unsigned int blocks, std::uint64_t seed)
    : seed_(seed), expected_hash_(kHashStart), chunk_(kChunkBytes / sizeof(std::uint64_t)) {
  const std::uint64_t words = bytes / sizeof(std::uint64_t);
  std::uint64_t done = 0;
  for (unsigned int i = 0; i < blocks; ++i) {
    const std::uint64_t end = words * (i + 1) / blocks;
    if (end == done) continue;
    const std::uint64_t size = (end - done) * sizeof(std::uint64_t);
    blocks_.push_back({allocate(size), size, done * sizeof(std::uint64_t)});
    done = end;
    fill(blocks_.back());
  }
}

void Pattern::fill(const Block& block) {
  for (std::uint64_t at = 0; at < block.bytes; at += kChunkBytes) {
    const std::uint64_t size = std::min(kChunkBytes, block.bytes - at);
    const std::uint64_t first = (block.offset + at) / sizeof(std::uint64_t);
    for (std::uint64_t i = 0; i < size / sizeof(std::uint64_t); ++i) {
      chunk_[i] = word_at(seed_, first + i);
      expected_hash_ = hash_word(expected_hash_, chunk_[i]);
    }
    check(cu::cuMemcpyHtoD_v2(block.address + at, chunk_.data(), size), "cuMemcpyHtoD");
  }
}

Pattern::Look Pattern::verify() {
  Look look{0, kHashStart, ~0ULL};
  for (const Block& block : blocks_) {
    for (std::uint64_t at = 0; at < block.bytes; at += kChunkBytes) {
      const std::uint64_t size = std::min(kChunkBytes, block.bytes - at);
      const std::uint64_t first = (block.offset + at) / sizeof(std::uint64_t);
      std::fill(chunk_.begin(), chunk_.end(), 0);  // a copy that does nothing must be seen
      check(cu::cuMemcpyDtoH_v2(chunk_.data(), block.address + at, size), "cuMemcpyDtoH");
      for (std::uint64_t i = 0; i < size / sizeof(std::uint64_t); ++i) {
        look.hash = hash_word(look.hash, chunk_[i]);
        if (look.first_mismatch == ~0ULL && chunk_[i] != word_at(seed_, first + i))
          look.first_mismatch = (first + i) * sizeof(std::uint64_t);
      }
      look.bytes += size;
    }
  }
  return look;
}

}  // namespace icebox::samples
