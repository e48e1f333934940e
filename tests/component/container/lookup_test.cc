// SPDX-License-Identifier: Apache-2.0
//
// How the cgroup of a container is found: the state of runc and crun, and /proc.
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>

#include "oci/base/file.h"
#include "runtime-hooks/container/cgroup.h"
#include "runtime-hooks/container/mounts.h"
#include "tests/component/container/harness.h"

namespace icebox::container::test {
namespace {

// A runtime's root with the directory of one container, c1, and a real cgroup.
class StateDirectory {
 public:
  explicit StateDirectory(Version version) : container(version), version_(version) {
    if (hierarchies().directory.empty()) return;  // not root: the test is skipped
    root = hierarchies().directory + "/root";
    EXPECT_TRUE(make_directories(root + "/c1", 0700).ok());
  }
  StateDirectory(const StateDirectory&) = delete;
  StateDirectory& operator=(const StateDirectory&) = delete;
  ~StateDirectory() {
    if (root.empty()) return;
    EXPECT_TRUE(remove_tree(root).ok());
  }

  void write(const std::string& file, const std::string& text) const {
    ASSERT_TRUE(write_file_atomic(root + "/c1/" + file, text, 0600, Durable::no).ok());
  }

  // The cgroup_paths object that runc writes on a machine of this version.
  [[nodiscard]] std::string runc_state(const std::string& path) const {
    if (version_ == Version::v2) return R"({"id":"c1","cgroup_paths":{"":")" + path + R"("}})";
    return R"({"id":"c1","cgroup_paths":{"cpu":"/x","freezer":")" + path +
           R"(","memory":"/sys/fs/cgroup/memory/m"}})";
  }

  // "/icebox-test-..." as /proc and crun write it.
  [[nodiscard]] std::string name() const {
    return container.path().substr(container.path().rfind('/'));
  }

  [[nodiscard]] Result<Cgroup> find(pid_t init = -1) const {
    return Cgroup::of_container(root, "c1", init);
  }

  // A process in the cgroup.
  pid_t start() {
    const pid_t pid = container.start([] { ::pause(); });
    EXPECT_TRUE(
        eventually([&] { return container.cgroup().processes().value_or({}).size() == 1; }));
    return pid;
  }

  std::string root;
  TestCgroup container;

 private:
  Version version_;
};

class LookupTest : public VersionTest {
 protected:
  StateDirectory state_{GetParam()};
};

// Where /sys/fs/cgroup is v2 a name is looked up there, and LookupV2Test has it all.
class LookupV1Test : public RootTest {
 protected:
  void SetUp() override {
    RootTest::SetUp();
    if (unified_hierarchy()) GTEST_SKIP() << "this machine's /sys/fs/cgroup is v2";
  }
  StateDirectory state_{Version::v1};
};

class LookupV2Test : public RootTest {
 protected:
  StateDirectory state_{Version::v2};
};

INSTANTIATE_TEST_SUITE_P(Cgroup, LookupTest, ::testing::Values(Version::v1, Version::v2),
                         version_name);

TEST_P(LookupTest, runc_state) {
  state_.write("state.json", state_.runc_state(state_.container.path()));
  const auto found = state_.find();
  ASSERT_TRUE(found.ok()) << found.error().message;
  EXPECT_EQ(found->unified(), GetParam() == Version::v2);
  EXPECT_EQ(found->freezer_path(), state_.container.path());
  EXPECT_EQ(found->memory_path(),
            GetParam() == Version::v2 ? state_.container.path() : "/sys/fs/cgroup/memory/m");
}

TEST_P(LookupTest, runc_state_without_the_cgroup_is_not_found) {
  state_.write("state.json", state_.runc_state(state_.container.path() + "/gone"));
  EXPECT_EQ(state_.find().error().code, Code::not_found) << state_.find().error().message;
}

