// SPDX-License-Identifier: Apache-2.0
#include "oci/base/file.h"

#include <stdlib.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <string>

#include <gtest/gtest.h>

namespace icebox {
namespace {

class FileTest : public testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/icebox-file-XXXXXX";
    ASSERT_NE(::mkdtemp(name), nullptr);
    directory_ = name;
  }
  void TearDown() override { EXPECT_TRUE(remove_tree(directory_).ok()); }
  std::string path(const std::string& name) const { return directory_ + "/" + name; }
  std::string directory_;
};

TEST_F(FileTest, ReadsWhatWasWritten) {
  ASSERT_TRUE(write_file_atomic(path("a"), "content", 0600, Durable::yes).ok());
  const auto text = read_file(path("a"), 100);
  ASSERT_TRUE(text.ok());
  EXPECT_EQ(*text, "content");
  EXPECT_EQ(list_directory(directory_)->size(), 1U) << "a temporary file was left behind";
}

TEST_F(FileTest, RefusesMoreThanTheLimit) {
  ASSERT_TRUE(write_file_atomic(path("a"), std::string(101, 'x'), 0600, Durable::no).ok());
  const auto text = read_file(path("a"), 100);
  ASSERT_FALSE(text.ok());
  EXPECT_EQ(text.error().code, Code::resource_exhausted);
}

TEST_F(FileTest, NamesAMissingFile) {
  const auto text = read_file(path("missing"), 100);
  ASSERT_FALSE(text.ok());
  EXPECT_EQ(text.error().code, Code::not_found);
  EXPECT_NE(text.error().message.find("missing"), std::string::npos);
}

TEST_F(FileTest, FailedReplaceLeavesTheOldFileAndNoTemporary) {
  ASSERT_TRUE(make_directories(path("d/in"), 0700).ok());
  EXPECT_FALSE(write_file_atomic(path("d"), "x", 0600, Durable::no).ok());
  EXPECT_EQ(list_directory(directory_)->size(), 1U);
}

TEST_F(FileTest, RemovesATreeButNotWhatALinkPointsTo) {
  ASSERT_TRUE(make_directories(path("keep"), 0700).ok());
  ASSERT_TRUE(write_file_atomic(path("keep/file"), "x", 0600, Durable::no).ok());
  ASSERT_TRUE(make_directories(path("tree/sub"), 0700).ok());
  ASSERT_EQ(::symlink(path("keep").c_str(), path("tree/sub/link").c_str()), 0);
  EXPECT_TRUE(remove_tree(path("tree")).ok());
  EXPECT_FALSE(exists(path("tree")));
  EXPECT_TRUE(exists(path("keep/file")));
}

TEST_F(FileTest, NeverRemovesAcrossAMount) {
  if (::geteuid() != 0) GTEST_SKIP() << "mounting needs root";
  ASSERT_TRUE(make_directories(path("tree/mounted"), 0700).ok());
  ASSERT_EQ(::mount("none", path("tree/mounted").c_str(), "tmpfs", 0, nullptr), 0);
  ASSERT_TRUE(write_file_atomic(path("tree/mounted/precious"), "x", 0600, Durable::no).ok());
  const auto removed = remove_tree(path("tree"));
  EXPECT_FALSE(removed.ok());
  EXPECT_TRUE(exists(path("tree/mounted/precious")));
  EXPECT_EQ(::umount(path("tree/mounted").c_str()), 0);
}

TEST(AbsolutePath, IsBehindTheWorkingDirectoryWhenRelative) {
  EXPECT_EQ(absolute_path("/a/../b"), "/a/../b");
  const auto here = read_link("/proc/self/cwd");
  ASSERT_TRUE(here.ok());
  EXPECT_EQ(absolute_path("a/b"), *here + "/a/b");
}

TEST_F(FileTest, FindsProgramsInPath) {
  EXPECT_TRUE(find_program("sh").ok());
  const auto missing = find_program("no-such-program-here");
  ASSERT_FALSE(missing.ok());
  EXPECT_NE(missing.error().message.find("no-such-program-here"), std::string::npos);
}

}  // namespace
}  // namespace icebox
