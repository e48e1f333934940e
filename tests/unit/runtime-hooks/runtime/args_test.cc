// SPDX-License-Identifier: Apache-2.0
#include "runtime-hooks/runtime/args.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "runtime-hooks/runtime/oci_runtime.h"

namespace icebox::engine {
namespace {

using Words = std::vector<std::string>;

TEST(Invocation, SplitsWhatContainerdSends) {
  const auto parsed =
      parse_invocation({"--root", "/run/r/ns", "--log", "/b/log.json", "--log-format", "json",
                        "--systemd-cgroup", "checkpoint", "--image-path", "/i", "c1"},
                       "runc");
  ASSERT_TRUE(parsed.ok());
  EXPECT_EQ(parsed->root, "/run/r/ns");
  EXPECT_EQ(parsed->log_file, "/b/log.json");
  EXPECT_TRUE(parsed->log_json);
  EXPECT_TRUE(parsed->systemd_cgroup);
  EXPECT_EQ(parsed->command, "checkpoint");
  EXPECT_EQ(parsed->global.size(), 7U);
  EXPECT_EQ(parsed->rest, (Words{"--image-path", "/i", "c1"}));
}

TEST(Invocation, KeepsEqualsFormsAndUnknownSwitches) {
  const auto parsed =
      parse_invocation({"--root=/r", "--brand-new", "state", "c1"}, "/usr/bin/crun");
  ASSERT_TRUE(parsed.ok());
  EXPECT_EQ(parsed->root, "/r");
  EXPECT_EQ(parsed->global, (Words{"--root=/r", "--brand-new"}));
  EXPECT_EQ(parsed->command, "state");
}

TEST(Invocation, TakesTheRuntimesOwnRootByDefault) {
  EXPECT_EQ(parse_invocation({"list"}, "/usr/bin/crun")->root, "/run/crun");
  EXPECT_EQ(parse_invocation({"--version"}, "runc")->command, "");
}

TEST(Invocation, NamesAnOptionWithoutItsValue) {
  const auto parsed = parse_invocation({"--root"}, "runc");
  ASSERT_FALSE(parsed.ok());
  EXPECT_NE(parsed.error().message.find("--root"), std::string::npos);
}

TEST(Command, FindsOptionsOnBothSidesOfTheId) {
  const auto parsed = parse_command(
      "checkpoint", {"--image-path", "/i", "c1", "--leave-running", "--work-path=/w"});
  ASSERT_TRUE(parsed.ok());
  EXPECT_EQ(parsed->positional, (Words{"c1"}));
  EXPECT_TRUE(parsed->has("leave-running"));
  EXPECT_EQ(parsed->value("work-path"), "/w");
  EXPECT_FALSE(parsed->has("shell-job"));
  EXPECT_FALSE(parse_command("checkpoint", {"--leave-running=false", "c1"})->has("leave-running"));
}

TEST(Command, ReadsSignalsThatLookLikeOptions) {
  EXPECT_EQ(parse_command("kill", {"--all", "c1", "-9"})->positional, (Words{"c1", "-9"}));
  EXPECT_EQ(parse_command("kill", {"--", "c1", "9"})->positional, (Words{"c1", "9"}));
}

TEST(Command, NeedsAnId) { EXPECT_FALSE(parse_command("pause", {}).ok()); }

TEST(LastLogError, IsTheLastOneAtErrorLevel) {
  EXPECT_EQ(last_log_error(
                "{\"level\":\"error\",\"msg\":\"first\"}\nnot "
                "json\n{\"level\":\"warning\",\"msg\":\"w\"}\n"
                "{\"level\":\"error\",\"msg\":\"second\"}\n{\"level\":\"info\",\"msg\":\"i\"}\n"),
            "second");
  EXPECT_EQ(last_log_error(""), "");
}

}  // namespace
}  // namespace icebox::engine
