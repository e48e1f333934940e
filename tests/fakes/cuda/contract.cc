// SPDX-License-Identifier: Apache-2.0
//
// driver-contract: asks a CUDA driver what its checkpoint API answers in every corner that Icebox
// or its tests rely on, and prints a line for each: "CASE: CODE". The same program runs on a real
// GPU and on the simulated driver. contract-580.txt is what a real one said; a test compares the
// simulated one with it.
//
//   driver-contract                  the cases (a few seconds; needs about 1 GiB of device memory)
//   driver-contract --rough          a target killed inside Checkpoint; a Restore without memory
#include <dlfcn.h>
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <future>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "tests/fakes/cuda/driver.h"

namespace {

using namespace icebox;
using cu::Result;
using std::chrono::milliseconds;

// ---- The driver, loaded late: one of the roles must not have it
// -----------------------------------

void* g_library = nullptr;

template <typename F>
F* find(const char* name) {
  void* symbol = ::dlsym(g_library, name);
  if (symbol == nullptr) {
    std::fprintf(stderr, "driver-contract: no %s\n", name);
    std::exit(2);
  }
  return reinterpret_cast<F*>(symbol);
}
#define DRIVER(name) (*find<decltype(cu::name)>(#name))

void load_library() {
  g_library = ::dlopen("libcuda.so.1", RTLD_NOW);
  if (g_library != nullptr) return;
  std::fprintf(stderr, "driver-contract: %s\n", ::dlerror());
  std::exit(2);
}

void must(Result result, const char* what) {
  if (result == Result::success) return;
  std::fprintf(stderr, "driver-contract: %s: %d\n", what, static_cast<int>(result));
  std::exit(2);
}

void open_context() {
  cu::Context context = nullptr;
  load_library();
  must(DRIVER(cuInit)(0), "cuInit");
  must(DRIVER(cuDevicePrimaryCtxRetain)(&context, 0), "cuDevicePrimaryCtxRetain");
  must(DRIVER(cuCtxSetCurrent)(context), "cuCtxSetCurrent");
}

void hold_memory(std::size_t bytes) {
  cu::DevicePtr memory = 0;
  must(DRIVER(cuMemAlloc_v2)(&memory, bytes), "cuMemAlloc");
  must(DRIVER(cuMemsetD8_v2)(memory, 0x5a, bytes), "cuMemsetD8");
  must(DRIVER(cuCtxSynchronize)(), "cuCtxSynchronize");
}

// ---- Targets: this program in another role
// ---------------------------------------------------------

[[noreturn]] void wait_for_end() {
  char byte = 0;
  while (::read(STDIN_FILENO, &byte, 1) > 0) {
  }
  ::_exit(0);
}

[[noreturn]] void be_ready(long value = 0) {
  std::printf("%ld\n", value);
  std::fflush(stdout);
  wait_for_end();
}

[[noreturn]] void run_role(std::string_view role, std::size_t mib) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (role == "plain") be_ready();
  if (role == "loaded") {
    load_library();
    be_ready();
  }
  if (role == "init") {
    load_library();
    must(DRIVER(cuInit)(0), "cuInit");
    be_ready();
  }
  open_context();
  if (mib > 0) hold_memory(mib << 20);
  if (role == "forked") {
    const pid_t child = ::fork();
    if (child == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      for (;;) ::pause();
    }
    be_ready(child);
  }
  if (role == "busy") {
    std::printf("0\n");
    std::fflush(stdout);
    must(DRIVER(cuLaunchHostFunc)(
             nullptr, [](void*) { std::this_thread::sleep_for(milliseconds(3000)); }, nullptr),
         "cuLaunchHostFunc");
    wait_for_end();
  }
  if (role == "hog") {
    // All but 1 GiB of what is free, untouched.
    std::size_t free = 0;
    std::size_t total = 0;
    must(DRIVER(cuMemGetInfo_v2)(&free, &total), "cuMemGetInfo");
    cu::DevicePtr memory = 0;
    must(DRIVER(cuMemAlloc_v2)(&memory, free - (1UL << 30)), "cuMemAlloc");
  }
  be_ready();
}

