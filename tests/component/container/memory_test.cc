// SPDX-License-Identifier: Apache-2.0
//
// Raising and restoring the limits of real v1 memory cgroups.
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "oci/base/file.h"
#include "oci/base/strings.h"
#include "runtime-hooks/container/cgroup.h"
#include "tests/component/container/harness.h"

namespace icebox::container::test {
namespace {

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20U;

struct Orders {
  std::atomic<std::uint64_t> touch{0};    // bytes that the process is to have touched
  std::atomic<std::uint64_t> touched{0};  // bytes that it has
};

// Touches as much memory as it is told to.
[[noreturn]] void run_eater(Orders& orders) {
  constexpr std::uint64_t kMost = 512 * kMiB;
  auto* memory = static_cast<char*>(
      ::mmap(nullptr, kMost, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  for (;;) {
    while (orders.touched < orders.touch) {
      std::memset(memory + orders.touched, 1, kMiB);
      orders.touched += kMiB;
    }
    ::usleep(1000);
  }
}

class MemoryTest : public RootTest {
 protected:
  void SetUp() override {
    RootTest::SetUp();
    if (IsSkipped()) return;
    if (hierarchies().memory.empty())
      GTEST_SKIP() << "this machine's memory controller is bound to cgroup v2";
    outer_ = hierarchies().memory + "/icebox-test-" + std::to_string(::getpid()) + "-memory";
    inner_ = outer_ + "/inner";
    for (const auto& path : {outer_, inner_}) {
      ASSERT_EQ(::mkdir(path.c_str(), 0755), 0) << std::strerror(errno);
    }
    set(outer_, 96 * kMiB);
    set(inner_, 64 * kMiB);
  }

  void TearDown() override {
    end_eater();
    for (const auto& path : {inner_, outer_}) {
      if (!path.empty()) {
        EXPECT_TRUE(eventually([&] { return ::rmdir(path.c_str()) == 0 || errno == ENOENT; }))
            << path;
      }
    }
  }

  static void set(const std::string& path, std::uint64_t bytes) {
    ASSERT_TRUE(write_control_file(path + "/memory.limit_in_bytes", std::to_string(bytes)).ok());
    const std::string memsw = path + "/memory.memsw.limit_in_bytes";  // with swap accounting only
    if (!exists(memsw)) return;
    ASSERT_TRUE(write_control_file(memsw, std::to_string(bytes)).ok());
  }

  static std::uint64_t read_bytes(const std::string& path) {
    const auto text = read_file(path, 4096);
    if (!text.ok()) return 0;
    return parse_u64(trim(*text)).value_or(0);
  }
  static std::uint64_t limit(const std::string& path) {
    return read_bytes(path + "/memory.limit_in_bytes");
  }
  static std::uint64_t usage(const std::string& path) {
    return read_bytes(path + "/memory.usage_in_bytes");
  }
  static std::uint64_t memsw(const std::string& path) {
    const std::string file = path + "/memory.memsw.limit_in_bytes";
    return exists(file) ? read_bytes(file) : limit(path);
  }

  // A process in the inner cgroup that has touched `bytes`.
  void start_eater(std::uint64_t bytes) {
    orders_->touch = bytes;
    eater_ = ::fork();
    if (eater_ == 0) {
      if (!Cgroup::move_process(inner_, ::getpid()).ok()) ::_exit(1);
      run_eater(*orders_);
    }
    ASSERT_TRUE(eventually([&] { return orders_->touched >= bytes; }));
  }

  void end_eater() {
    if (eater_ <= 0) return;
    ::kill(eater_, SIGKILL);
    ::waitpid(eater_, nullptr, 0);
    eater_ = -1;
  }

  [[nodiscard]] Cgroup cgroup() const { return Cgroup::from_paths(false, "", inner_); }

  Shared<Orders> orders_;
  std::string outer_;
  std::string inner_;
  pid_t eater_ = -1;
};

TEST_F(MemoryTest, the_limit_kills_without_the_raise) {
  start_eater(40 * kMiB);
  orders_->touch = 140 * kMiB;
  int status = 0;
  ASSERT_TRUE(eventually([&] { return ::waitpid(eater_, &status, WNOHANG) == eater_; }));
  eater_ = -1;
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << status;
}

TEST_F(MemoryTest, the_raise_makes_room_in_all_levels) {
  start_eater(40 * kMiB);
  const auto saved = cgroup().raise_memory_limit(100 * kMiB);
  ASSERT_TRUE(saved.ok()) << saved.error().message;
  for (const auto& path : {inner_, outer_}) {
    EXPECT_GE(limit(path), usage(path) + 100 * kMiB) << path;
    EXPECT_GE(memsw(path), limit(path)) << path;
  }
  orders_->touch = 140 * kMiB;
  EXPECT_TRUE(eventually([&] { return orders_->touched >= 140 * kMiB; }))
      << "the process was killed";

  // Too full to be put back: said, and nothing is killed.
  const auto early = Cgroup::restore_limits(*saved);
  ASSERT_FALSE(early.ok());
  EXPECT_NE(early.error().message.find("limit_in_bytes"), std::string::npos)
      << early.error().message;
  EXPECT_NE(early.error().message.find("usage 1"), std::string::npos) << early.error().message;
  EXPECT_EQ(::kill(eater_, 0), 0);

  end_eater();
  const auto restored = Cgroup::restore_limits(*saved);
  ASSERT_TRUE(restored.ok()) << restored.error().message;
  EXPECT_EQ(limit(inner_), 64 * kMiB);
  EXPECT_EQ(memsw(inner_), 64 * kMiB);
  EXPECT_EQ(limit(outer_), 96 * kMiB);
  EXPECT_EQ(memsw(outer_), 96 * kMiB);
}

TEST_F(MemoryTest, limits_go_back_in_any_order) {
  auto saved = cgroup().raise_memory_limit(100 * kMiB).value_or({});
  ASSERT_FALSE(saved.empty());
  std::reverse(saved.begin(), saved.end());
  const auto restored = Cgroup::restore_limits(saved);
  ASSERT_TRUE(restored.ok()) << restored.error().message;
  EXPECT_EQ(limit(inner_), 64 * kMiB);
  EXPECT_EQ(memsw(inner_), 64 * kMiB);
}

TEST_F(MemoryTest, nothing_changes_where_there_is_room) {
  const auto saved = cgroup().raise_memory_limit(kMiB);
  ASSERT_TRUE(saved.ok()) << saved.error().message;
  EXPECT_TRUE(saved->empty());
  EXPECT_EQ(limit(inner_), 64 * kMiB);
  EXPECT_TRUE(Cgroup::restore_limits(*saved).ok());
}

TEST_F(MemoryTest, more_than_the_host_has_is_refused_with_both_figures) {
  const auto saved = cgroup().raise_memory_limit(std::uint64_t{64} << 40U);
  ASSERT_FALSE(saved.ok());
  EXPECT_EQ(saved.error().code, Code::resource_exhausted);
  EXPECT_NE(saved.error().message.find("64.0 TiB are needed"), std::string::npos)
      << saved.error().message;
  EXPECT_EQ(limit(inner_), 64 * kMiB);
}

TEST_F(MemoryTest, a_cgroup_that_is_gone_needs_no_restore) {
  const auto saved = cgroup().raise_memory_limit(100 * kMiB).value_or({});
  ASSERT_FALSE(saved.empty());
  ASSERT_EQ(::rmdir(inner_.c_str()), 0);
  const auto restored = Cgroup::restore_limits(saved);
  EXPECT_TRUE(restored.ok()) << restored.error().message;
  EXPECT_EQ(limit(outer_), 96 * kMiB);
}

TEST_F(MemoryTest, without_a_memory_cgroup_nothing_is_done) {
  const auto saved = Cgroup::from_paths(false, "/none", "").raise_memory_limit(kMiB);
  ASSERT_TRUE(saved.ok());
  EXPECT_TRUE(saved->empty());
  EXPECT_TRUE(Cgroup::from_paths(true, "/none", "/none").raise_memory_limit(kMiB).ok());
}

}  // namespace
}  // namespace icebox::container::test
