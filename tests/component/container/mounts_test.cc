// SPDX-License-Identifier: Apache-2.0
//
// Finding and removing real mounts, in the test program's own mount namespace.
#include "runtime-hooks/container/mounts.h"

#include <fcntl.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "oci/base/file.h"
#include "oci/base/unique_fd.h"
#include "tests/component/container/harness.h"

namespace icebox::container::test {
namespace {

class MountsTest : public RootTest {
 protected:
  void SetUp() override {
    RootTest::SetUp();
    if (IsSkipped()) return;
    top_ = hierarchies().directory + "/mounts test";  // mountinfo writes the space as \040
    make(top_);
  }

  void TearDown() override {
    if (top_.empty()) return;
    EXPECT_TRUE(unmount_below(top_).ok());
    EXPECT_TRUE(remove_tree(top_).ok());
  }

  static void make(const std::string& path) {
    ASSERT_TRUE(make_directories(path, 0755).ok()) << path;
  }

  // A tmpfs at `path` with a file in it.
  static void mount_tmpfs(const std::string& path) {
    make(path);
    ASSERT_EQ(::mount("none", path.c_str(), "tmpfs", 0, nullptr), 0) << std::strerror(errno);
    ASSERT_TRUE(write_file_atomic(path + "/file", "data", 0600, Durable::no).ok());
  }

  [[nodiscard]] std::vector<std::string> below(const std::string& path) const {
    return mounts_below(path).value_or({"failed"});
  }

  std::string top_;
};

TEST_F(MountsTest, lists_deepest_first_and_nothing_beside) {
  mount_tmpfs(top_ + "/a");
  mount_tmpfs(top_ + "/a/b");
  mount_tmpfs(top_ + "/a/b/c");
  mount_tmpfs(top_ + "/ab");
  EXPECT_EQ(below(top_ + "/a"),
            (std::vector<std::string>{top_ + "/a/b/c", top_ + "/a/b", top_ + "/a"}));
  EXPECT_EQ(below(top_ + "/a/b"), (std::vector<std::string>{top_ + "/a/b/c", top_ + "/a/b"}));
  EXPECT_EQ(below(top_).size(), 4U);
  EXPECT_TRUE(below(top_ + "/none").empty());
}

TEST_F(MountsTest, resolves_links) {
  mount_tmpfs(top_ + "/a");
  ASSERT_EQ(::symlink((top_ + "/a").c_str(), (top_ + "/link").c_str()), 0);
  EXPECT_EQ(below(top_ + "/link/"), std::vector<std::string>{top_ + "/a"});
}

TEST_F(MountsTest, unmounts_stacked_busy_and_hidden_mounts) {
  mount_tmpfs(top_ + "/stack");
  mount_tmpfs(top_ + "/stack");
  mount_tmpfs(top_ + "/busy");
  const UniqueFd fd(::open((top_ + "/busy/file").c_str(), O_RDONLY | O_CLOEXEC));
  ASSERT_TRUE(fd.valid());
  mount_tmpfs(top_ + "/over/hidden");
  mount_tmpfs(top_ + "/over");
  ASSERT_EQ(below(top_).size(), 5U);
  const auto done = unmount_below(top_);
  EXPECT_TRUE(done.ok()) << done.error().message;
  EXPECT_TRUE(below(top_).empty());
}

TEST_F(MountsTest, nothing_mounted_is_fine) {
  EXPECT_TRUE(unmount_below(top_).ok());
  EXPECT_TRUE(unmount_below(top_ + "/none").ok());
}

// What a killed `runc restore` leaves: a recursive bind of the root file system, which is a peer of
// the original when that is shared (as systemd makes everything).
TEST_F(MountsTest, the_original_of_a_shared_bind_keeps_its_mounts) {
  const std::string rootfs = top_ + "/rootfs";
  const std::string bind = top_ + "/state/criu-root";
  mount_tmpfs(rootfs);
  ASSERT_EQ(::mount(nullptr, rootfs.c_str(), nullptr, MS_SHARED, nullptr), 0);
  mount_tmpfs(rootfs + "/volume");
  make(bind);
  ASSERT_EQ(::mount(rootfs.c_str(), bind.c_str(), nullptr, MS_BIND | MS_REC, nullptr), 0)
      << std::strerror(errno);
  ASSERT_EQ(below(top_ + "/state").size(), 2U);
  const auto done = unmount_below(top_ + "/state");
  EXPECT_TRUE(done.ok()) << done.error().message;
  EXPECT_TRUE(below(top_ + "/state").empty());
  EXPECT_EQ(below(rootfs), (std::vector<std::string>{rootfs + "/volume", rootfs}));
  // Now the state directory can be removed and the data is still there.
  EXPECT_TRUE(remove_tree(top_ + "/state").ok());
  EXPECT_TRUE(exists(rootfs + "/file"));
  EXPECT_TRUE(exists(rootfs + "/volume/file"));
}

}  // namespace
}  // namespace icebox::container::test
