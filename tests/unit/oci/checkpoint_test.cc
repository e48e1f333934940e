// SPDX-License-Identifier: Apache-2.0
#include "oci/checkpoint.h"

#include <stdlib.h>
#include <unistd.h>

#include <string>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "oci/base/file.h"

namespace icebox {
namespace {

CheckpointInfo sample() {
  CheckpointInfo info;
  info.icebox_version = "0.1.0";
  info.created = "2026-01-02T03:04:05.678Z";
  info.container_id = "c1";
  info.cgroups_path = "/default/c1";
  info.runtime = "runc";
  info.kernel = "6.1";
  info.architecture = "x86_64";
  info.cpu_features = {"avx", "sse"};
  info.criu_version = "4.2";
  info.gpu_state = "inline";
  info.driver_version = "580.1";
  info.cuda_version = 13000;
  info.gpus = {{"GPU-1", "Model", 100, "9.0", "0000:01:00.0"}};
  info.processes = {{41, {1}, "prog", 7, {{"GPU-1", 7}}}, {42, {2, 1}, "prog2", 5, {{"GPU-1", 5}}}};
  info.dump_options = {"--file-locks"};
  info.left_out = {"sh"};
  info.files = {{"pages-1.img", 4096}};
  info.timings_ms = {{"dump", 12}};
  return info;
}

TEST(CheckpointJson, ComesBackEqual) {
  const auto json = checkpoint_to_json(sample());
  const auto back = checkpoint_from_json(json);
  ASSERT_TRUE(back.ok()) << back.error().message;
  EXPECT_EQ(json_text(checkpoint_to_json(*back)), json_text(json));
  EXPECT_EQ(back->gpu_bytes(), 12U);
}

TEST(CheckpointJson, ReadsANewerMinorAndRefusesAnotherMajor) {
  auto json = checkpoint_to_json(sample());
  json["version"]["minor"] = 99;
  json["future"] = "unknown members are fine";
  EXPECT_TRUE(checkpoint_from_json(json).ok());
  json["version"]["major"] = 2;
  const auto other = checkpoint_from_json(json);
  ASSERT_FALSE(other.ok());
  EXPECT_NE(other.error().message.find("2.99"), std::string::npos);
}

TEST(CheckpointJson, RefusesEveryMissingOrMistypedMember) {
  const auto json = checkpoint_to_json(sample());
  for (const auto& [key, value] : json.items()) {
    auto without = json;
    without.erase(key);
    EXPECT_FALSE(checkpoint_from_json(without).ok()) << key << " missing";
    auto mistyped = json;
    mistyped[key] = nullptr;
    EXPECT_FALSE(checkpoint_from_json(mistyped).ok()) << key << " null";
  }
  auto unknown_state = json;
  unknown_state["gpu"]["state"] = "holographic";
  EXPECT_FALSE(checkpoint_from_json(unknown_state).ok());
  auto contradiction = json;
  contradiction["gpu"]["state"] = "none";
  EXPECT_FALSE(checkpoint_from_json(contradiction).ok());
  auto forgetful = json;
  forgetful["gpu"]["processes"] = Json::array();
  EXPECT_FALSE(checkpoint_from_json(forgetful).ok());
  auto negative = json;
  negative["files"]["pages-1.img"] = -1;
  EXPECT_FALSE(checkpoint_from_json(negative).ok());
}

TEST(CheckpointJson, TakesNoForeignFlagsForTheRuntime) {
  auto json = checkpoint_to_json(sample());
  json["dump_options"] = {"--tcp-established", "--empty-ns", "network"};
  EXPECT_TRUE(checkpoint_from_json(json).ok());
  for (const auto& options :
       {Json{"--pid-file", "/etc/passwd"}, Json{"--file-locks", "stray"}, Json{"--empty-ns"},
        Json{"--empty-ns", "--bundle"}, Json{"file-locks"}, Json{"--file-locks=x"}}) {
    json["dump_options"] = options;
    EXPECT_FALSE(checkpoint_from_json(json).ok()) << options;
  }
}

class DirectoryTest : public testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/icebox-checkpoint-XXXXXX";
    ASSERT_NE(::mkdtemp(name), nullptr);
    directory_ = name;
  }
  void TearDown() override { EXPECT_TRUE(remove_tree(directory_).ok()); }
  void put(const std::string& name, const std::string& text) const {
    ASSERT_TRUE(write_file_atomic(directory_ + "/" + name, text, 0600, Durable::no).ok());
  }
  // A sealed checkpoint with two files.
  void seal() const {
    ASSERT_TRUE(begin_checkpoint(directory_).ok());
    put("inventory.img", "inventory");
    put("pages-1.img", "pages");
    auto info = sample();
    ASSERT_TRUE(sync_checkpoint_files(directory_, info).ok());
    ASSERT_TRUE(seal_checkpoint(directory_, info).ok());
  }
  std::string problem() const {
    const auto read = read_checkpoint_directory(directory_);
    return read.ok() ? "" : read.error().message;
  }
  std::string directory_;
};

