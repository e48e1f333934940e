// SPDX-License-Identifier: Apache-2.0
#include "tests/component/container/harness.h"

#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <sched.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "oci/base/file.h"
#include "oci/base/pid_ref.h"
#include "runtime-hooks/container/backoff.h"
#include "runtime-hooks/container/process.h"
#include "runtime-hooks/container/task_state.h"

namespace icebox::container::test {
namespace {

constexpr std::chrono::seconds kPatience{20};
constexpr std::chrono::milliseconds kLook{1};

Hierarchies mounted;

std::string cgroup_prefix(pid_t pid) { return "icebox-test-" + std::to_string(pid) + "-"; }

// Thaws, kills and removes a cgroup and all below it.
bool remove_cgroup(const std::string& path, bool unified, const std::function<void()>& reap) {
  const auto names = list_directory(path);
  if (!names.ok()) return true;
  const Cgroup cgroup = Cgroup::from_paths(unified, path, "");
  const auto kill_all = [&] {
    static_cast<void>(cgroup.thaw().ok());
    for (const pid_t pid : cgroup.processes().value_or({})) ::kill(pid, SIGKILL);
    reap();
  };
  kill_all();  // first: a frozen parent keeps the children's processes from dying
  for (const auto& name : *names) {
    struct stat info = {};
    const std::string child = path + "/" + name;
    if (::lstat(child.c_str(), &info) == 0 && S_ISDIR(info.st_mode))
      remove_cgroup(child, unified, reap);
  }
  Backoff backoff(kPatience);
  for (;;) {
    kill_all();
    if (::rmdir(path.c_str()) == 0 || errno == ENOENT) return true;
    if (!backoff.wait()) return false;
  }
}

std::vector<std::string> left_behind(const std::string& hierarchy, pid_t owner) {
  std::vector<std::string> paths;
  const auto names = list_directory(hierarchy);
  if (!names.ok()) return paths;
  for (const auto& name : *names) {
    if (name.starts_with(cgroup_prefix(owner))) paths.push_back(hierarchy + "/" + name);
  }
  return paths;
}

void sweep(pid_t owner) {
  for (const auto& path : left_behind(mounted.freezer, owner)) remove_cgroup(path, false, [] {});
  for (const auto& path : left_behind(mounted.memory, owner)) remove_cgroup(path, false, [] {});
  for (const auto& path : left_behind(mounted.unified, owner)) remove_cgroup(path, true, [] {});
}

// Cleans up after the test program however it ends (a crash, a timeout that kills it).
void start_guardian() {
  const pid_t owner = ::getpid();
  const pid_t child = ::fork();
  if (child > 0) {
    ::waitpid(child, nullptr, 0);
    return;
  }
  ::setsid();
  if (::fork() != 0) ::_exit(0);
  auto process = PidRef::open(owner);
  // The test runner waits for the end of these.
  for (int fd = 0; fd <= 2; ++fd) ::close(fd);
  if (process.ok()) {
    while (!process->wait_end(std::chrono::hours(1))) {
    }
  }
  sweep(owner);
  ::umount2(mounted.directory.c_str(), MNT_DETACH);
  ::rmdir(mounted.directory.c_str());
  ::_exit(0);
}

bool mount_hierarchy(const std::string& path, const char* type, const char* options) {
  return ::mkdir(path.c_str(), 0755) == 0 && ::mount("none", path.c_str(), type, 0, options) == 0;
}

class Environment : public ::testing::Environment {
 public:
  void SetUp() override {
    if (::geteuid() != 0) return;
    char directory[] = "/tmp/icebox-test-XXXXXX";
    ASSERT_NE(::mkdtemp(directory), nullptr);
    mounted.directory = directory;
    ASSERT_EQ(::unshare(CLONE_NEWNS), 0) << std::strerror(errno);
    ASSERT_EQ(::mount(nullptr, "/", nullptr, MS_PRIVATE | MS_REC, nullptr), 0)
        << std::strerror(errno);
    ASSERT_EQ(::mount("none", directory, "tmpfs", 0, "mode=755"), 0) << std::strerror(errno);
    ASSERT_TRUE(mount_hierarchy(mounted.directory + "/freezer", "cgroup", "freezer"))
        << std::strerror(errno);
    ASSERT_TRUE(mount_hierarchy(mounted.directory + "/unified", "cgroup2", nullptr))
        << std::strerror(errno);
    mounted.freezer = mounted.directory + "/freezer";
    mounted.unified = mounted.directory + "/unified";
    if (mount_hierarchy(mounted.directory + "/memory", "cgroup", "memory")) {
      mounted.memory = mounted.directory + "/memory";
    }
    start_guardian();
  }

