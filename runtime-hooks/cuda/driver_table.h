// SPDX-License-Identifier: Apache-2.0
//
// libcuda.so.1 in the agent: loaded by dlopen, its entry points looked up, cuInit called once.
#pragma once

#include <optional>
#include <string>

#include "oci/base/result.h"
#include "runtime-hooks/cuda/driver_api.h"
#include "runtime-hooks/cuda/target.h"

namespace icebox::cuda {

/// Entry points of the checkpoint API. Copied by value into worker threads: the library is never
/// unloaded. Tests put functions of their own here.
struct CheckpointApi {
  driver::GetRestoreThreadIdFn get_restore_thread_id = nullptr;
  driver::GetStateFn get_state = nullptr;
  driver::LockFn lock = nullptr;
  driver::CheckpointFn checkpoint = nullptr;
  driver::RestoreFn restore = nullptr;
  driver::UnlockFn unlock = nullptr;
  driver::GetErrorNameFn get_error_name = nullptr;
  driver::GetErrorStringFn get_error_string = nullptr;

  /// "CUDA_ERROR_NOT_READY"; "CUDA error 12345" for a code that the driver does not know either.
  [[nodiscard]] std::string name_of(driver::Code code) const;
  /// The driver's own explanation ("device not ready"); empty if it has none.
  [[nodiscard]] std::string text_of(driver::Code code) const;
};

/// State as icebox calls it; every value this version does not know is `busy`.
ProcessState to_process_state(driver::RawState raw);

class DriverTable {
 public:
  /// Loads the library (name or path as for dlopen). The Error says what dlopen said and the way
  /// out. May run the library's constructors; does not touch the GPU.
  static Result<DriverTable> load(const std::string& libcuda);

  /// cuInit(0), once: later calls return the first result. The Error says that it is the host side,
  /// names the library, the code and the way out. Blocks for 10 ms to seconds (several GPUs).
  Result<void> init();
  /// Whether init() was called and succeeded.
  [[nodiscard]] bool initialised() const { return init_result_ && init_result_->ok(); }

  /// The checkpoint API; failed_precondition where the driver is older than 570 or lacks a symbol.
  [[nodiscard]] Result<CheckpointApi> checkpoint_api() const;

  /// cuDriverGetVersion: 13000 means CUDA 13.0.
  [[nodiscard]] int version() const { return version_; }
  /// Whether restore() takes a GPU map (driver 580 and newer).
  [[nodiscard]] bool can_remap_gpus() const { return version_ >= driver::kRemapDriverVersion; }
  /// File from which the library was loaded.
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  DriverTable() = default;

  std::string path_;
  int version_ = 0;
  driver::InitFn init_fn_ = nullptr;
  CheckpointApi api_;
  std::string missing_;  // first symbol of the checkpoint API that is not there
  std::optional<Result<void>> init_result_;
};

}  // namespace icebox::cuda
