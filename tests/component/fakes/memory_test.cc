// SPDX-License-Identifier: Apache-2.0
//
// GPUs of the simulated machine and their memory, across processes; the simulated NVML.
#include <dlfcn.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <future>

#include "runtime-hooks/cuda/driver_api.h"
#include "tests/component/fakes/harness.h"
#include "tests/fakes/cuda/host.h"

namespace icebox::sim::test {
namespace {

namespace nvml = icebox::cuda::nvml;
using cu::Result;

constexpr unsigned long long kMib = 1ULL << 20;
constexpr unsigned long long kContextMib = 2;

/// UUID of GPU `index` where the host file says nothing else.
cu::Uuid default_uuid(int index) { return Host().gpus[index].uuid; }

cu::Uuid foreign_uuid() {
  cu::Uuid uuid = default_uuid(0);
  uuid.bytes[0] ^= 0xff;
  return uuid;
}

/// The simulated NVML, through the declarations that Icebox itself uses.
class Nvml {
 public:
  Nvml() : library_(::dlopen(ICEBOX_BUILD_DIR "/fakes/libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL)) {
    EXPECT_NE(library_, nullptr) << ::dlerror();
    EXPECT_EQ(find<nvml::InitFn>("nvmlInit_v2")(), nvml::kSuccess);
  }
  ~Nvml() {
    EXPECT_EQ(find<nvml::ShutdownFn>("nvmlShutdown")(), nvml::kSuccess);
    ::dlclose(library_);
  }
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;

  template <typename Function>
  Function find(const char* name) const {
    void* symbol = ::dlsym(library_, name);
    EXPECT_NE(symbol, nullptr) << name;
    return reinterpret_cast<Function>(symbol);
  }

  unsigned int count() const {
    unsigned int value = 0;
    EXPECT_EQ(find<nvml::DeviceGetCountFn>("nvmlDeviceGetCount_v2")(&value), nvml::kSuccess);
    return value;
  }

  nvml::Device device(unsigned int index) const {
    nvml::Device handle = nullptr;
    EXPECT_EQ(find<nvml::DeviceGetHandleByIndexFn>("nvmlDeviceGetHandleByIndex_v2")(index, &handle),
              nvml::kSuccess);
    return handle;
  }

  unsigned long long used_mib(unsigned int index) const {
    nvml::Memory memory;
    EXPECT_EQ(find<nvml::DeviceGetMemoryInfoFn>("nvmlDeviceGetMemoryInfo")(device(index), &memory),
              nvml::kSuccess);
    EXPECT_EQ(memory.total, memory.free + memory.used);
    return memory.used / kMib;
  }

  std::vector<nvml::ProcessInfo> processes(unsigned int index) const {
    const auto get =
        find<nvml::DeviceGetComputeRunningProcessesFn>("nvmlDeviceGetComputeRunningProcesses_v3");
    std::vector<nvml::ProcessInfo> infos(64);
    unsigned int count = 64;
    EXPECT_EQ(get(device(index), &count, infos.data()), nvml::kSuccess);
    infos.resize(count);
    return infos;
  }

 private:
  void* library_;
};

class MemoryTest : public SimTest {
 protected:
  void SetUp() override {
    SimTest::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    // A machine that no other test has: processes of tests that run at the same time hold memory of
    // their GPUs, not of these.
    host_ = "gpus=2\n";
    for (int i = 0; i < 2; ++i) {
      uuids_[i] = foreign_uuid();
      for (int byte = 0; byte < 4; ++byte)
        uuids_[i].bytes[4 + byte] = static_cast<unsigned char>(::getpid() >> (8 * byte));
      uuids_[i].bytes[15] = static_cast<unsigned char>(i);
      host_ += "gpu." + std::to_string(i) + ".uuid=" + uuid_text(uuids_[i]) + "\n";
      host_ += "gpu." + std::to_string(i) + ".memory_mib=100\n";
    }
    set_host(host_);
  }

  Process::Environment on_host() const {
    auto result = environment();
    result["ICEBOX_SIM_HOST"] = path("host");
    return result;
  }