struct Target {
  pid_t pid = -1;
  int input = -1;
  long value = 0;

  explicit Target(const char* role, std::size_t mib = 0) {
    int in[2];
    int out[2];
    if (::pipe(in) != 0 || ::pipe(out) != 0) std::exit(2);
    pid = ::fork();
    if (pid == 0) {
      ::dup2(in[0], STDIN_FILENO);
      ::dup2(out[1], STDOUT_FILENO);
      for (const int fd : {in[0], in[1], out[0], out[1]}) ::close(fd);
      const std::string size = std::to_string(mib);
      ::execl("/proc/self/exe", "driver-contract", "--role", role, size.c_str(), nullptr);
      ::_exit(2);
    }
    ::close(in[0]);
    ::close(out[1]);
    input = in[1];
    char line[64] = "";
    FILE* lines = ::fdopen(out[0], "r");
    if (std::fgets(line, sizeof line, lines) == nullptr) {
      std::fprintf(stderr, "driver-contract: the %s target did not start\n", role);
      std::exit(2);
    }
    std::fclose(lines);
    value = std::atol(line);
  }
  Target(const Target&) = delete;
  Target& operator=(const Target&) = delete;
  ~Target() { end(); }

  void end() {
    if (pid <= 0) return;
    ::close(input);
    ::kill(pid, SIGKILL);
    ::waitpid(pid, nullptr, 0);
    pid = -1;
  }
};

/// Descriptors of nvidia device nodes, by the name of the node.
int device_fds(pid_t pid) {
  int count = 0;
  std::error_code error;
  for (const auto& entry :
       std::filesystem::directory_iterator("/proc/" + std::to_string(pid) + "/fd", error)) {
    const auto link = std::filesystem::read_symlink(entry.path(), error);
    if (link.filename().string().starts_with("nvidia")) ++count;
  }
  return count;
}

// ---- Calls
// -----------------------------------------------------------------------------------------

constexpr milliseconds kHang{15000};

/// What the call returned; "hang" if it has not within `limit`. Its thread is then left behind.
std::string outcome(const std::function<Result()>& call, milliseconds limit = kHang) {
  std::packaged_task<Result()> task(call);
  std::future<Result> result = task.get_future();
  std::thread(std::move(task)).detach();
  if (result.wait_for(limit) == std::future_status::timeout) return "hang";
  return std::to_string(static_cast<int>(result.get()));
}

void print(const std::string& name, const std::string& value) {
  std::printf("%s: %s\n", name.c_str(), value.c_str());
  std::fflush(stdout);
}

void ask(const std::string& name, const std::function<Result()>& call) {
  print(name, outcome(call));
}

Result get_tid(int pid) {
  int tid = 0;
  return DRIVER(cuCheckpointProcessGetRestoreThreadId)(pid, &tid);
}

int restore_tid(int pid) {
  int tid = 0;
  DRIVER(cuCheckpointProcessGetRestoreThreadId)(pid, &tid);
  return tid;
}

Result get_state(int pid) {
  cu::ProcessState state{};
  return DRIVER(cuCheckpointProcessGetState)(pid, &state);
}

Result lock(int pid, unsigned int timeout_ms = 5000) {
  cu::LockArgs args{};
  args.timeout_ms = timeout_ms;
  return DRIVER(cuCheckpointProcessLock)(pid, &args);
}

Result checkpoint(int pid) { return DRIVER(cuCheckpointProcessCheckpoint)(pid, nullptr); }
Result restore(int pid) { return DRIVER(cuCheckpointProcessRestore)(pid, nullptr); }
Result unlock(int pid) { return DRIVER(cuCheckpointProcessUnlock)(pid, nullptr); }

void print_state(const std::string& name, int pid) {
  cu::ProcessState state{};
  const std::string result =
      outcome([&] { return DRIVER(cuCheckpointProcessGetState)(pid, &state); });
  print(name, result == "0" ? "state " + std::to_string(static_cast<int>(state)) : result);
}

