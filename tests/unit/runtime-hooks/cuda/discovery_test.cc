// SPDX-License-Identifier: Apache-2.0
#include "runtime-hooks/cuda/discovery.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "oci/base/file.h"
#include "oci/base/pid_ref.h"
#include "oci/base/unique_fd.h"

namespace icebox::cuda {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;
using testing::UnorderedElementsAre;

// The major of /dev/null: with it in NvidiaMajors, /dev/null plays the device whose name says
// nothing.
constexpr unsigned kMemMajor = 1;
const NvidiaMajors kNvidia = {{195}};

// A made-up /proc. Device nodes need root, so a link named like one that leads to /dev/null plays
// it.
class FakeProc : public testing::Test {
 protected:
  FakeProc() {
    std::string pattern = (fs::temp_directory_path() / "icebox-proc-XXXXXX").string();
    root_ = ::mkdtemp(pattern.data());
    fs::create_directories(root_ / "dev/nvidia-caps");
    for (const char* name : {"nvidia0", "nvidiactl", "nvidia-caps/nvidia-cap1", "nvidia-fs0"}) {
      fs::create_symlink("/dev/null", root_ / "dev" / name);
    }
    std::ofstream(root_ / "dev/nvidia-settings") << "a regular file";
    fs::create_directories(process() / "fd");
    fs::create_directories(process() / "map_files");
    write("cmdline", std::string("python3\0train.py\0--lr\0"
                                 "0.1\0",
                                 26));
    write("maps", "");
    write_stat("(python3)", 'S', 1, 777);
  }
  ~FakeProc() override { fs::remove_all(root_); }

  [[nodiscard]] fs::path process() const { return root_ / "proc/50"; }
  [[nodiscard]] std::string device(const std::string& name) const { return root_ / "dev" / name; }
  void write(const std::string& name, const std::string& text) const {
    std::ofstream(process() / name) << text;
  }
  void write_stat(const std::string& comm, char state, int threads, int start_time) const {
    write("stat", "50 " + comm + " " + state + " 40 50 50 0 -1 4194304 1 2 3 4 5 6 7 8 20 0 " +
                      std::to_string(threads) + " 0 " + std::to_string(start_time) +
                      " 1000 100 18446744073709551615\n");
  }
  void add_fd(int number, const std::string& target) const {
    fs::create_symlink(target, process() / "fd" / std::to_string(number));
  }
  GpuUse inspect(const NvidiaMajors& majors = kNvidia) const {
    auto use = inspect_process(50, majors, root_ / "proc");
    EXPECT_TRUE(use.ok()) << use.error().message;
    return use.ok() ? *use : GpuUse();
  }

