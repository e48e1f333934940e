// SPDX-License-Identifier: Apache-2.0
//
// The commands that the engine handles itself. Each takes the arguments behind the command as runc
// would, returns when all is done, and leaves the container as it was when it fails (the message
// says so where that was not possible).
#pragma once

#include <string>

#include "oci/base/result.h"
#include "runtime-hooks/checkpoint/session.h"
#include "runtime-hooks/runtime/args.h"

namespace icebox::engine {

// Locks every CUDA process and freezes the container: PAUSED, and its GPU work has stopped. Without
// CUDA: freezes. Blocks up to lock_timeout plus the freezer's time.
Result<void> pause(Engine& engine, const CommandArgs& args);

// Thaws and unlocks; puts CUDA back on the GPU first where it is suspended.
Result<void> resume(Engine& engine, const CommandArgs& args);

// Writes a checkpoint into --image-path. A RUNNING container is paused for it and resumed after; a
// paused one stays paused. Without --leave-running the container is ended once the checkpoint is
// sealed. Blocks for as long as the driver and CRIU need.
Result<void> checkpoint(Engine& engine, const CommandArgs& args);

// Restores --image-path into the container of --bundle: returns when every process runs and every
// CUDA process is back on its GPU. On failure nothing of the container is left.
Result<void> restore(Engine& engine, const CommandArgs& args);

// `kill`: SIGKILL ends a held or busy container for good; every other case is the runtime's. Never
// waits for an operation under way. True when it was dealt with, false when the runtime is to do
// it.
Result<bool> kill(Engine& engine, const CommandArgs& args);

// `delete`: makes the container safe to delete (ends what an operation left, unmounts), runs the
// runtime's delete, then forgets the container.
Result<void> remove(Engine& engine, const CommandArgs& args);

// For commands that could disturb an operation (exec, start, update): unavailable while one is
// under way; rolls back what a dead engine left. Cheap when nothing was ever done with the
// container.
Result<void> guard(Engine& engine, const std::string& command, const CommandArgs& args);

}  // namespace icebox::engine