  void TearDown() override {
    for (const auto& hierarchy : {mounted.freezer, mounted.memory, mounted.unified}) {
      for (const auto& path : left_behind(hierarchy, ::getpid()))
        ADD_FAILURE() << "left behind: " << path;
    }
  }
};

[[maybe_unused]] const auto* const kEnvironment =
    ::testing::AddGlobalTestEnvironment(new Environment);

}  // namespace

std::string version_name(const ::testing::TestParamInfo<Version>& info) {
  return info.param == Version::v1 ? "v1" : "v2";
}

const Hierarchies& hierarchies() { return mounted; }

void RootTest::SetUp() {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root: cgroups and mounts";
}

void VersionTest::SetUp() {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root: cgroups and mounts";
}

bool eventually(const std::function<bool()>& condition) {
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    sleep_for(kLook);
  }
  return true;
}

TestCgroup::TestCgroup(Version version, const std::string& below) : version_(version) {
  if (mounted.directory.empty()) return;  // not root: the test is skipped
  static int count = 0;
  const std::string top = version == Version::v2 ? mounted.unified : mounted.freezer;
  path_ = below.empty() ? top + "/" + cgroup_prefix(::getpid()) + std::to_string(++count)
                        : below + "/" + std::to_string(++count);
  if (::mkdir(path_.c_str(), 0755) != 0) ADD_FAILURE() << path_ << ": " << std::strerror(errno);
}

TestCgroup::~TestCgroup() {
  if (path_.empty()) return;
  const auto reap = [&] {
    std::erase_if(processes_, [](pid_t pid) { return ::waitpid(pid, nullptr, WNOHANG) != 0; });
  };
  if (!remove_cgroup(path_, version_ == Version::v2, reap))
    ADD_FAILURE() << path_ << " could not be removed";
  // Those that were moved elsewhere.
  for (const pid_t pid : processes_) ::kill(pid, SIGKILL);
  if (!eventually([&] {
        reap();
        return processes_.empty();
      })) {
    ADD_FAILURE() << "process " << *processes_.begin() << " does not end";
  }
}

std::string TestCgroup::make_child(const std::string& name) const {
  const std::string path = path_ + "/" + name;
  if (::mkdir(path.c_str(), 0755) != 0) ADD_FAILURE() << path << ": " << std::strerror(errno);
  return path;
}

pid_t TestCgroup::start(const std::function<void()>& body, const std::string& directory) {
  const std::string procs = (directory.empty() ? path_ : directory) + "/cgroup.procs";
  const pid_t parent = ::getpid();
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent || !write_control_file(procs, "0").ok()) ::_exit(120);
    body();
    ::_exit(0);
  }
  EXPECT_GT(pid, 0) << std::strerror(errno);
  processes_.insert(pid);
  return pid;
}

