// SPDX-License-Identifier: Apache-2.0
//
// sample-busy: processes and threads that count in files as fast as they can. While a container is
// paused not one of these numbers may move.
#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "tests/samples/device.h"

namespace {

using namespace icebox;
using samples::check;

constexpr char kUsage[] =
    "usage: sample-busy --dir DIR [--threads N] [--children N] [--cuda | --no-cuda] [--name NAME]\n"
    "       sample-busy --read DIR\n"
    "\n"
    "This process and N children (0) count in N threads (2) each, in DIR/NAME.INDEX (NAME: busy).\n"
    "With --cuda each has one thread more that counts the calls it makes on device memory.\n"
    "--read prints every count: 'FILE N N N'.\n";

/// One file. Each thread has a cache line of its own, so that none slows another.
struct alignas(64) Slot {
  std::atomic<std::uint64_t> count;
};
struct Board {
  static constexpr std::size_t kMaxSlots = 63;
  alignas(64) std::uint64_t used;
  Slot slots[kMaxSlots];
};
static_assert(sizeof(Board) == 4096);

struct Arguments {
  std::string dir;
  std::string read_dir;
  std::string name = "busy";
  std::uint64_t threads = 2;
  std::uint64_t children = 0;
  bool cuda = false;
};

[[noreturn]] void fail(const std::string& what) {
  std::fprintf(stderr, "%s: %s: %s\n", program_invocation_short_name, what.c_str(),
               std::strerror(errno));
  std::exit(2);
}

Board* map_board(const std::string& path, int flags, int protection) {
  const int fd = ::open(path.c_str(), flags | O_CLOEXEC, 0644);
  if (fd < 0) return nullptr;
  if ((flags & O_CREAT) != 0 && ::ftruncate(fd, sizeof(Board)) != 0) fail(path);
  struct stat info {};
  void* at = MAP_FAILED;
  if (::fstat(fd, &info) == 0 && info.st_size == sizeof(Board))
    at = ::mmap(nullptr, sizeof(Board), protection, MAP_SHARED, fd, 0);
  ::close(fd);
  return at == MAP_FAILED ? nullptr : static_cast<Board*>(at);
}

std::string board_path(const Arguments& arguments, const std::string& dir, std::uint64_t index) {
  return dir + "/" + arguments.name + "." + std::to_string(index);
}

[[noreturn]] void count(Slot& slot) {
  for (;;) slot.count.fetch_add(1, std::memory_order_relaxed);
}

[[noreturn]] void count_cuda_calls(Slot& slot) {
  samples::open_device(0);
  constexpr std::size_t kBytes = 1UL << 20;
  const cu::DevicePtr memory = samples::allocate(kBytes);
  for (unsigned char value = 0;; ++value) {
    unsigned char seen = 0;
    check(cu::cuMemsetD8_v2(memory, value, kBytes), "cuMemsetD8");
    check(cu::cuMemcpyDtoH_v2(&seen, memory + kBytes - 1, 1), "cuMemcpyDtoH");
    if (seen != value) {
      samples::say("MISMATCH wrote=%d read=%d", value, seen);
      std::_Exit(3);
    }
    slot.count.fetch_add(1, std::memory_order_relaxed);
  }
}

[[noreturn]] void run_process(const Arguments& arguments, std::uint64_t index) {
  const std::string path = board_path(arguments, arguments.dir, index);
  Board* board = map_board(path, O_RDWR | O_CREAT, PROT_READ | PROT_WRITE);
  if (board == nullptr) fail(path);
  const std::uint64_t slots = arguments.threads + (arguments.cuda ? 1 : 0);
  for (Slot& slot : board->slots) slot.count = 0;
  board->used = slots;
  samples::say("ready index=%llu pid=%d", static_cast<unsigned long long>(index),
               static_cast<int>(::getpid()));
  std::vector<std::thread> threads;
  for (std::uint64_t i = 0; i < arguments.threads; ++i)
    threads.emplace_back([slot = &board->slots[i]] { count(*slot); });
  if (arguments.cuda)
    threads.emplace_back([slot = &board->slots[arguments.threads]] { count_cuda_calls(*slot); });
  for (;;) ::pause();
}

int print_boards(const Arguments& arguments) {
  int found = 0;
  for (std::uint64_t index = 0;; ++index) {
    const std::string path = board_path(arguments, arguments.read_dir, index);
    const Board* board = map_board(path, O_RDONLY, PROT_READ);
    if (board == nullptr) break;
    std::string line = arguments.name + "." + std::to_string(index);
    for (std::uint64_t i = 0; i < board->used && i < Board::kMaxSlots; ++i)
      line += " " + std::to_string(board->slots[i].count.load());
    samples::say("%s", line.c_str());
    ++found;
  }
  return found > 0 ? 0 : 1;
}

Arguments parse(int argc, char** argv) {
  Arguments arguments;
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    const char* value = i + 1 < argc ? argv[i + 1] : nullptr;
    if (word == "--cuda" || word == "--no-cuda") {
      arguments.cuda = word == "--cuda";
      continue;
    }
    ++i;
    if (word == "--dir" && value != nullptr) {
      arguments.dir = value;
    } else if (word == "--read" && value != nullptr) {
      arguments.read_dir = value;
    } else if (word == "--name" && value != nullptr) {
      arguments.name = value;
    } else if (word == "--threads") {
      arguments.threads = samples::number("--threads", value);
    } else if (word == "--children") {
      arguments.children = samples::number("--children", value);
    } else {
      std::fputs(kUsage, stderr);
      std::exit(2);
    }
  }
  const bool one_mode = arguments.dir.empty() != arguments.read_dir.empty();
  if (!one_mode || arguments.threads >= Board::kMaxSlots) {
    std::fputs(kUsage, stderr);
    std::exit(2);
  }
  return arguments;
}

}  // namespace

int main(int argc, char** argv) {
  samples::end_on_signals();
  const Arguments arguments = parse(argc, argv);
  if (!arguments.read_dir.empty()) return print_boards(arguments);
  // Forked before anything touches CUDA: each process is a CUDA process of its own.
  for (std::uint64_t child = 1; child <= arguments.children; ++child) {
    const pid_t pid = ::fork();
    if (pid < 0) fail("fork");
    if (pid != 0) continue;
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    run_process(arguments, child);
  }
  run_process(arguments, 0);
}
