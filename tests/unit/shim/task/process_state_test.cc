// SPDX-License-Identifier: Apache-2.0
#include "shim/task/process_state.h"

#include <map>
#include <utility>

#include <gtest/gtest.h>

namespace icebox::shim {
namespace {

using S = ProcessState;
using E = ProcessEvent;

constexpr S kStates[] = {S::created, S::running, S::pausing, S::paused, S::stopped};
constexpr E kEvents[] = {E::started,      E::pause_begun, E::paused,
                         E::pause_failed, E::resumed,     E::exited};

// Every cell of the table: what is not listed is not allowed.
TEST(ProcessState, Table) {
  const std::map<std::pair<S, E>, S> allowed{
      {{S::created, E::started}, S::running},     {{S::created, E::exited}, S::stopped},
      {{S::running, E::pause_begun}, S::pausing}, {{S::running, E::exited}, S::stopped},
      {{S::pausing, E::paused}, S::paused},       {{S::pausing, E::pause_failed}, S::running},
      {{S::pausing, E::exited}, S::stopped},      {{S::paused, E::resumed}, S::running},
      {{S::paused, E::exited}, S::stopped}};
  for (const S state : kStates) {
    for (const E event : kEvents) {
      const auto expected = allowed.find({state, event});
      const std::optional<S> next = next_state(state, event);
      EXPECT_EQ(next.has_value(), expected != allowed.end()) << state_name(state);
      if (next && expected != allowed.end()) {
        EXPECT_EQ(*next, expected->second);
      }
    }
  }
}

TEST(ProcessState, NamesAndWireValuesAreContainerds) {
  EXPECT_EQ(state_to_wire(S::created), 1);
  EXPECT_EQ(state_to_wire(S::running), 2);
  EXPECT_EQ(state_to_wire(S::stopped), 3);
  EXPECT_EQ(state_to_wire(S::paused), 4);
  EXPECT_EQ(state_to_wire(S::pausing), 5);
  EXPECT_EQ(state_name(S::pausing), "pausing");
}

}  // namespace
}  // namespace icebox::shim
