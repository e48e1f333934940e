// SPDX-License-Identifier: Apache-2.0
#include "shim/task/process_state.h"

#include <array>

namespace icebox::shim {
namespace {

struct Transition {
  ProcessState from;
  ProcessEvent event;
  ProcessState to;
};

using S = ProcessState;
using E = ProcessEvent;

constexpr std::array kTransitions{
    Transition{S::created, E::started, S::running},
    Transition{S::created, E::exited, S::stopped},
    Transition{S::running, E::pause_begun, S::pausing},
    Transition{S::running, E::exited, S::stopped},
    Transition{S::pausing, E::paused, S::paused},
    Transition{S::pausing, E::pause_failed, S::running},
    Transition{S::pausing, E::exited, S::stopped},
    Transition{S::paused, E::resumed, S::running},
    Transition{S::paused, E::exited, S::stopped},
};

}  // namespace

std::optional<ProcessState> next_state(ProcessState state, ProcessEvent event) {
  for (const Transition& transition : kTransitions) {
    if (transition.from == state && transition.event == event) return transition.to;
  }
  return std::nullopt;
}

std::string_view state_name(ProcessState state) {
  switch (state) {
    case S::created: return "created";
    case S::running: return "running";
    case S::pausing: return "pausing";
    case S::paused: return "paused";
    case S::stopped: return "stopped";
  }
  return "unknown";
}

int state_to_wire(ProcessState state) {
  switch (state) {
    case S::created: return 1;
    case S::running: return 2;
    case S::stopped: return 3;
    case S::paused: return 4;
    case S::pausing: return 5;
  }
  return 0;
}

}  // namespace icebox::shim