  std::unique_ptr<Process> start_pattern(int mib, int device = 0) const {
    auto process = std::make_unique<Process>(
        sample("sample-pattern", {"--mib", std::to_string(mib), "--tick-ms", "5", "--device",
                                  std::to_string(device)}),
        on_host());
    EXPECT_NE(process->line_with("beat 1 ok"), "");
    return process;
  }

  std::string host_;
  cu::Uuid uuids_[2];
};

TEST_F(MemoryTest, NvmlDescribesTheHostFile) {
  set_host(host_ +
           "driver=590.1-sim\ncuda=13010\ngpu.1.name=Other GPU\ngpu.1.compute=10.3\n"
           "gpu.1.persistence=0\n");
  const Nvml nvml;
  EXPECT_EQ(nvml.count(), 2U);
  char text[nvml::kNameBufferSize] = "";
  EXPECT_EQ(nvml.find<nvml::SystemGetDriverVersionFn>("nvmlSystemGetDriverVersion")(
                text, nvml::kVersionBufferSize),
            nvml::kSuccess);
  EXPECT_STREQ(text, "590.1-sim");
  EXPECT_EQ(nvml.find<nvml::SystemGetDriverVersionFn>("nvmlSystemGetDriverVersion")(text, 3),
            nvml::kErrorInsufficientSize);
  EXPECT_EQ(
      nvml.find<nvml::DeviceGetNameFn>("nvmlDeviceGetName")(nvml.device(1), text, sizeof text),
      nvml::kSuccess);
  EXPECT_STREQ(text, "Other GPU");
  EXPECT_EQ(
      nvml.find<nvml::DeviceGetUuidFn>("nvmlDeviceGetUUID")(nvml.device(1), text, sizeof text),
      nvml::kSuccess);
  EXPECT_EQ(text, uuid_text(uuids_[1]));
  int major = 0;
  int minor = 0;
  EXPECT_EQ(nvml.find<nvml::DeviceGetCudaComputeCapabilityFn>("nvmlDeviceGetCudaComputeCapability")(
                nvml.device(1), &major, &minor),
            nvml::kSuccess);
  EXPECT_EQ(major * 100 + minor, 1003);
  int persistence = -1;
  EXPECT_EQ(nvml.find<nvml::DeviceGetPersistenceModeFn>("nvmlDeviceGetPersistenceMode")(
                nvml.device(1), &persistence),
            nvml::kSuccess);
  EXPECT_EQ(persistence, 0);
  nvml::PciInfo pci;
  EXPECT_EQ(nvml.find<nvml::DeviceGetPciInfoFn>("nvmlDeviceGetPciInfo_v3")(nvml.device(1), &pci),
            nvml::kSuccess);
  EXPECT_STREQ(pci.bus_id, "00000000:02:00.0");
  EXPECT_EQ(pci.bus, 2U);
}

TEST_F(MemoryTest, NvmlCountsWhatProcessesHold) {
  const Nvml nvml;
  EXPECT_EQ(nvml.used_mib(0), 0U);
  const auto first = start_pattern(10);
  const auto second = start_pattern(20);
  const auto other_gpu = start_pattern(7, 1);
  EXPECT_EQ(nvml.used_mib(0), 30 + 2 * kContextMib);
  EXPECT_EQ(nvml.used_mib(1), 7 + kContextMib);
  auto processes = nvml.processes(0);
  ASSERT_EQ(processes.size(), 2U);
  for (const auto& info : processes) {
    const bool is_first = info.pid == static_cast<unsigned int>(first->pid());
    EXPECT_TRUE(is_first || info.pid == static_cast<unsigned int>(second->pid()));
    EXPECT_EQ(info.used_gpu_memory / kMib, (is_first ? 10 : 20) + kContextMib);
  }
  suspend(first->pid());
  EXPECT_EQ(nvml.used_mib(0), 20 + kContextMib);
  EXPECT_EQ(nvml.processes(0).size(), 1U);
  resume(first->pid());
  EXPECT_EQ(nvml.used_mib(0), 30 + 2 * kContextMib);
}

TEST_F(MemoryTest, AllocationFailsWhenOtherProcessesHoldTheMemory) {
  const auto first = start_pattern(60);
  Process second(sample("sample-pattern", {"--mib", "60"}), on_host());
  EXPECT_EQ(second.line(), "");
  EXPECT_EQ(WEXITSTATUS(second.wait()), 2);
}

TEST_F(MemoryTest, RestoreWithoutMemoryIsStickyLikeTheRealOne) {
  const auto first = start_pattern(60);
  suspend(first->pid());
  auto second = start_pattern(60);
  EXPECT_EQ(restore(first->pid()), Result::out_of_memory);
  second.reset();
  EXPECT_EQ(restore(first->pid()), Result::operating_system);
  EXPECT_EQ(unlock(first->pid()), Result::illegal_state);
  EXPECT_TRUE(is_checkpointed(first->pid()));
  EXPECT_TRUE(is_running(start_pattern(60)->pid()));  // it holds nothing
}

TEST_F(MemoryTest, ParallelRestoresAreNotGrantedTheSameMemory) {
  set_knobs("restore=slow:200\n");
  const auto first = start_pattern(60);
  suspend(first->pid());
  const auto second = start_pattern(60);
  suspend(second->pid());
  auto one = std::async(std::launch::async, [&] { return restore(first->pid()); });
  auto two = std::async(std::launch::async, [&] { return restore(second->pid()); });
  const Result results[] = {one.get(), two.get()};
  EXPECT_EQ(std::count(std::begin(results), std::end(results), Result::success), 1);
  EXPECT_EQ(std::count(std::begin(results), std::end(results), Result::out_of_memory), 1);
}

TEST_F(MemoryTest, RestoresOntoAnotherGpu) {
  const auto pattern = start_pattern(10);
  suspend(pattern->pid());
  // Every GPU of the machine must be named, used or not.
  EXPECT_EQ(restore(pattern->pid(), {{uuids_[0], uuids_[1]}}), Result::invalid_value);
  EXPECT_EQ(restore(pattern->pid(), {{uuids_[0], uuids_[1]}, {uuids_[1], uuids_[1]}}),
            Result::invalid_value);
  EXPECT_TRUE(is_checkpointed(pattern->pid()));
  ASSERT_EQ(restore(pattern->pid(), {{uuids_[0], uuids_[1]}, {uuids_[1], uuids_[0]}}),
            Result::success);
  ASSERT_EQ(unlock(pattern->pid()), Result::success);
  EXPECT_NE(pattern->line_with("ok bytes=10485760 hash="), "");
  EXPECT_NE(pattern->line_with("gpu=" + uuid_text(uuids_[1])), "");
  const Nvml nvml;
  EXPECT_EQ(nvml.used_mib(0), 0U);
  EXPECT_EQ(nvml.used_mib(1), 10 + kContextMib);
}

TEST_F(MemoryTest, RestoreOnAForeignMachineNeedsPairs) {
  const auto pattern = start_pattern(10);
  suspend(pattern->pid());
  cu::Uuid others[2] = {uuids_[0], uuids_[1]};
  others[0].bytes[14] = 1;
  others[1].bytes[14] = 1;
  const std::string foreign =
      "gpus=2\ngpu.0.uuid=" + uuid_text(others[0]) + "\ngpu.1.uuid=" + uuid_text(others[1]) + "\n";
  set_host(foreign + "gpu.0.name=Another model\n");
  EXPECT_EQ(restore(pattern->pid()), Result::invalid_device);
  EXPECT_EQ(restore(pattern->pid(), {{uuids_[0], others[0]}, {uuids_[1], others[1]}}),
            Result::invalid_value);  // not the same model
  set_host(foreign);
  EXPECT_EQ(restore(pattern->pid(), {{uuids_[0], others[0]}, {uuids_[1], others[1]}}),
            Result::success);
  ASSERT_EQ(unlock(pattern->pid()), Result::success);
  EXPECT_NE(pattern->line_with("gpu=" + uuid_text(others[0])), "");
}

TEST_F(MemoryTest, RestoreNeedsPersistenceModeOrAnInitialisedCaller) {
  const auto pattern = start_pattern(10);
  suspend(pattern->pid());
  set_host(host_ + "gpu.0.persistence=0\n");
  EXPECT_EQ(restore(pattern->pid()), Result::not_initialized);  // this test never calls cuInit
  Process caller(sim_ctl("resume", pattern->pid()), on_host());
  EXPECT_EQ(caller.wait(), 0);
  EXPECT_TRUE(is_running(pattern->pid()));
}

TEST_F(MemoryTest, VisibleDevicesChooseAndOrderTheGpus) {
  auto variables = on_host();
  variables["CUDA_VISIBLE_DEVICES"] = "1," + uuid_text(uuids_[0]);
  Process counter(sample("sample-counter", {"--stdin"}), variables);
  counter.write("get\n");
  EXPECT_NE(counter.line_with("gpu=" + uuid_text(uuids_[1])), "");
}

/// A memory cgroup (v1 or v2) with a limit; empty path where there is none to be had.
class LimitedCgroup {
 public:
  explicit LimitedCgroup(const std::string& limit) {
    const std::string v1 = "/sys/fs/cgroup/memory";
    const std::string v2 = "/sys/fs/cgroup";
    const bool is_v1 = std::filesystem::exists(v1 + "/memory.limit_in_bytes");
    if (!is_v1 && read_file(v2 + "/cgroup.subtree_control").find("memory") == std::string::npos)
      return;
    path_ = (is_v1 ? v1 : v2) + "/icebox-sim-test-" + std::to_string(::getpid());
    std::filesystem::create_directory(path_);
    limit_file_ = path_ + (is_v1 ? "/memory.limit_in_bytes" : "/memory.max");
    set_limit(limit);
  }
  ~LimitedCgroup() {
    if (path_.empty()) return;
    EXPECT_TRUE(eventually([&] { return ::rmdir(path_.c_str()) == 0; }));
  }
  LimitedCgroup(const LimitedCgroup&) = delete;
  LimitedCgroup& operator=(const LimitedCgroup&) = delete;

