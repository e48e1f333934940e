// SPDX-License-Identifier: Apache-2.0
// Rootfs mounts against the real kernel, in a mount namespace of the test's own.
#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>

#include <gtest/gtest.h>

#include "oci/base/file.h"
#include "oci/base/unique_fd.h"
#include "shim/runtime/rootfs.h"

namespace icebox::shim {
namespace {

constexpr std::size_t kMaxFile = 16UL << 20;

class Mounts : public ::testing::Test {
 protected:
  void SetUp() override {
    if (::geteuid() != 0) GTEST_SKIP() << "needs root";
    ASSERT_EQ(::unshare(CLONE_NEWNS), 0);
    ASSERT_EQ(::mount("", "/", "", MS_REC | MS_PRIVATE, nullptr), 0);
    char name[] = "/tmp/icebox-mounts-XXXXXX";
    ASSERT_NE(::mkdtemp(name), nullptr);
    directory_ = name;
    // Overlays do not stack on every file system; on tmpfs they do.
    ASSERT_EQ(::mount("tmpfs", directory_.c_str(), "tmpfs", 0, nullptr), 0);
    ASSERT_EQ(::mkdir((directory_ + "/rootfs").c_str(), 0755), 0);
  }
  void TearDown() override {
    if (directory_.empty()) return;
    EXPECT_EQ(::umount2(directory_.c_str(), MNT_DETACH), 0);
    EXPECT_EQ(::rmdir(directory_.c_str()), 0);
  }
  void put(const std::string& file) {
    const std::string path = directory_ + "/" + file;
    ASSERT_TRUE(make_directories(path.substr(0, path.rfind('/')), 0755).ok());
    ASSERT_TRUE(write_file_atomic(path, file, 0644, Durable::no).ok());
  }
  [[nodiscard]] std::string rootfs() const { return directory_ + "/rootfs"; }
  [[nodiscard]] std::size_t mounted() const {
    const std::string info = read_file("/proc/self/mountinfo", kMaxFile).value_or("");
    return mount_points_under(info, rootfs()).size();
  }
  std::string directory_;
};

TEST_F(Mounts, ReadOnlyBindIsReadOnly) {
  put("source/file");
  ASSERT_TRUE(mount_rootfs({{"bind", directory_ + "/source", "", {"rbind", "ro"}}}, rootfs()).ok());
  EXPECT_TRUE(exists(rootfs() + "/file"));
  EXPECT_LT(::open((rootfs() + "/new").c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600), 0);
  EXPECT_EQ(errno, EROFS);
  EXPECT_TRUE(unmount_tree(rootfs()).ok());
  EXPECT_EQ(mounted(), 0U);
}

TEST_F(Mounts, OverlayWithMoreLayersThanFitAPageAndTheWorkingDirectoryStays) {
  const std::string layers =
      directory_ + "/a-long-directory-name-as-snapshotters-have-it/snapshots";
  std::string lower = "lowerdir=";
  for (int i = 0; i < 100; ++i) {
    const std::string layer = std::to_string(100 + i) + "/fs";
    put(layers.substr(directory_.size() + 1) + "/" + layer + "/file" + std::to_string(i));
    lower += (i > 0 ? ":" : "") + layers + "/" + layer;
  }
  ASSERT_GT(lower.size(), 4096U);
  put("upper/x");
  ASSERT_EQ(::mkdir((directory_ + "/work").c_str(), 0755), 0);
  const std::string before = read_link("/proc/self/cwd").value_or("?");
  const Result<void> done = mount_rootfs(
      {{"overlay",
        "overlay",
        "",
        {"workdir=" + directory_ + "/work", "upperdir=" + directory_ + "/upper", lower}}},
      rootfs());
  ASSERT_TRUE(done.ok()) << done.error().message;
  EXPECT_TRUE(exists(rootfs() + "/file0"));
  EXPECT_TRUE(exists(rootfs() + "/file99"));
  EXPECT_EQ(read_link("/proc/self/cwd").value_or("!"), before);
  EXPECT_TRUE(unmount_tree(rootfs()).ok());
}

TEST_F(Mounts, FailureUnmountsWhatWasMounted) {
  put("source/file");
  const Result<void> done = mount_rootfs({{"bind", directory_ + "/source", "", {"bind"}},
                                          {"bind", directory_ + "/missing", "", {"bind"}}},
                                         rootfs());
  ASSERT_FALSE(done.ok());
  EXPECT_NE(done.error().message.find(directory_ + "/missing"), std::string::npos);
  EXPECT_EQ(mounted(), 0U);
  EXPECT_TRUE(exists(directory_ + "/source/file"));
}

TEST_F(Mounts, BusyMountsAreDetachedAndInnerOnesGoFirst) {
  put("source/inner/file");
  ASSERT_TRUE(mount_rootfs({{"bind", directory_ + "/source", "", {"rbind"}},
                            {"tmpfs", "tmpfs", "inner", {}}},
                           rootfs())
                  .ok());
  EXPECT_EQ(mounted(), 2U);
  const UniqueFd busy(::open((rootfs() + "/inner").c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  EXPECT_TRUE(unmount_tree(rootfs()).ok());
  EXPECT_EQ(mounted(), 0U);
  EXPECT_TRUE(unmount_tree(rootfs()).ok());
  EXPECT_TRUE(exists(directory_ + "/source/inner/file"));
}

}  // namespace
}  // namespace icebox::shim