void ask_all(const std::string& name, int pid) {
  ask(name + ", get-tid", [=] { return get_tid(pid); });
  ask(name + ", get-state", [=] { return get_state(pid); });
  ask(name + ", lock", [=] { return lock(pid); });
  ask(name + ", checkpoint", [=] { return checkpoint(pid); });
  ask(name + ", restore", [=] { return restore(pid); });
  ask(name + ", unlock", [=] { return unlock(pid); });
}

// ---- Cases
// -----------------------------------------------------------------------------------------

void without_init() {
  const Target target("context", 64);
  ask_all("caller without cuInit", target.pid);
  const std::string init = outcome([] { return DRIVER(cuInit)(0); });
  print("cuInit", init);
  print_state("after calls without cuInit", target.pid);
}

void which_processes() {
  {
    const Target plain("plain");
    ask_all("no libcuda", plain.pid);
  }
  {
    const Target loaded("loaded");
    ask_all("libcuda without cuInit", loaded.pid);
  }
  {
    const Target forked("forked");
    ask("forked child, get-tid", [&] { return get_tid(static_cast<int>(forked.value)); });
    ask("forked child, get-state", [&] { return get_state(static_cast<int>(forked.value)); });
    print("forked child holds device fds",
          device_fds(static_cast<int>(forked.value)) > 0 ? "yes" : "no");
  }
  Target gone("plain");
  const int pid = gone.pid;
  gone.end();
  ask("dead pid, get-tid", [=] { return get_tid(pid); });
  ask("dead pid, get-state", [=] { return get_state(pid); });
  ask("pid 0, get-tid", [] { return get_tid(0); });
  ask("pid -1, get-state", [] { return get_state(-1); });
}

void init_only() {
  const Target target("init");
  print("cuInit only, device fds", device_fds(target.pid) > 0 ? "yes" : "no");
  ask("cuInit only, get-tid", [&] { return get_tid(target.pid); });
  print_state("cuInit only, get-state", target.pid);
  ask("cuInit only, lock", [&] { return lock(target.pid); });
  ask("cuInit only, checkpoint", [&] { return checkpoint(target.pid); });
  print_state("cuInit only, after checkpoint", target.pid);
  print("cuInit only, device fds after checkpoint", device_fds(target.pid) > 0 ? "yes" : "no");
  ask("cuInit only, restore", [&] { return restore(target.pid); });
  ask("cuInit only, unlock", [&] { return unlock(target.pid); });
}

void thread_ids() {
  const Target target("context", 64);
  const int tid = restore_tid(target.pid);
  print("restore thread is a thread of the process", tid > 0 && tid != target.pid ? "yes" : "no");
  ask("restore thread's id as pid, get-tid", [=] { return get_tid(tid); });
  ask("restore thread's id as pid, get-state", [=] { return get_state(tid); });
}

void null_arguments() {
  const Target target("context", 64);
  ask("get-tid into null",
      [&] { return DRIVER(cuCheckpointProcessGetRestoreThreadId)(target.pid, nullptr); });
  ask("get-state into null",
      [&] { return DRIVER(cuCheckpointProcessGetState)(target.pid, nullptr); });
  ask("lock with null arguments",
      [&] { return DRIVER(cuCheckpointProcessLock)(target.pid, nullptr); });
  ask("unlock with null arguments", [&] { return unlock(target.pid); });
}

