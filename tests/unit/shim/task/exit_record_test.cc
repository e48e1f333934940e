// SPDX-License-Identifier: Apache-2.0
#include "shim/task/exit_record.h"

#include <gtest/gtest.h>

namespace icebox::shim {
namespace {

TEST(ExitRecord, ComesBackAsItWas) {
  ExitInfo exit;
  exit.pid = 4711;
  exit.status = 137;
  exit.at =
      std::chrono::system_clock::time_point(std::chrono::nanoseconds(1'700'000'000'123'456'789));
  EXPECT_EQ(format_exit(exit), "4711 137 1700000000 123456789\n");
  const Result<ExitInfo> back = parse_exit(format_exit(exit));
  ASSERT_TRUE(back.ok());
  EXPECT_EQ(back->pid, exit.pid);
  EXPECT_EQ(back->status, exit.status);
  EXPECT_EQ(back->at, exit.at);
}

TEST(ExitRecord, RefusesWhatIsCut) {
  for (const char* text : {"", "1 2 3", "1 2 3 x", "1 2 3 4 5"})
    EXPECT_FALSE(parse_exit(text).ok());
}

}  // namespace
}  // namespace icebox::shim