TEST_F(DirectoryTest, SealedOneIsRead) {
  seal();
  const auto read = read_checkpoint_directory(directory_);
  ASSERT_TRUE(read.ok()) << read.error().message;
  EXPECT_FALSE(read->plain);
  EXPECT_EQ(read->info.files.size(), 2U);
  EXPECT_FALSE(exists(directory_ + "/" + kPartialCheckpointFile));
}

TEST_F(DirectoryTest, UnfinishedOneIsRefused) {
  seal();
  ASSERT_TRUE(begin_checkpoint(directory_).ok());
  EXPECT_NE(problem().find("unfinished"), std::string::npos);
}

TEST_F(DirectoryTest, CutOrMissingFilesAreNamed) {
  seal();
  put("pages-1.img", "page");
  EXPECT_NE(problem().find("pages-1.img"), std::string::npos);
  ::unlink((directory_ + "/pages-1.img").c_str());
  EXPECT_NE(problem().find("missing"), std::string::npos);
}

TEST_F(DirectoryTest, CutOrForeignDescriptionIsNamed) {
  seal();
  const auto text = *read_file(directory_ + "/" + kCheckpointFile, 1 << 20);
  put(kCheckpointFile, text.substr(0, text.size() / 2));
  EXPECT_NE(problem().find(kCheckpointFile), std::string::npos);
  put(kCheckpointFile, R"({"format":"something else"})");
  EXPECT_NE(problem().find("not written by Icebox"), std::string::npos);
}

TEST_F(DirectoryTest, FileNamesThatLeaveTheDirectoryAreRefused) {
  ASSERT_TRUE(begin_checkpoint(directory_).ok());
  auto info = sample();
  put("inventory.img", "x");
  info.files = {{"../escape", 1}, {"inventory.img", 1}};
  ASSERT_TRUE(seal_checkpoint(directory_, info).ok());
  EXPECT_NE(problem().find("impossible file name"), std::string::npos);
}

TEST_F(DirectoryTest, OneThatListsNothingIsRefused) {
  ASSERT_TRUE(begin_checkpoint(directory_).ok());
  put("inventory.img", "x");
  auto info = sample();
  info.files.clear();
  ASSERT_TRUE(seal_checkpoint(directory_, info).ok());
  EXPECT_NE(problem().find("lists no inventory.img"), std::string::npos);
}

TEST_F(DirectoryTest, NothingIsBegunOverALink) {
  ASSERT_EQ(::symlink("elsewhere", (directory_ + "/pages-1.img").c_str()), 0);
  const auto begun = begin_checkpoint(directory_);
  ASSERT_FALSE(begun.ok());
  EXPECT_NE(begun.error().message.find("pages-1.img"), std::string::npos);
}

TEST_F(DirectoryTest, PlainCriuImagesAreTakenAsSuch) {
  put("inventory.img", "x");
  const auto read = read_checkpoint_directory(directory_);
  ASSERT_TRUE(read.ok());
  EXPECT_TRUE(read->plain);
}

TEST_F(DirectoryTest, AnythingElseIsNoCheckpoint) {
  EXPECT_NE(problem().find("holds no checkpoint"), std::string::npos);
}

TEST_F(DirectoryTest, OnlyRegularFilesAreSealed) {
  ASSERT_TRUE(begin_checkpoint(directory_).ok());
  ASSERT_EQ(::symlink("elsewhere", (directory_ + "/parent").c_str()), 0);
  auto info = sample();
  const auto synced = sync_checkpoint_files(directory_, info);
  ASSERT_FALSE(synced.ok());
  EXPECT_NE(synced.error().message.find("parent"), std::string::npos);
}

}  // namespace
}  // namespace icebox