void order_of_calls() {
  const Target target("context", 64);
  const int pid = target.pid;
  print("running, device fds", device_fds(pid) > 0 ? "yes" : "no");
  print_state("running, get-state", pid);
  ask("running, checkpoint", [=] { return checkpoint(pid); });
  ask("running, restore", [=] { return restore(pid); });
  ask("running, unlock", [=] { return unlock(pid); });
  ask("running, lock", [=] { return lock(pid); });
  print_state("locked, get-state", pid);
  print("locked, device fds", device_fds(pid) > 0 ? "yes" : "no");
  ask("locked, lock", [=] { return lock(pid); });
  ask("locked, restore", [=] { return restore(pid); });
  ask("locked, checkpoint", [=] { return checkpoint(pid); });
  print_state("checkpointed, get-state", pid);
  print("checkpointed, device fds", device_fds(pid) > 0 ? "yes" : "no");
  ask("checkpointed, get-tid", [=] { return get_tid(pid); });
  ask("checkpointed, lock", [=] { return lock(pid); });
  ask("checkpointed, checkpoint", [=] { return checkpoint(pid); });
  ask("checkpointed, unlock", [=] { return unlock(pid); });
  ask("checkpointed, restore", [=] { return restore(pid); });
  print_state("restored, get-state", pid);
  print("restored, device fds", device_fds(pid) > 0 ? "yes" : "no");
  ask("restored, checkpoint again", [=] { return checkpoint(pid); });
  ask("restored, restore again", [=] { return restore(pid); });
  ask("restored, unlock", [=] { return unlock(pid); });
  print_state("unlocked, get-state", pid);
}

template <typename Args>
Args with_last_byte_set() {
  Args args{};
  reinterpret_cast<unsigned char*>(&args)[sizeof args - 1] = 1;
  return args;
}

void reserved_bytes() {
  const Target target("context", 64);
  const int pid = target.pid;
  auto lock_args = with_last_byte_set<cu::LockArgs>();
  auto checkpoint_args = with_last_byte_set<cu::CheckpointArgs>();
  auto restore_args = with_last_byte_set<cu::RestoreArgs>();
  auto unlock_args = with_last_byte_set<cu::UnlockArgs>();
  ask("reserved bytes, lock", [&] { return DRIVER(cuCheckpointProcessLock)(pid, &lock_args); });
  print_state("reserved bytes, after lock", pid);
  ask("reserved bytes, lock for real", [=] { return lock(pid); });
  ask("reserved bytes, checkpoint",
      [&] { return DRIVER(cuCheckpointProcessCheckpoint)(pid, &checkpoint_args); });
  print_state("reserved bytes, after checkpoint", pid);
  ask("reserved bytes, checkpoint for real", [=] { return checkpoint(pid); });
  ask("reserved bytes, restore",
      [&] { return DRIVER(cuCheckpointProcessRestore)(pid, &restore_args); });
  print_state("reserved bytes, after restore", pid);
  ask("reserved bytes, restore for real", [=] { return restore(pid); });
  ask("reserved bytes, unlock",
      [&] { return DRIVER(cuCheckpointProcessUnlock)(pid, &unlock_args); });
  print_state("reserved bytes, after unlock", pid);
}

void gpu_pairs() {
  const Target target("context", 64);
  const int pid = target.pid;
  cu::GpuPair pair{};
  must(DRIVER(cuDeviceGetUuid_v2)(&pair.old_uuid, 0), "cuDeviceGetUuid");
  const cu::Uuid own = pair.old_uuid;
  cu::Uuid unknown = own;
  unknown.bytes[15] ^= 0x80;
  cu::RestoreArgs args{};
  const auto try_restore = [&](const char* name, unsigned int count, cu::GpuPair* pairs) {
    args.gpu_pairs = pairs;
    args.gpu_pairs_count = count;
    ask(name, [&] { return DRIVER(cuCheckpointProcessRestore)(pid, &args); });
    print_state(std::string(name) + ", then", pid);
  };
  must(lock(pid), "lock");
  must(checkpoint(pid), "checkpoint");
  // Not asked: a count without pairs. Driver 580.159.04 reads through the null pointer.
  pair = {unknown, own};
  try_restore("pairs: old GPU unknown", 1, &pair);
  pair = {own, unknown};
  try_restore("pairs: new GPU unknown", 1, &pair);
  pair = {own, own};
  try_restore("pairs: itself", 1, &pair);
  ask("pairs: unlock", [=] { return unlock(pid); });
}

