// SPDX-License-Identifier: Apache-2.0
#include "tests/fakes/cuda/knobs.h"

#include <cstring>
#include <string>

#include <gtest/gtest.h>

namespace icebox::sim {
namespace {

const char* parse(const std::string& text, Knobs& knobs) {
  return parse_knobs(text.data(), text.size(), knobs);
}

TEST(Knobs, NothingIsSetByDefault) {
  Knobs knobs;
  EXPECT_EQ(parse("", knobs), nullptr);
  EXPECT_EQ(knobs.lock.trouble, Trouble::none);
  EXPECT_EQ(knobs.state, -1);
  EXPECT_FALSE(knobs.leave_fd);
  EXPECT_STREQ(knobs.log, "");
}

TEST(Knobs, ReadsEveryKey) {
  Knobs knobs;
  EXPECT_EQ(parse("# a comment\n\nlock=slow:20\ncheckpoint=then_failed\nrestore=oom_sticky\n"
                  "unlock=999\nstate=4\nleave_fd=1\nlog=/tmp/log",
                  knobs),
            nullptr);
  EXPECT_EQ(knobs.lock.trouble, Trouble::slow);
  EXPECT_EQ(knobs.lock.value, 20);
  EXPECT_EQ(knobs.checkpoint.trouble, Trouble::then_failed);
  EXPECT_EQ(knobs.restore.trouble, Trouble::oom_sticky);
  EXPECT_EQ(knobs.unlock.trouble, Trouble::error);
  EXPECT_EQ(knobs.unlock.value, 999);
  EXPECT_EQ(knobs.state, 4);
  EXPECT_TRUE(knobs.leave_fd);
  EXPECT_STREQ(knobs.log, "/tmp/log");
}

TEST(Knobs, RefusesWhatAnOperationDoesNotKnow) {
  for (const char* bad :
       {"lock", "lok=busy", "lock=", "lock=bussy", "lock=die", "lock=0", "lock=-1",
        "lock=slow:", "lock=slow:x", "checkpoint=busy", "checkpoint=oom_sticky",
        "restore=then_failed", "restore=crash", "unlock=hang", "state=x", "leave_fd=2"}) {
    Knobs knobs;
    const std::string text = std::string("unlock=1\n") + bad + "\n";
    const char* where = parse(text, knobs);
    ASSERT_NE(where, nullptr) << bad;
    EXPECT_EQ(where - text.data(), 9) << bad;
  }
}

}  // namespace
}  // namespace icebox::sim
