// SPDX-License-Identifier: Apache-2.0
//
// sample-pattern: device memory whose every byte is known, verified for ever.
#include <cstdio>
#include <string_view>

#include "tests/samples/device.h"
#include "tests/samples/pattern_main.h"

int main(int argc, char** argv) {
  using namespace icebox::samples;
  end_on_signals();
  PatternRun run;
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    const char* value = i + 1 < argc ? argv[i + 1] : nullptr;
    ++i;
    if (word == "--mib") {
      run.mib = number("--mib", value);
    } else if (word == "--seed") {
      run.seed = number("--seed", value);
    } else if (word == "--tick-ms") {
      run.tick_ms = number("--tick-ms", value);
    } else if (word == "--beats") {
      run.beats = number("--beats", value);
    } else if (word == "--blocks") {
      run.blocks = static_cast<unsigned int>(number("--blocks", value));
    } else if (word == "--device") {
      run.device = static_cast<int>(number("--device", value));
    } else if (word == "--shm" && value != nullptr) {
      run.shm = value;
    } else {
      std::fputs(
          "usage: sample-pattern [--mib N] [--seed S] [--tick-ms T] [--beats N] [--blocks N]\n"
          "                      [--device N] [--shm FILE]\n"
          "\n"
          "Fills N MiB of device memory with a pattern and verifies it for ever (--beats: so "
          "often),\n"
          "a line each time. A difference prints MISMATCH and ends with exit status 3.\n",
          stderr);
      return 2;
    }
  }
  return run_pattern(run);
}