  fs::path root_;
};

TEST_F(FakeProc, AnOrdinaryProcessUsesNoGpu) {
  add_fd(0, "/dev/null");
  add_fd(1, "pipe:[123]");
  add_fd(2, "socket:[124]");
  add_fd(3, "anon_inode:[eventpoll]");
  add_fd(4, "/memfd:nvidia (deleted)");
  write("maps",
        "00400000-00401000 r-xp 00000000 08:01 12   /usr/bin/python3\n"
        "7f0000000000-7f0000001000 rw-p 00000000 00:00 0 \n"
        "7f0000001000-7f0000002000 r-xp 00000000 08:01 13   /usr/lib/libcudart.so.12\n"
        "7fff00000000-7fff00001000 rw-p 00000000 00:00 0   [stack]\n");
  const GpuUse use = inspect();
  EXPECT_FALSE(use.gone);
  EXPECT_FALSE(use.uses_gpu());
  EXPECT_FALSE(use.holds_device());
  EXPECT_EQ(use.process, (Target{50, 777}));
  EXPECT_EQ(use.parent, 40);
  EXPECT_EQ(use.command_line, "python3 train.py --lr 0.1");
}

TEST_F(FakeProc, DescriptorsCountByNodeName) {
  add_fd(3, device("nvidia0"));
  add_fd(4, device("nvidiactl"));
  add_fd(5, device("nvidia-caps/nvidia-cap1"));
  add_fd(6, device("nvidia-settings"));  // a regular file
  add_fd(7, "/dev/zero");
  const GpuUse use = inspect();
  std::vector<int> numbers;
  for (const DeviceFd& fd : use.nvidia_fds) numbers.push_back(fd.fd);
  EXPECT_THAT(numbers, UnorderedElementsAre(3, 4, 5));
  EXPECT_TRUE(use.holds_device());
  EXPECT_EQ(use.nvidia_fds.front().major, kMemMajor);
}

TEST_F(FakeProc, DescriptorsCountByMajor) {
  add_fd(3, "/dev/null");
  EXPECT_THAT(inspect().nvidia_fds, IsEmpty());
  const GpuUse use = inspect({{195, kMemMajor}});
  ASSERT_THAT(use.nvidia_fds, SizeIs(1));
  EXPECT_EQ(use.nvidia_fds[0].path, "/dev/null");
}

TEST_F(FakeProc, ADescriptorClosedMeanwhileIsNoError) {
  add_fd(3, root_ / "no/such/file");
  EXPECT_FALSE(inspect().uses_gpu());
}

TEST_F(FakeProc, LibrariesAreSeenInTheMappings) {
  write(
      "maps",
      "7f0000000000-7f0000001000 r-xp 00000000 08:01 13   /usr/lib/my libs/libcuda.so.580.159.04\n"
      "7f0000001000-7f0000002000 r-xp 00000000 08:01 14   /usr/lib/libnvidia-ml.so.1 (deleted)\n");
  const GpuUse use = inspect();
  EXPECT_EQ(use.libcuda, "/usr/lib/my libs/libcuda.so.580.159.04");
  EXPECT_TRUE(use.nvml);
  EXPECT_TRUE(use.uses_gpu());
  EXPECT_FALSE(use.holds_device());
}

TEST_F(FakeProc, DeviceMappingsAreToldFromFilesByWhatTheyAre) {
  // Addresses below 2^32 are padded in maps and not in map_files.
  fs::create_symlink("/dev/null", process() / "map_files/200000000-200200000");
  fs::create_symlink("/dev/null", process() / "map_files/1000-2000");
  fs::create_symlink(device("nvidia-settings"), process() / "map_files/400000-401000");
  write("maps",
        "00001000-00002000 rw-s 00000000 00:05 20   /odd/place/nvidia0\n"
        "00400000-00401000 r-xp 00000000 08:01 12   /usr/bin/nvidia-smi\n"
        "200000000-200200000 rw-s 00000000 00:05 21   /dev/nvidia-uvm\n"
        "200200000-200400000 rw-s 00000000 00:05 21   /dev/nvidia-uvm\n");
  const GpuUse use = inspect();
  EXPECT_THAT(use.nvidia_mappings, ElementsAre("/odd/place/nvidia0", "/dev/nvidia-uvm"));
}

TEST_F(FakeProc, WithoutMapFilesThePlaceUnderDevDecides) {
  write("maps",
        "00400000-00401000 r-xp 00000000 08:01 12   /usr/bin/nvidia-smi\n"
        "200000000-200200000 rw-s 00000000 00:05 21   /dev/nvidiactl\n");
  EXPECT_THAT(inspect().nvidia_mappings, ElementsAre("/dev/nvidiactl"));
}

TEST_F(FakeProc, RdmaAndGpuDirectAreNamed) {
  add_fd(3, device("nvidia-fs0"));
  write("maps", "200000000-200200000 rw-s 00000000 00:05 21   /dev/infiniband/uverbs0\n");
  EXPECT_THAT(inspect().unsupported_devices,
              UnorderedElementsAre(device("nvidia-fs0"), "/dev/infiniband/uverbs0"));
}

TEST_F(FakeProc, AZombieIsGone) {
  write_stat("(python3)", 'Z', 1, 777);
  add_fd(3, device("nvidia0"));
  EXPECT_TRUE(inspect().gone);
}

TEST_F(FakeProc, NoProcessIsGone) {
  fs::remove_all(process());
  EXPECT_TRUE(inspect().gone);
}

TEST_F(FakeProc, ACommandNameMayLookLikeStat) {
  write_stat("(a) Z 1 (b)", 'S', 1, 4711);
  const GpuUse use = inspect();
  EXPECT_FALSE(use.gone);
  EXPECT_EQ(use.process.start_time, 4711U);
}

TEST_F(FakeProc, CommandLinesAreCutAndCleaned) {
  write("cmdline", "evil\x1b[31m\n" + std::string(1'000, 'x'));
  std::string line = inspect().command_line;
  EXPECT_EQ(line.size(), 256U);
  EXPECT_THAT(line, HasSubstr("evil?[31m?xxx"));
  EXPECT_TRUE(line.ends_with("x..."));
  write("cmdline", "");
  EXPECT_EQ(inspect().command_line, "[python3]");
}

TEST_F(FakeProc, UnreadableTextIsAnErrorAndNeverNoGpu) {
  write("stat", "50 (python3) S 40");
  const auto use = inspect_process(50, kNvidia, root_ / "proc");
  ASSERT_FALSE(use.ok());
  EXPECT_THAT(use.error().message, HasSubstr("process 50"));
}

TEST_F(FakeProc, MajorsComeFromTheCharacterDevicesOnly) {
  std::ofstream(root_ / "proc/devices") << "Character devices:\n"
                                           "  1 mem\n"
                                           "195 nvidia-frontend\n"
                                           "235 nvidia-caps\n"
                                           "507 nvidia-uvm\n"
                                           "508 not-nvidia\n"
                                           "\n"
                                           "Block devices:\n"
                                           "259 nvidia-block\n";
  const auto majors = read_nvidia_majors(root_ / "proc");
  ASSERT_TRUE(majors.ok());
  EXPECT_THAT(majors->majors, UnorderedElementsAre(195, 235, 507));
  EXPECT_FALSE(read_nvidia_majors(root_ / "nowhere").ok());
}

TEST(RealProc, ReadsTheMajorsOfThisMachine) {
  const auto majors = read_nvidia_majors();
  ASSERT_TRUE(majors.ok());
  EXPECT_TRUE(majors->contains(195));
  EXPECT_FALSE(majors->contains(kMemMajor));
}

TEST(RealProc, SeesItself) {
  const auto use = inspect_process(::getpid(), kNvidia);
  ASSERT_TRUE(use.ok()) << use.error().message;
  EXPECT_EQ(use->process.start_time, process_start_time(::getpid()).value());
  EXPECT_EQ(use->parent, ::getppid());
  EXPECT_FALSE(use->uses_gpu());
  EXPECT_THAT(use->command_line, HasSubstr("cuda_discovery_test"));
}

TEST(RealProc, SeesAnOpenDeviceUntilItIsClosed) {
  auto fd = open_file("/dev/null", O_RDWR);
  ASSERT_TRUE(fd.ok());
  const auto held = [&] {
    const auto use = inspect_process(::getpid(), {{kMemMajor}});
    EXPECT_TRUE(use.ok());
    return use.ok() && std::any_of(use->nvidia_fds.begin(), use->nvidia_fds.end(),
                                   [&](const DeviceFd& d) { return d.fd == fd->get(); });
  };
  EXPECT_TRUE(held());
  const int number = fd->release();
  ::close(number);
  *fd = UniqueFd();
  const auto use = inspect_process(::getpid(), {{kMemMajor}});
  ASSERT_TRUE(use.ok());
  for (const DeviceFd& device : use->nvidia_fds) EXPECT_NE(device.fd, number);
}

TEST(RealProc, AChildIsSeenAliveAsZombieAndReaped) {
  const pid_t child = ::fork();
  if (child == 0) {
    for (;;) ::pause();
  }
  EXPECT_FALSE(inspect_process(child, kNvidia).value().gone);
  ::kill(child, SIGKILL);
  siginfo_t info = {};
  ASSERT_EQ(::waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT), 0);
  EXPECT_TRUE(inspect_process(child, kNvidia).value().gone);
  ::waitpid(child, nullptr, 0);
  EXPECT_TRUE(inspect_process(child, kNvidia).value().gone);
}

// A thread that outlives main's thread: the process looks like a zombie but holds its device.
[[noreturn]] void live_on_in_a_thread(int ready) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  const int device = ::open("/dev/zero", O_RDONLY | O_CLOEXEC);
  static int ready_fd;
  ready_fd = ready;
  pthread_t thread{};
  ::pthread_create(
      &thread, nullptr,
      [](void*) -> void* {
        // Only once the first thread is dead is the test's situation there.
        for (;;) {
          const auto stat = read_file("/proc/self/stat", 4096);
          if (stat.ok() && stat->find(") Z ") != std::string::npos) break;
        }
        if (::write(ready_fd, "r", 1) != 1) ::_exit(1);
        for (;;) ::pause();
        return nullptr;
      },
      nullptr);
  ::pthread_detach(thread);
  if (device < 0) ::_exit(1);
  // Not pthread_exit: its unwinding would meet the catch blocks of GoogleTest.
  for (;;) ::syscall(SYS_exit, 0);
}

TEST(RealProc, AProcessWhoseFirstThreadEndedStillHoldsItsDevice) {
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  const UniqueFd near(ends[0]);
  UniqueFd far(ends[1]);
  const pid_t child = ::fork();
  if (child == 0) live_on_in_a_thread(far.get());
  far.reset();
  char byte = 0;
  ASSERT_EQ(::read(near.get(), &byte, 1), 1);
  const auto use = inspect_process(child, {{kMemMajor}});
  EXPECT_TRUE(use.ok());
  if (use.ok()) {
    EXPECT_FALSE(use->gone);
    EXPECT_TRUE(use->holds_device());
    EXPECT_EQ(use->process, (Target{child, process_start_time(child).value()}));
  }
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
}

TEST(RealProc, ProcessesThatEndWhileTheyAreReadAreNeverAnError) {
  for (int i = 0; i < 300; ++i) {
    const pid_t child = ::fork();
    if (child == 0) ::_exit(0);
    for (;;) {
      const auto use = inspect_process(child, kNvidia);
      ASSERT_TRUE(use.ok()) << use.error().message;
      if (use->gone) break;
    }
    ::waitpid(child, nullptr, 0);
  }
}

}  // namespace
}  // namespace icebox::cuda