void lock_timeout() {
  const Target target("busy");
  std::this_thread::sleep_for(milliseconds(300));
  const auto start = std::chrono::steady_clock::now();
  ask("busy, lock with 500 ms", [&] { return lock(target.pid, 500); });
  const auto took = std::chrono::steady_clock::now() - start;
  print("busy, lock came back in time",
        took > milliseconds(400) && took < milliseconds(2000) ? "yes" : "no");
  print_state("busy, after the timeout", target.pid);
  ask("busy, lock with 10 s", [&] { return lock(target.pid, 10000); });
  ask("busy, unlock", [&] { return unlock(target.pid); });
}

void stopped_process() {
  const Target target("context", 64);
  const int pid = target.pid;
  ::kill(pid, SIGSTOP);
  ask("stopped, get-tid", [=] { return get_tid(pid); });
  print("stopped, get-state", outcome([=] { return get_state(pid); }, milliseconds(2000)));
  print("stopped, lock with 500 ms", outcome([=] { return lock(pid, 500); }, milliseconds(3000)));
  ::kill(pid, SIGCONT);
  std::this_thread::sleep_for(milliseconds(1000));
  print_state("stopped, state when it goes on", pid);
}

// ---- Rough cases: not compared, for reading
// -------------------------------------------------------

void killed_inside_checkpoint() {
  Target target("context", 8192);
  const int pid = target.pid;
  must(lock(pid), "lock");
  const auto start = std::chrono::steady_clock::now();
  std::thread killer([=] {
    std::this_thread::sleep_for(milliseconds(700));
    ::kill(pid, SIGKILL);
  });
  ask("killed inside checkpoint, checkpoint", [=] { return checkpoint(pid); });
  const auto took =
      std::chrono::duration_cast<milliseconds>(std::chrono::steady_clock::now() - start);
  print("killed inside checkpoint, milliseconds", std::to_string(took.count()));
  ask("killed inside checkpoint, get-state after", [=] { return get_state(pid); });
  killer.join();
}

void killed_inside_restore() {
  Target target("context", 8192);
  const int pid = target.pid;
  must(lock(pid), "lock");
  must(checkpoint(pid), "checkpoint");
  std::thread killer([=] {
    std::this_thread::sleep_for(milliseconds(700));
    ::kill(pid, SIGKILL);
  });
  const auto start = std::chrono::steady_clock::now();
  ask("killed inside restore, restore", [=] { return restore(pid); });
  const auto took =
      std::chrono::duration_cast<milliseconds>(std::chrono::steady_clock::now() - start);
  print("killed inside restore, milliseconds", std::to_string(took.count()));
  killer.join();
}

void no_memory_for_restore() {
  const Target target("context", 8192);
  const int pid = target.pid;
  must(lock(pid), "lock");
  must(checkpoint(pid), "checkpoint");
  Target hog("hog");
  ask("no memory, restore", [=] { return restore(pid); });
  print_state("no memory, then", pid);
  ask("no memory, restore again", [=] { return restore(pid); });
  hog.end();
  ask("no memory, restore when there is memory again", [=] { return restore(pid); });
  print_state("no memory, at the end", pid);
  ask("no memory, unlock", [=] { return unlock(pid); });
}

}  // namespace

int main(int argc, char** argv) {
  ::signal(SIGPIPE, SIG_IGN);
  if (argc == 4 && std::strcmp(argv[1], "--role") == 0)
    run_role(argv[2], std::strtoul(argv[3], nullptr, 10));
  load_library();
  const bool rough = argc == 2 && std::strcmp(argv[1], "--rough") == 0;
  if (argc != 1 && !rough) {
    std::fputs("usage: driver-contract [--rough]\n", stderr);
    return 2;
  }
  if (rough) {
    must(DRIVER(cuInit)(0), "cuInit");
    killed_inside_checkpoint();
    killed_inside_restore();
    no_memory_for_restore();
  } else {
    without_init();
    which_processes();
    init_only();
    thread_ids();
    null_arguments();
    order_of_calls();
    reserved_bytes();
    gpu_pairs();
    lock_timeout();
    stopped_process();
  }
  std::fflush(stdout);
  ::_exit(0);  // a call that hangs has left a thread behind
}