  const std::string& path() const { return path_; }
  void set_limit(const std::string& limit) const {
    std::FILE* file = std::fopen(limit_file_.c_str(), "we");
    ASSERT_NE(file, nullptr);
    std::fputs(limit.c_str(), file);
    EXPECT_EQ(std::fclose(file), 0);
  }

 private:
  std::string path_;
  std::string limit_file_;
};

TEST_F(MemoryTest, DeviceMemoryInFilesCostsTheMemoryCgroupOnlyWhenCheckpointed) {
  const LimitedCgroup cgroup("40M");
  if (cgroup.path().empty()) GTEST_SKIP() << "no memory cgroup controller";
  // Files on a disk: a tmpfs cannot be reclaimed.
  const std::string vram = std::string(ICEBOX_BUILD_DIR) + "/vram-test";
  std::filesystem::create_directories(vram);
  const std::vector<std::string> pattern =
      sample("sample-pattern", {"--mib", "64", "--tick-ms", "5"});
  const std::string enter = "echo $$ > " + cgroup.path() + "/cgroup.procs; exec \"$@\"";
  auto variables = on_host();
  variables["ICEBOX_SIM_VRAM"] = vram;
  const auto start_inside = [&] {
    std::vector<std::string> argv{"sh", "-c", enter, "sh"};
    argv.insert(argv.end(), pattern.begin(), pattern.end());
    return std::make_unique<Process>(argv, variables);
  };
  // 64 MiB of device memory run in 40 MiB, but the copy that Checkpoint makes does not fit.
  auto process = start_inside();
  ASSERT_NE(process->line_with("beat 3 ok"), "");
  ASSERT_EQ(lock(process->pid()), Result::success);
  EXPECT_EQ(checkpoint(process->pid()), Result::operating_system);
  const int status = process->wait();
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
  // With the limit raised for that time it does.
  process = start_inside();
  ASSERT_NE(process->line_with("beat 3 ok"), "");
  cgroup.set_limit("140M");
  suspend(process->pid());
  resume(process->pid());
  cgroup.set_limit("40M");
  EXPECT_NE(process->line_with(" ok "), "");
  process.reset();
  std::filesystem::remove_all(vram);
}

}  // namespace
}  // namespace icebox::sim::test