TEST_P(LookupTest, runc_state_that_is_not_json_is_an_error) {
  state_.write("state.json", R"({"cgroup_paths":{"freezer":)");
  ASSERT_FALSE(state_.find().ok());
  EXPECT_NE(state_.find().error().message.find("state.json"), std::string::npos)
      << state_.find().error().message;
  state_.write("state.json", R"({"cgroup_paths":["freezer"]})");
  EXPECT_EQ(state_.find().error().code, Code::not_found);
}

TEST_P(LookupTest, the_root_cgroup_is_refused) {
  const auto& top = GetParam() == Version::v2 ? hierarchies().unified : hierarchies().freezer;
  state_.write("state.json", state_.runc_state(top));
  EXPECT_EQ(state_.find().error().code, Code::failed_precondition);
  EXPECT_NE(state_.find().error().message.find("root cgroup"), std::string::npos)
      << state_.find().error().message;
}

TEST_P(LookupTest, the_programs_own_cgroup_is_refused) {
  state_.write("state.json", state_.runc_state(state_.container.path()));
  Shared<std::atomic<int>> answer;  // 0 = none yet, else 1 + the code
  state_.container.start(
      [&] {
        const auto found = state_.find();
        *answer = 1 + static_cast<int>(found.ok() ? Code::unknown : found.error().code);
      },
      state_.container.make_child("below"));
  ASSERT_TRUE(eventually([&] { return *answer != 0; }));
  EXPECT_EQ(*answer, 1 + static_cast<int>(Code::failed_precondition));
}

TEST_F(LookupV1Test, proc_of_the_init_process) {
  const pid_t pid = state_.start();
  const auto found = state_.find(pid);
  ASSERT_TRUE(found.ok()) << found.error().message;
  EXPECT_FALSE(found->unified());
  EXPECT_TRUE(found->freezer_path().ends_with(state_.name())) << found->freezer_path();
  EXPECT_EQ(found->processes().value_or({}), std::vector<pid_t>{pid});
}

TEST_F(LookupV1Test, crun_status) {
  state_.write("status", R"({"pid":12,"cgroup-path":")" + state_.name() + R"(","rootfs":"/r"})");
  const auto found = state_.find();
  ASSERT_TRUE(found.ok()) << found.error().message;
  EXPECT_TRUE(found->freezer_path().ends_with(state_.name())) << found->freezer_path();
}

TEST_P(LookupTest, no_trace_of_the_container_is_not_found) {
  EXPECT_EQ(state_.find().error().code, Code::not_found);
  EXPECT_EQ(state_.find(1 << 30).error().code, Code::not_found);
}

// A child program that sees nothing but a v2 hierarchy, mounted over what is there, as on a machine
// without v1.
TEST_F(LookupV2Test, nothing_but_v2) {
  const pid_t init = state_.start();
  state_.write("status", R"({"pid":12,"cgroup-path":")" + state_.name() + R"("})");
  Shared<std::array<char, 1024>> why;
  const pid_t pid = ::fork();
  if (pid == 0) {
    const auto fail = [&](const std::string& text) {
      std::snprintf(why->data(), why->size(), "%s", text.c_str());
      ::_exit(1);
    };
    if (::unshare(CLONE_NEWNS) != 0) fail("unshare");
    const auto gone = unmount_below(hierarchies().freezer);
    if (!gone.ok()) fail(gone.error().message);
    if (!unmount_below(hierarchies().memory).ok() || !unmount_below(hierarchies().unified).ok())
      fail("unmount");
    if (::mount("none", "/sys/fs/cgroup", "cgroup2", 0, nullptr) != 0) fail("mount");
    for (const auto& [id, process] : {std::pair<std::string, pid_t>{"c1", -1}, {"c2", init}}) {
      const auto found = Cgroup::of_container(state_.root, id, process);
      if (!found.ok()) fail(found.error().message);
      if (!found->unified() || found->freezer_path() != "/sys/fs/cgroup" + state_.name())
        fail(found->freezer_path());
      if (!found->freeze(std::chrono::seconds(10)).ok() || !found->thaw().ok()) fail("freeze");
    }
    ::_exit(0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(pid, &status, 0), pid);
  EXPECT_EQ(status, 0) << why->data();
}

}  // namespace
}  // namespace icebox::container::test