void count_for_ever(Board& board) {
  auto& slot = board.user.at(board.used++);
  for (;;) slot.store(slot.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
}

void run_busy(Board& board, int threads) {
  for (int i = 1; i < threads; ++i) std::thread([&] { count_for_ever(board); }).detach();
  count_for_ever(board);
}

void start_driver_thread(Board& board) {
  std::thread([&] {
    board.driver_tid = static_cast<pid_t>(::syscall(SYS_gettid));
    for (;;) {
      ++board.driver;
      sleep_for(std::chrono::microseconds(200));
    }
  }).detach();
  while (board.driver == 0) std::this_thread::yield();  // its id is known before anything counts
}

void run_busy_with_driver(Board& board, int threads) {
  start_driver_thread(board);
  run_busy(board, threads);
}

std::vector<std::uint64_t> snapshot(const Board& board) {
  std::vector<std::uint64_t> values;
  for (std::size_t i = 0; i < board.used; ++i) values.push_back(board.user.at(i));
  return values;
}

bool all_move(const Board& board, std::size_t slots) {
  if (!eventually([&] { return board.used >= slots; })) return false;
  const auto before = snapshot(board);
  return eventually([&] {
    const auto now = snapshot(board);
    for (std::size_t i = 0; i < before.size(); ++i) {
      if (now[i] == before[i]) return false;
    }
    return true;
  });
}

bool driver_moves(const Board& board, std::uint64_t times) {
  const std::uint64_t goal = board.driver + times;
  return eventually([&] { return board.driver >= goal; });
}

pid_t tracer_of(pid_t process, pid_t tid) {
  const auto task = read_task_state(process, tid);
  return task.ok() ? task->tracer : -1;
}

bool nothing_traced(const Cgroup& cgroup) {
  const auto pids = cgroup.processes();
  if (!pids.ok()) return false;
  for (const pid_t pid : *pids) {
    const auto tids = threads_of(pid);
    if (!tids.ok()) continue;
    for (const pid_t tid : *tids) {
      if (tracer_of(pid, tid) > 0) return false;
    }
  }
  return true;
}

char state_of(pid_t process) {
  const auto found = read_process(process);
  return found.ok() ? found->state : '-';
}

namespace {

// Writes from memory whose page faults are reported to a userfaultfd that nobody reads: the write
// sleeps in the fault, with the pipe's mutex held.
void write_from_missing_memory(int pipe_end) {
  const auto size = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  void* memory = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  const int faults = static_cast<int>(::syscall(SYS_userfaultfd, O_CLOEXEC));
  struct uffdio_api api = {};
  api.api = UFFD_API;
  struct uffdio_register range = {};
  range.range.start = reinterpret_cast<std::uintptr_t>(memory);
  range.range.len = size;
  range.mode = UFFDIO_REGISTER_MODE_MISSING;
  if (::ioctl(faults, UFFDIO_API, &api) != 0 || ::ioctl(faults, UFFDIO_REGISTER, &range) != 0)
    ::_exit(124);
  [[maybe_unused]] const ssize_t n = ::write(pipe_end, memory, 1);
}

}  // namespace

StuckPipe::StuckPipe() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) ADD_FAILURE() << std::strerror(errno);
  read_end_.reset(ends[0]);
  write_end_.reset(ends[1]);
  const pid_t parent = ::getpid();
  holder_ = ::fork();
  if (holder_ == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() == parent) write_from_missing_memory(write_end_.get());
    ::_exit(125);
  }
  const bool in_fault = eventually([&] {
    const auto task = read_task_state(holder_, holder_);
    return task.ok() && task->wchan.find("userfault") != std::string::npos;
  });
  EXPECT_TRUE(in_fault) << "the holder is not in its page fault";
}

StuckPipe::~StuckPipe() { release(); }

void StuckPipe::get_stuck() const {
  [[maybe_unused]] const ssize_t n = ::write(write_end_.get(), "x", 1);
  for (;;) ::pause();
}

void StuckPipe::release() {
  if (holder_ <= 0) return;
  ::kill(holder_, SIGKILL);
  ::waitpid(holder_, nullptr, 0);
  holder_ = -1;
}

Faults::Faults(const std::string& lines) {
  const std::string path = mounted.directory + "/faults";
  if (!write_file_atomic(path, lines, 0600, Durable::no).ok())
    ADD_FAILURE() << "cannot write " << path;
  ::setenv("ICEBOX_FAULT_FILE", path.c_str(), 1);
}

Faults::~Faults() { ::unsetenv("ICEBOX_FAULT_FILE"); }

void Faults::clear() {
  if (!write_file_atomic(mounted.directory + "/faults", "", 0600, Durable::no).ok()) ADD_FAILURE();
}

}  // namespace icebox::container::test
