// SPDX-License-Identifier: Apache-2.0
#include "runtime-hooks/checkpoint/journal.h"

#include <stdlib.h>

#include <string>

#include <gtest/gtest.h>

#include "oci/base/file.h"

namespace icebox::engine {
namespace {

class JournalTest : public testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/icebox-journal-XXXXXX";
    ASSERT_NE(::mkdtemp(name), nullptr);
    directory_ = name;
  }
  void TearDown() override { EXPECT_TRUE(remove_tree(directory_).ok()); }
  ContainerState state() const { return *ContainerState::locate(directory_, "/run/runc/ns", "c1"); }
  std::string directory_;
};

TEST_F(JournalTest, ComesBackAsWritten) {
  const auto lock = state().lock();
  ASSERT_TRUE(lock.ok());
  Journal journal;
  journal.operation = OperationKind::checkpoint;
  journal.phase = "dump";
  journal.engine = {1, 2};
  journal.init = {3, 4};
  journal.was_paused = true;
  journal.suspended = true;
  journal.targets = {{5, 6}, {7, 8}};
  journal.gpu_bytes = {{"GPU-A", 9}};
  journal.memory_limits = {{"/sys/x", "10"}};
  journal.bundle = "/b";
  journal.original_spec = "/s";
  ASSERT_TRUE(state().write(journal).ok());
  const auto back = state().read();
  ASSERT_TRUE(back.ok()) << back.error().message;
  ASSERT_TRUE(back->has_value());
  EXPECT_EQ((*back)->operation, OperationKind::checkpoint);
  EXPECT_EQ((*back)->phase, "dump");
  EXPECT_EQ((*back)->engine.pid, 1);
  EXPECT_EQ((*back)->engine.start_time, 2U);
  EXPECT_EQ((*back)->init.pid, 3);
  EXPECT_EQ((*back)->init.start_time, 4U);
  EXPECT_TRUE((*back)->was_paused);
  EXPECT_TRUE((*back)->suspended);
  EXPECT_EQ((*back)->bundle, "/b");
  EXPECT_EQ((*back)->targets, journal.targets);
  EXPECT_EQ((*back)->gpu_bytes, journal.gpu_bytes);
  ASSERT_EQ((*back)->memory_limits.size(), 1U);
  EXPECT_EQ((*back)->memory_limits[0].file, "/sys/x");
  EXPECT_EQ((*back)->memory_limits[0].value, "10");
  EXPECT_EQ((*back)->original_spec, "/s");
  EXPECT_FALSE((*back)->held());
  ASSERT_TRUE(state().clear().ok());
  EXPECT_FALSE(state().read()->has_value());
}

TEST_F(JournalTest, ADamagedOneIsAnErrorAndNotAnAbsentOne) {
  const auto lock = state().lock();
  ASSERT_TRUE(lock.ok());
  const std::string path = state().path("journal.json");
  for (const char* text : {"{\"version\":1", "{\"version\":77}", "{\"version\":1}", "[]", ""}) {
    ASSERT_TRUE(write_file_atomic(path, text, 0600, Durable::no).ok());
    const auto read = state().read();
    ASSERT_FALSE(read.ok()) << text;
    EXPECT_NE(read.error().message.find(path), std::string::npos) << read.error().message;
    EXPECT_NE(read.error().message.find("remove that file"), std::string::npos);
  }
}

TEST_F(JournalTest, TheLockExcludesASecondEngine) {
  auto first = state().lock();
  ASSERT_TRUE(first.ok());
  const auto second = state().lock();
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.error().code, Code::unavailable);
  first->reset();
  EXPECT_TRUE(state().lock().ok());
}

TEST_F(JournalTest, ALockOnARemovedDirectoryIsTakenAnew) {
  auto first = state().lock();
  ASSERT_TRUE(first.ok());
  ASSERT_TRUE(state().remove().ok());
  EXPECT_TRUE(state().lock().ok()) << "the removed file's lock protects nothing any more";
}

TEST(ContainerState, RefusesIdsThatAreNoNames) {
  for (const char* id : {"", ".", "..", "a/b", "a b", "../x"}) {
    EXPECT_FALSE(ContainerState::locate("/s", "/r", id).ok()) << id;
  }
  EXPECT_EQ(ContainerState::locate("/s", "/r/ns", "a.b-c_d+e")->directory(), "/s/r/ns/a.b-c_d+e");
}

}  // namespace
}  // namespace icebox::engine
