// SPDX-License-Identifier: Apache-2.0
#include "shim/runtime/engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shim/runtime/engine_log.h"

namespace icebox::shim {
namespace {

using ::testing::ElementsAre;

TEST(EngineLog, TheLastErrorCounts) {
  EXPECT_EQ(last_error_message(R"({"level":"error","msg":"first","time":"t"}
{"level":"warning","msg":"harmless"}
{"level":"error","msg":"second \"quoted\"\n"}
{"level":"info","msg":"bye"}
)"),
            "second \"quoted\"");
}

TEST(EngineLog, LinesThatAreNotJsonAreSkipped) {
  EXPECT_EQ(last_error_message("{\"level\":\"error\",\"msg\":\"whole\"}\n{\"level\":\"err"),
            "whole");
  EXPECT_EQ(last_error_message("panic: boom\n"), "");
  EXPECT_EQ(last_error_message(R"({"level":"error","msg":"m","nested":{"msg":"no"}})"), "m");
}

TEST(EngineLog, WithoutAnErrorTheEndOfStderrCounts) {
  EXPECT_EQ(failure_text("", "line one\nline two\n\n"), "line two");
  EXPECT_EQ(failure_text(R"({"level":"error","msg":"log"})", "stderr"), "log");
  EXPECT_EQ(failure_text("", ""), "");
  EXPECT_LT(failure_text("", std::string(100'000, 'x')).size(), 3000U);
}

TEST(EngineEnvironment, SetsTheRuntimeAndHidesTheServiceManager) {
  const std::vector<std::string> own{"A=1", "NOTIFY_SOCKET=/run/n", "ICEBOX_RUNTIME=old"};
  EXPECT_THAT(engine_environment(own, "crun"), ElementsAre("A=1", "ICEBOX_RUNTIME=crun"));
  EXPECT_THAT(engine_environment(own, ""), ElementsAre("A=1", "ICEBOX_RUNTIME=old"));
}

TEST(RuntimeRoot, HasTheNamespace) {
  EXPECT_EQ(runtime_root("", "ns"), "/run/containerd/runc/ns");
  EXPECT_EQ(runtime_root("/r", "ns"), "/r/ns");
}

TEST(SaysNotFound, KnowsTheRuntimesWords) {
  EXPECT_TRUE(says_not_found(make_error(Code::unknown, "container does not exist")));
  EXPECT_TRUE(says_not_found(make_error(Code::unknown, "container not running")));
  EXPECT_TRUE(says_not_found(make_error(Code::not_found, "x")));
  EXPECT_FALSE(says_not_found(make_error(Code::unknown, "permission denied")));
}

}  // namespace
}  // namespace icebox::shim
