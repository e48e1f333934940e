// SPDX-License-Identifier: Apache-2.0
//
// Which GPU each GPU of a checkpointed process comes back on. Pure; no allocation.
#pragma once

#include "tests/fakes/cuda/mailbox.h"

namespace icebox::sim {

/// Decides for the `gpu_count` GPUs of `gpus` (what the process knew when it was checkpointed; its
/// device memory in `usage`, same order) what Restore with `request` does. On success `target` has
/// the new UUID of each.
///
/// With pairs: they must be a complete permutation, each of the process's GPUs once as the old one,
/// used or not, and distinct GPUs of the caller's machine as new ones of the same model; anything
/// else is invalid_value (seen on r580: the process stays CHECKPOINTED and may be restored later).
/// Without: a used GPU that the caller's machine does not have is invalid_device.
/// Too little free memory on any target is out_of_memory.
cu::Result plan_restore(const Gpu* gpus, int gpu_count, const Usage* usage, const Request& request,
                        cu::Uuid* target);

}  // namespace icebox::sim
