// SPDX-License-Identifier: Apache-2.0
//
// The agent's core: carries an Operation out on a list of targets, all in parallel, and reports
// each.
#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <vector>

#include "runtime-hooks/cuda/driver_table.h"
#include "runtime-hooks/cuda/protocol.h"
#include "runtime-hooks/cuda/target.h"

namespace icebox::cuda {

class HeldTarget;

/// Not thread safe: one run() at a time. Driver calls happen on threads of its own; a call that
/// does not come back in time is left behind on its thread, and this object and everything it uses
/// may be destroyed meanwhile.
class Operations {
 public:
  struct Timing {
    /// How long after its deadline a driver call may still answer before it is taken for hung.
    std::chrono::milliseconds answer_grace = protocol::kAnswerGrace;
    /// How long the state queries that follow the operation may take altogether.
    std::chrono::milliseconds state_grace = protocol::kStateGrace;
    /// How long after its target's end a Checkpoint or Restore may take to come back with an error.
    std::chrono::milliseconds death_grace{5'000};
  };

  explicit Operations(const CheckpointApi& api) : Operations(api, Timing()) {}
  Operations(const CheckpointApi& api, Timing timing) : api_(api), timing_(timing) {}

  /// Carries `action` out; outcomes in the order of its targets. Blocks until every target has
  /// answered, or its deadline and the graces are over (checkpoint and restore have no deadline,
  /// but a target that ends is not waited for). gpu_map must hold UUIDs that parse_gpu_uuid takes.
  ///
  /// Every target is held by a pidfd from its first use on. Refused: a thread id, another start
  /// time, and a target for which an earlier call is still pending when the deadline passes
  /// (without a deadline: answer_grace).
  std::vector<Outcome> run(const protocol::Action& action);

  /// True if a call that was reported as no_answer is still in the driver, for a living target.
  [[nodiscard]] bool pending() const;

  /// Blocks until pending() is false.
  void wait_until_idle() const;

 private:
  /// The held target, or the outcome that says why it cannot be one.
  struct Hold {
    std::shared_ptr<HeldTarget> target;
    Outcome refusal;
  };
  Hold hold(const Target& target);

  CheckpointApi api_;
  Timing timing_;
  std::map<pid_t, std::shared_ptr<HeldTarget>> targets_;
};

}  // namespace icebox::cuda
