// SPDX-License-Identifier: Apache-2.0
#include "shim/task/managed_process.h"

#include <optional>
#include <vector>

#include <gtest/gtest.h>

namespace icebox::shim {
namespace {

TEST(ManagedProcess, EveryWaiterIsToldOnce) {
  ManagedProcess process{StdioSpec{}};
  std::vector<unsigned> told;
  process.wait([&](const ExitInfo& exit) { told.push_back(exit.status); });
  process.wait([&](const ExitInfo& exit) { told.push_back(exit.status); });
  process.finish(ExitInfo{1, 5, {}});
  process.finish(ExitInfo{1, 6, {}});
  process.wait([&](const ExitInfo& exit) { told.push_back(exit.status); });
  EXPECT_EQ(told, (std::vector<unsigned>{5, 5, 5}));
  EXPECT_EQ(process.state(), ProcessState::stopped);
}

TEST(ManagedProcess, WhoStillWaitsAtTheEndIsToldUnknown) {
  unsigned status = 0;
  std::optional<ManagedProcess> process(std::in_place, StdioSpec{});
  process->wait([&](const ExitInfo& exit) { status = exit.status; });
  process.reset();
  EXPECT_EQ(status, 255U);
}

TEST(ManagedProcess, ForbiddenEventsChangeNothing) {
  ManagedProcess process{StdioSpec{}};
  EXPECT_FALSE(process.apply(ProcessEvent::pause_begun));
  EXPECT_EQ(process.state(), ProcessState::created);
}

}  // namespace
}  // namespace icebox::shim
