// SPDX-License-Identifier: Apache-2.0
//
// Helpers of the files that define exported functions.
#pragma once

#include "tests/fakes/cuda/driver_state.h"

/// Everything else in the libraries is hidden.
#define ICEBOX_SIM_EXPORT extern "C" __attribute__((visibility("default")))

/// Begins a CUDA call: returns the error of a process that may not call, and waits while the
/// process is LOCKED.
#define ICEBOX_SIM_CALL()         \
  const ::icebox::sim::Call call; \
  if (call.result != ::icebox::cu::Result::success) return call.result
