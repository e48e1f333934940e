// SPDX-License-Identifier: Apache-2.0
//
// sample-graph: a CUDA graph with two branches, captured from two streams and replayed for ever.
// The state it works on lives in device memory and depends on nothing but the seed and the number
// of replays, so the lines of an interrupted run must equal those of an undisturbed one.
#include <time.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include <cuda_runtime.h>

namespace {

using Word = unsigned long long;

void check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "sample-graph: %s: %s\n", what, cudaGetErrorString(error));
  std::exit(2);
}

__device__ Word mix(Word z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
  return z ^ (z >> 31);
}

__global__ void seed_state(Word* state, size_t count, Word seed) {
  for (size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x)
    state[i] = mix(seed + (i + 1) * 0x9e3779b97f4a7c15ULL);
}

// One branch of the graph: every word becomes a function of itself and a far neighbour of the other
// half, read from the copy of the step before.
__global__ void evolve(Word* to, const Word* from, const Word* other, size_t count,
                       const Word* step) {
  for (size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x)
    to[i] = mix(from[i] + *step) ^ other[(i * 7919 + 13) % count];
}

// The join: folds all words into the step's checksum (addition: the order does not matter) and
// counts the step, in device memory.
__global__ void fold(const Word* a, const Word* b, size_t count, Word* sum) {
  Word mine = 0;
  for (size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x)
    mine += mix(a[i]) + mix(b[i] ^ i);
  atomicAdd(sum, mine);
}

__global__ void count_step(Word* step) { ++*step; }

struct State {
  size_t count;     // words in each half
  Word* half[2];    // the state
  Word* before[2];  // its copy of the step before
  Word* step;       // on the device
  Word* sum;        // on the device
  Word* host;       // pinned: {step, sum}
};

State make_state(size_t bytes, Word seed) {
  State state{};
  state.count = bytes / 4 / sizeof(Word);
  for (int h = 0; h < 2; ++h) {
    check(cudaMalloc(&state.half[h], state.count * sizeof(Word)), "cudaMalloc");
    check(cudaMalloc(&state.before[h], state.count * sizeof(Word)), "cudaMalloc");
    seed_state<<<256, 256>>>(state.half[h], state.count, seed + h);
  }
  check(cudaMalloc(&state.step, sizeof(Word)), "cudaMalloc");
  check(cudaMalloc(&state.sum, sizeof(Word)), "cudaMalloc");
  check(cudaMemset(state.step, 0, sizeof(Word)), "cudaMemset");
  check(cudaMallocHost(&state.host, 2 * sizeof(Word)), "cudaMallocHost");
  check(cudaDeviceSynchronize(), "seed_state");
  return state;
}

cudaGraphExec_t capture(const State& state, cudaStream_t stream) {
  cudaStream_t branch = nullptr;
  cudaEvent_t forked = nullptr;
  cudaEvent_t joined = nullptr;
  check(cudaStreamCreateWithFlags(&branch, cudaStreamNonBlocking), "cudaStreamCreate");
  check(cudaEventCreateWithFlags(&forked, cudaEventDisableTiming), "cudaEventCreate");
  check(cudaEventCreateWithFlags(&joined, cudaEventDisableTiming), "cudaEventCreate");
  const size_t bytes = state.count * sizeof(Word);
  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), "cudaStreamBeginCapture");
  check(cudaMemsetAsync(state.sum, 0, sizeof(Word), stream), "cudaMemsetAsync");
  for (int h = 0; h < 2; ++h) {
    check(cudaMemcpyAsync(state.before[h], state.half[h], bytes, cudaMemcpyDeviceToDevice, stream),
          "cudaMemcpyAsync");
  }
  check(cudaEventRecord(forked, stream), "cudaEventRecord");
  check(cudaStreamWaitEvent(branch, forked, 0), "cudaStreamWaitEvent");
  evolve<<<256, 256, 0, stream>>>(state.half[0], state.before[0], state.before[1], state.count,
                                  state.step);
  evolve<<<256, 256, 0, branch>>>(state.half[1], state.before[1], state.before[0], state.count,
                                  state.step);
  check(cudaEventRecord(joined, branch), "cudaEventRecord");
  check(cudaStreamWaitEvent(stream, joined, 0), "cudaStreamWaitEvent");
  fold<<<256, 256, 0, stream>>>(state.half[0], state.half[1], state.count, state.sum);
  count_step<<<1, 1, 0, stream>>>(state.step);
  check(cudaMemcpyAsync(&state.host[0], state.step, sizeof(Word), cudaMemcpyDeviceToHost, stream),
        "cudaMemcpyAsync");
  check(cudaMemcpyAsync(&state.host[1], state.sum, sizeof(Word), cudaMemcpyDeviceToHost, stream),
        "cudaMemcpyAsync");
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  check(cudaStreamEndCapture(stream, &graph), "cudaStreamEndCapture");
  check(cudaGraphInstantiate(&executable, graph, 0), "cudaGraphInstantiate");
  return executable;
}

void sleep_ms(unsigned long milliseconds) {
  timespec left{static_cast<time_t>(milliseconds / 1000),
                static_cast<long>(milliseconds % 1000) * 1000000};
  ::nanosleep(&left, nullptr);
}

}  // namespace

int main(int argc, char** argv) {
  unsigned long mib = 64;
  unsigned long steps = 0;
  unsigned long tick_ms = 100;
  Word seed = 1;
  for (int i = 1; i < argc; i += 2) {
    const char* value = i + 1 < argc ? argv[i + 1] : nullptr;
    if (value != nullptr && std::strcmp(argv[i], "--mib") == 0) {
      mib = std::strtoul(value, nullptr, 10);
    } else if (value != nullptr && std::strcmp(argv[i], "--steps") == 0) {
      steps = std::strtoul(value, nullptr, 10);
    } else if (value != nullptr && std::strcmp(argv[i], "--tick-ms") == 0) {
      tick_ms = std::strtoul(value, nullptr, 10);
    } else if (value != nullptr && std::strcmp(argv[i], "--seed") == 0) {
      seed = std::strtoull(value, nullptr, 10);
    } else {
      std::fprintf(stderr,
                   "usage: sample-graph [--mib N] [--seed S] [--tick-ms T] [--steps N]\n\n"
                   "Replays a CUDA graph over N MiB of device memory for ever (--steps: so often)\n"
                   "and prints 'step K sum=H' after each.\n");
      return 2;
    }
  }
  const State state = make_state(mib << 20, seed);
  cudaStream_t stream = nullptr;
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
  cudaGraphExec_t graph = capture(state, stream);
  std::printf("ready pid=%d\n", static_cast<int>(::getpid()));
  std::fflush(stdout);
  for (unsigned long done = 0; steps == 0 || done < steps; ++done) {
    check(cudaGraphLaunch(graph, stream), "cudaGraphLaunch");
    check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
    std::printf("step %llu sum=%016llx\n", state.host[0], state.host[1]);
    std::fflush(stdout);
    sleep_ms(tick_ms);
  }
  return 0;
}
