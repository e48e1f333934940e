// SPDX-License-Identifier: Apache-2.0
#include "shim/bootstrap/args.h"

#include <vector>

#include <gtest/gtest.h>

namespace icebox::shim {
namespace {

Result<Args> parse(std::vector<const char*> words) {
  words.insert(words.begin(), "containerd-shim-icebox-v1");
  return parse_args(static_cast<int>(words.size()), words.data());
}

TEST(Args, TakesContainerdsOrder) {
  const Result<Args> args =
      parse({"-namespace", "k8s.io", "-address", "/run/c.sock", "-publish-binary", "/bin/c", "-id",
             "x", "-bundle", "/b", "-debug", "delete"});
  ASSERT_TRUE(args.ok());
  EXPECT_EQ(args->ns, "k8s.io");
  EXPECT_EQ(args->address, "/run/c.sock");
  EXPECT_EQ(args->publish_binary, "/bin/c");
  EXPECT_EQ(args->id, "x");
  EXPECT_EQ(args->bundle, "/b");
  EXPECT_TRUE(args->debug);
  EXPECT_EQ(args->action, "delete");
}

TEST(Args, TakesEveryGoForm) {
  const Result<Args> args = parse({"--namespace=a=b", "--id", "x", "-debug=false", "start"});
  ASSERT_TRUE(args.ok());
  EXPECT_EQ(args->ns, "a=b");
  EXPECT_EQ(args->id, "x");
  EXPECT_FALSE(args->debug);
  EXPECT_EQ(args->action, "start");
}

TEST(Args, StopsAtTheActionAndAtTwoDashes) {
  EXPECT_EQ(parse({"start", "-id", "x"})->id, "");
  const Result<Args> args = parse({"-id", "x", "--", "delete"});
  EXPECT_EQ(args->action, "delete");
  EXPECT_EQ(parse({"-id", "x"})->action, "");
}

TEST(Args, SkipsFlagsFromTheFuture) {
  const Result<Args> args =
      parse({"-shiny", "-colour=red", "-debug-socket", "/s", "-id", "x", "start"});
  ASSERT_TRUE(args.ok());
  EXPECT_EQ(args->id, "x");
  EXPECT_EQ(args->action, "start");
}

TEST(Args, VersionAndInfo) {
  EXPECT_TRUE(parse({"-v"})->version);
  EXPECT_TRUE(parse({"-version"})->version);
  EXPECT_TRUE(parse({"-info"})->info);
}

TEST(Args, RefusesWhatHasNoMeaning) {
  EXPECT_EQ(parse({"-id"}).error().message, "flag needs an argument: -id");
  EXPECT_EQ(parse({"-debug=perhaps"}).error().code, Code::invalid_argument);
}

}  // namespace
}  // namespace icebox::shim
