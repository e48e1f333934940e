// SPDX-License-Identifier: Apache-2.0
#include "runtime-hooks/cuda/driver_table.h"

#include <dlfcn.h>
#include <link.h>

#include <string_view>
#include <utility>

namespace icebox::cuda {
namespace {

// Looks symbols up as exported names first; cuGetProcAddress finds those that a driver keeps
// hidden.
class Lookup {
 public:
  explicit Lookup(void* library) : library_(library) {
    get_proc_address_ =
        reinterpret_cast<driver::GetProcAddressFn>(::dlsym(library, "cuGetProcAddress_v2"));
  }

  template <typename Function>
  bool find(const char* symbol, Function& function) {
    void* address = ::dlsym(library_, symbol);
    if (address == nullptr && get_proc_address_ != nullptr) {
      int status = 0;
      const driver::Code code =
          get_proc_address_(symbol, &address, driver::kCheckpointDriverVersion, 0, &status);
      if (code != driver::kSuccess || status != 0) address = nullptr;
    }
    function = reinterpret_cast<Function>(address);
    if (address == nullptr && missing_.empty()) missing_ = symbol;
    return address != nullptr;
  }

  // First symbol that was not found since the last call.
  std::string take_missing() { return std::exchange(missing_, {}); }

 private:
  void* library_;
  driver::GetProcAddressFn get_proc_address_ = nullptr;
  std::string missing_;
};

std::string version_text(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

// What the operator of the host can do about a failed cuInit.
std::string_view init_hint(driver::Code code) {
  switch (code) {
    case driver::kErrorStubLibrary:
      return "this is the CUDA Toolkit's stub: set `libcuda` to the library of the NVIDIA driver";
    case driver::kErrorNoDevice:
      return "no GPU can be reached from the host side: check /dev/nvidia*, the device cgroup of "
             "containerd, and nvidia-smi";
    case driver::kErrorSystemNotReady:
      return "the GPU fabric is not ready: check nvidia-fabricmanager";
    case driver::kErrorSystemDriverMismatch:
    case driver::kErrorCompatNotSupportedOnDevice:
      return "the library and the loaded kernel module are of different drivers: reload the module "
             "or reboot";
    default:
      return "check that nvidia-smi works on the host and that /dev/nvidiactl, /dev/nvidia-uvm and "
             "/dev/nvidia0 exist and may be opened by containerd (`nvidia-modprobe -u -c 0`)";
  }
}

std::string file_of(void* library, const std::string& fallback) {
  link_map* map = nullptr;
  if (::dlinfo(library, RTLD_DI_LINKMAP, &map) != 0 || map == nullptr || map->l_name == nullptr ||
      *map->l_name == '\0') {
    return fallback;
  }
  return map->l_name;
}

}  // namespace

std::string CheckpointApi::name_of(driver::Code code) const {
  const char* text = nullptr;
  if (get_error_name != nullptr && get_error_name(code, &text) == driver::kSuccess &&
      text != nullptr) {
    return text;
  }
  return "CUDA error " + std::to_string(code);
}

std::string CheckpointApi::text_of(driver::Code code) const {
  const char* text = nullptr;
  if (get_error_string != nullptr && get_error_string(code, &text) == driver::kSuccess &&
      text != nullptr) {
    return text;
  }
  return {};
}

ProcessState to_process_state(driver::RawState raw) {
  switch (raw) {
    case driver::kStateRunning: return ProcessState::running;
    case driver::kStateLocked: return ProcessState::locked;
    case driver::kStateCheckpointed: return ProcessState::checkpointed;
    case driver::kStateFailed: return ProcessState::failed;
    default: return ProcessState::busy;
  }
}

Result<DriverTable> DriverTable::load(const std::string& libcuda) {
  void* library = ::dlopen(libcuda.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* reason = ::dlerror();
    return make_error(Code::failed_precondition,
                      "cannot load the CUDA driver library " + libcuda +
                          " on the host: " + (reason != nullptr ? reason : "unknown reason") +
                          "; install the NVIDIA driver, or set `libcuda` in Icebox's configuration "
                          "to where it is");
  }
  DriverTable table;
  table.path_ = file_of(library, libcuda);
  Lookup lookup(library);
  driver::DriverGetVersionFn get_version = nullptr;
  const bool usable = lookup.find("cuInit", table.init_fn_) &&
                      lookup.find("cuDriverGetVersion", get_version) &&
                      lookup.find("cuGetErrorName", table.api_.get_error_name) &&
                      lookup.find("cuGetErrorString", table.api_.get_error_string);
  if (!usable) {
    return make_error(
        Code::failed_precondition,
        table.path_ + " is no CUDA driver library: it has no " + lookup.take_missing());
  }
  CheckpointApi& api = table.api_;
  lookup.find("cuCheckpointProcessGetRestoreThreadId", api.get_restore_thread_id);
  lookup.find("cuCheckpointProcessGetState", api.get_state);
  lookup.find("cuCheckpointProcessLock", api.lock);
  lookup.find("cuCheckpointProcessCheckpoint", api.checkpoint);
  lookup.find("cuCheckpointProcessRestore", api.restore);
  lookup.find("cuCheckpointProcessUnlock", api.unlock);
  table.missing_ = lookup.take_missing();
  if (get_version(&table.version_) != driver::kSuccess) table.version_ = 0;
  return table;
}

Result<void> DriverTable::init() {
  if (!init_result_) {
    const driver::Code code = init_fn_(0);
    if (code == driver::kSuccess) {
      init_result_ = Result<void>();
    } else {
      const std::string text = api_.text_of(code);
      init_result_ = make_error(
          Code::failed_precondition,
          "the host side cannot use the GPU (this is not an error of the container): cuInit of " +
              path_ + " failed with " + api_.name_of(code) + " (" + std::to_string(code) +
              (text.empty() ? "" : ": " + text) + "); " + std::string(init_hint(code)));
    }
  }
  return *init_result_;
}

Result<CheckpointApi> DriverTable::checkpoint_api() const {
  if (missing_.empty() && version_ >= driver::kCheckpointDriverVersion) return api_;
  std::string message =
      "the NVIDIA driver of this host is too old to checkpoint CUDA processes: " + path_ +
      " is for CUDA " + version_text(version_);
  if (!missing_.empty()) message += " and has no " + missing_;
  return make_error(Code::failed_precondition, message + "; driver 570 or newer is needed");
}

}  // namespace icebox::cuda
