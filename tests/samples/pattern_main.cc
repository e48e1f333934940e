// SPDX-License-Identifier: Apache-2.0
#include "tests/samples/pattern_main.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "tests/samples/device.h"
#include "tests/samples/pattern.h"

namespace icebox::samples {
namespace {

using BeatCount = std::atomic<std::uint64_t>;

/// The count in the file `path`, mapped shared so that others see it without a system call of ours.
BeatCount& map_beats(const char* path) {
  const int fd = ::open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (fd < 0 || ::ftruncate(fd, 4096) != 0) {
    std::fprintf(stderr, "%s: %s\n", path, std::strerror(errno));
    std::exit(2);
  }
  void* page = ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (page == MAP_FAILED) {
    std::fprintf(stderr, "%s: mmap: %s\n", path, std::strerror(errno));
    std::exit(2);
  }
  ::close(fd);
  return *static_cast<BeatCount*>(page);
}

}  // namespace

int run_pattern(const PatternRun& run) {
  static BeatCount own_beats;
  BeatCount& beats = run.shm != nullptr ? map_beats(run.shm) : own_beats;
  beats = 0;
  const cu::Device device = open_device(run.device);
  Pattern pattern(run.mib << 20, run.blocks, run.seed);
  say("ready pid=%d mib=%llu seed=%llu gpu=%s", static_cast<int>(::getpid()),
      static_cast<unsigned long long>(run.mib), static_cast<unsigned long long>(run.seed),
      gpu_uuid(device).c_str());
  for (;;) {
    const Pattern::Look look = pattern.verify();
    if (look.first_mismatch != ~0ULL || look.hash != pattern.expected_hash()) {
      say("MISMATCH offset=%llu hash=%016llx expected=%016llx",
          static_cast<unsigned long long>(look.first_mismatch),
          static_cast<unsigned long long>(look.hash),
          static_cast<unsigned long long>(pattern.expected_hash()));
      return 3;
    }
    const std::uint64_t beat = ++beats;
    say("beat %llu ok bytes=%llu hash=%016llx gpu=%s", static_cast<unsigned long long>(beat),
        static_cast<unsigned long long>(look.bytes), static_cast<unsigned long long>(look.hash),
        gpu_uuid(device).c_str());
    if (beat == run.beats) return 0;
    sleep_ms(run.tick_ms);
  }
}

}  // namespace icebox::samples
