// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime-hooks/cuda/discovery.h"
#include "runtime-hooks/cuda/driver_api.h"

namespace icebox::cuda {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;

GpuUse process() {
  GpuUse use;
  use.process = {4242, 99};
  use.parent = 4100;
  use.command_line = "python3 train.py";
  return use;
}

DeviceFd device_fd() { return {5, "/dev/nvidia0", 195, 0}; }

TEST(Classify, DecisionTable) {
  const struct {
    const char* what;
    bool fd;
    bool mapping;
    bool libcuda;
    RestoreThread answer;
    Treatment treatment;
  } cases[] = {
      {"nothing", false, false, false, RestoreThread::absent, Treatment::ignore},
      {"nothing, not asked", false, false, false, RestoreThread::unknown, Treatment::ignore},
      {"library only, no CUDA", false, false, true, RestoreThread::absent, Treatment::ignore},
      {"library only, no answer", false, false, true, RestoreThread::unknown, Treatment::refuse},
      {"CUDA, off the GPU", false, false, true, RestoreThread::found, Treatment::suspend},
      {"CUDA, on the GPU", true, true, true, RestoreThread::found, Treatment::suspend},
      {"CUDA linked in statically", true, false, false, RestoreThread::found, Treatment::suspend},
      {"forked child", true, false, true, RestoreThread::absent, Treatment::refuse},
      {"forked child, mapping only", false, true, true, RestoreThread::absent, Treatment::refuse},
      {"descriptor only", true, false, false, RestoreThread::absent, Treatment::refuse},
      {"descriptor only, no answer", true, false, false, RestoreThread::unknown, Treatment::refuse},
  };
  for (const auto& entry : cases) {
    GpuUse use = process();
    if (entry.fd) use.nvidia_fds.push_back(device_fd());
    if (entry.mapping) use.nvidia_mappings.emplace_back("/dev/nvidia-uvm");
    if (entry.libcuda) use.libcuda = "/usr/lib/libcuda.so.580";
    const Classification result = classify(use, entry.answer);
    EXPECT_EQ(result.treatment, entry.treatment) << entry.what;
    EXPECT_EQ(result.reason.empty(), entry.treatment != Treatment::refuse) << entry.what;
    if (!result.reason.empty()) {
      EXPECT_THAT(result.reason, HasSubstr("process 4242 (python3 train.py)")) << entry.what;
    }
    EXPECT_EQ(use.uses_gpu(), entry.fd || entry.mapping || entry.libcuda) << entry.what;
  }
}

TEST(Classify, AProcessThatEndedIsIgnored) {
  GpuUse use = process();
  use.gone = true;
  EXPECT_EQ(classify(use, RestoreThread::unknown).treatment, Treatment::ignore);
  EXPECT_FALSE(use.uses_gpu());
}

TEST(Classify, AForkedChildIsToldToSpawn) {
  GpuUse use = process();
  use.libcuda = "/usr/lib/libcuda.so.1";
  use.nvidia_fds = {device_fd(), {6, "/dev/nvidiactl", 195, 255}, device_fd()};
  const std::string reason = classify(use, RestoreThread::absent).reason;
  EXPECT_THAT(reason, AllOf(HasSubstr("/dev/nvidia0, /dev/nvidiactl but"), HasSubstr("4100"),
                            HasSubstr("spawn")));
}

TEST(Classify, NvmlAloneIsToldToShutDown) {
  GpuUse use = process();
  use.nvml = true;
  use.nvidia_fds = {device_fd()};
  EXPECT_THAT(classify(use, RestoreThread::absent).reason, HasSubstr("nvmlShutdown"));
}

TEST(Classify, RdmaIsRefusedBeforeAnythingIsLocked) {
  GpuUse use = process();
  use.libcuda = "/usr/lib/libcuda.so.1";
  use.unsupported_devices = {"/dev/infiniband/uverbs0"};
  const Classification result = classify(use, RestoreThread::found);
  EXPECT_EQ(result.treatment, Treatment::refuse);
  EXPECT_THAT(result.reason, HasSubstr("/dev/infiniband/uverbs0"));
}

TEST(Classify, RdmaWithoutAGpuIsNotOurs) {
  GpuUse use = process();
  use.unsupported_devices = {"/dev/infiniband/uverbs0"};
  EXPECT_EQ(classify(use, RestoreThread::unknown).treatment, Treatment::ignore);
}

TEST(RestoreThreadAnswer, OnlyACleanNoIsANo) {
  Outcome outcome;
  outcome.ending = Ending::ok;
  EXPECT_EQ(restore_thread_answer(outcome), RestoreThread::found);
  outcome.ending = Ending::driver_error;
  for (const int code : {driver::kErrorInvalidValue, driver::kErrorNotInitialized}) {
    outcome.code = code;
    EXPECT_EQ(restore_thread_answer(outcome), RestoreThread::absent);
  }
  for (const int code : {driver::kErrorOperatingSystem, driver::kErrorNotSupported,
                         driver::kErrorNotReady, driver::kErrorUnknown}) {
    outcome.code = code;
    EXPECT_EQ(restore_thread_answer(outcome), RestoreThread::unknown) << code;
  }
  outcome.code = 0;
  for (const Ending ending : {Ending::no_answer, Ending::refused, Ending::gone}) {
    outcome.ending = ending;
    EXPECT_EQ(restore_thread_answer(outcome), RestoreThread::unknown);
  }
}

}  // namespace
}  // namespace icebox::cuda
