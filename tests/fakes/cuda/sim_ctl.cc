// SPDX-License-Identifier: Apache-2.0
//
// sim-ctl: the caller's side of the checkpoint API as a command, for tests and debugging. It loads
// the library it is given, simulated or real.
#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "tests/fakes/cuda/driver.h"
#include "tests/fakes/cuda/host.h"

namespace {

namespace cu = icebox::cu;

constexpr char kUsage[] =
    "usage: sim-ctl [--lib PATH] [--timeout-ms N] [--pair OLD:NEW]... ACTION PID...\n"
    "\n"
    "  get-tid get-state lock checkpoint restore unlock   one call of the checkpoint API\n"
    "  suspend                                            lock, then checkpoint\n"
    "  resume                                             restore, then unlock\n"
    "\n"
    "Prints 'ACTION PID: CODE NAME', for get-tid and get-state also the value.\n"
    "Exit status: 0, 1 if a call failed, 2 for a wrong command line or library.\n"
    "\n"
    "  --lib PATH        the driver library (libcuda.so.1)\n"
    "  --timeout-ms N    of lock (10000; 0: none)\n"
    "  --pair OLD:NEW    GPU UUIDs for restore\n";

struct Arguments {
  const char* library = "libcuda.so.1";
  unsigned int timeout_ms = 10000;
  std::vector<cu::GpuPair> pairs;
  std::string action;
  std::vector<int> pids;
};

bool parse_pair(std::string_view text, Arguments& arguments) {
  const auto colon = text.find(':');
  cu::GpuPair pair{};
  if (colon == std::string_view::npos ||
      !icebox::sim::parse_uuid(text.substr(0, colon), pair.old_uuid) ||
      !icebox::sim::parse_uuid(text.substr(colon + 1), pair.new_uuid)) {
    return false;
  }
  arguments.pairs.push_back(pair);
  return true;
}

bool parse(int argc, char** argv, Arguments& arguments) {
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    const bool has_value = i + 1 < argc;
    if (word == "--lib" && has_value) {
      arguments.library = argv[++i];
    } else if (word == "--timeout-ms" && has_value) {
      arguments.timeout_ms = static_cast<unsigned int>(std::strtoul(argv[++i], nullptr, 10));
    } else if (word == "--pair" && has_value) {
      if (!parse_pair(argv[++i], arguments)) return false;
    } else if (word.substr(0, 2) == "--") {
      return false;
    } else if (arguments.action.empty()) {
      arguments.action = word;
    } else {
      arguments.pids.push_back(std::atoi(argv[i]));
    }
  }
  return !arguments.pids.empty();
}

/// The functions of the library that are used here.
struct Library {
  void* handle = nullptr;

  template <typename F>
  F* find(const char* name) const {
    void* symbol = ::dlsym(handle, name);
    if (symbol == nullptr) {
      std::fprintf(stderr, "sim-ctl: the library has no %s\n", name);
      std::exit(2);
    }
    return reinterpret_cast<F*>(symbol);
  }
};
#define CALL(library, name) (*(library).find<decltype(cu::name)>(#name))

bool report(const Library& library, const char* action, int pid, cu::Result result,
            const std::string& value = {}) {
  const char* name = nullptr;
  CALL(library, cuGetErrorName)(result, &name);
  std::printf("%s %d: %d %s%s%s\n", action, pid, static_cast<int>(result),
              name != nullptr ? name : "?", value.empty() ? "" : " ", value.c_str());
  std::fflush(stdout);
  return result == cu::Result::success;
}

bool lock(const Library& library, const Arguments& arguments, int pid) {
  cu::LockArgs args{};
  args.timeout_ms = arguments.timeout_ms;
  return report(library, "lock", pid, CALL(library, cuCheckpointProcessLock)(pid, &args));
}

bool checkpoint(const Library& library, int pid) {
  cu::CheckpointArgs args{};
  return report(library, "checkpoint", pid,
                CALL(library, cuCheckpointProcessCheckpoint)(pid, &args));
}

bool restore(const Library& library, const Arguments& arguments, int pid) {
  std::vector<cu::GpuPair> pairs = arguments.pairs;
  cu::RestoreArgs args{};
  args.gpu_pairs = pairs.empty() ? nullptr : pairs.data();
  args.gpu_pairs_count = static_cast<unsigned int>(pairs.size());
  return report(library, "restore", pid, CALL(library, cuCheckpointProcessRestore)(pid, &args));
}

bool unlock(const Library& library, int pid) {
  cu::UnlockArgs args{};
  return report(library, "unlock", pid, CALL(library, cuCheckpointProcessUnlock)(pid, &args));
}

bool get_tid(const Library& library, int pid) {
  int tid = 0;
  const cu::Result result = CALL(library, cuCheckpointProcessGetRestoreThreadId)(pid, &tid);
  return report(library, "get-tid", pid, result,
                result == cu::Result::success ? std::to_string(tid) : "");
}

bool get_state(const Library& library, int pid) {
  static constexpr const char* kNames[] = {"RUNNING", "LOCKED", "CHECKPOINTED", "FAILED"};
  cu::ProcessState state{};
  const cu::Result result = CALL(library, cuCheckpointProcessGetState)(pid, &state);
  const auto value = static_cast<unsigned int>(state);
  const std::string text = value < 4 ? kNames[value] : "state " + std::to_string(value);
  return report(library, "get-state", pid, result, result == cu::Result::success ? text : "");
}

/// False for an action that does not exist; `ok` says whether the calls succeeded.
bool act(const Library& library, const Arguments& arguments, int pid, bool& ok) {
  const std::string& action = arguments.action;
  if (action == "get-tid") {
    ok = get_tid(library, pid);
  } else if (action == "get-state") {
    ok = get_state(library, pid);
  } else if (action == "lock") {
    ok = lock(library, arguments, pid);
  } else if (action == "checkpoint") {
    ok = checkpoint(library, pid);
  } else if (action == "restore") {
    ok = restore(library, arguments, pid);
  } else if (action == "unlock") {
    ok = unlock(library, pid);
  } else if (action == "suspend") {
    ok = lock(library, arguments, pid) && checkpoint(library, pid);
  } else if (action == "resume") {
    ok = restore(library, arguments, pid) && unlock(library, pid);
  } else {
    return false;
  }
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  Arguments arguments;
  if (!parse(argc, argv, arguments)) {
    std::fputs(kUsage, stderr);
    return 2;
  }
  Library library;
  library.handle = ::dlopen(arguments.library, RTLD_NOW | RTLD_LOCAL);
  if (library.handle == nullptr) {
    std::fprintf(stderr, "sim-ctl: %s\n", ::dlerror());
    return 2;
  }
  if (const cu::Result result = CALL(library, cuInit)(0); result != cu::Result::success) {
    std::fprintf(stderr, "sim-ctl: cuInit: error %d\n", static_cast<int>(result));
    return 2;
  }
  bool all_ok = true;
  for (const int pid : arguments.pids) {
    bool ok = false;
    if (!act(library, arguments, pid, ok)) {
      std::fputs(kUsage, stderr);
      return 2;
    }
    all_ok = all_ok && ok;
  }
  return all_ok ? 0 : 1;
}
