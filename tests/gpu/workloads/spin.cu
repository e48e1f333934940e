// SPDX-License-Identifier: Apache-2.0
//
// spin: one kernel that runs for a given time, then short steps for ever. While the kernel runs the
// driver cannot lock the process: cuCheckpointProcessLock waits for submitted work.
#include <time.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include <cuda_runtime.h>

namespace {

using Word = unsigned long long;

void check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "spin: %s: %s\n", what, cudaGetErrorString(error));
  std::exit(2);
}

// %globaltimer counts nanoseconds, whatever the clock of the multiprocessor is.
__global__ void spin(Word nanoseconds) {
  Word start = 0;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(start));
  for (Word now = start; now - start < nanoseconds;) {
    __nanosleep(100000);
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  }
}

__global__ void count(Word* counter) { ++*counter; }

void say(const char* what, Word value) {
  std::printf("%s %llu\n", what, value);
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3 || std::strcmp(argv[1], "--spin-ms") != 0) {
    std::fprintf(stderr, "usage: spin --spin-ms N\n");
    return 2;
  }
  Word* counter = nullptr;
  check(cudaMalloc(&counter, sizeof(Word)), "cudaMalloc");
  check(cudaMemset(counter, 0, sizeof(Word)), "cudaMemset");
  check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  say("spinning", static_cast<Word>(::getpid()));
  spin<<<1, 1>>>(std::strtoull(argv[2], nullptr, 10) * 1000000);
  check(cudaGetLastError(), "spin");
  check(cudaDeviceSynchronize(), "spin");
  say("spun", 0);
  for (;;) {
    count<<<1, 1>>>(counter);
    Word value = 0;
    check(cudaMemcpy(&value, counter, sizeof value, cudaMemcpyDeviceToHost), "cudaMemcpy");
    say("step", value);
    const timespec tick{0, 100000000};
    ::nanosleep(&tick, nullptr);
  }
}
