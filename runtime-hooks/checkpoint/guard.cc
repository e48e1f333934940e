// SPDX-License-Identifier: Apache-2.0
#include <signal.h>

#include <algorithm>
#include <chrono>

#include "oci/base/file.h"
#include "oci/base/log.h"
#include "oci/base/strings.h"
#include "runtime-hooks/checkpoint/operations.h"
#include "runtime-hooks/checkpoint/rollback.h"
#include "runtime-hooks/container/mounts.h"

namespace icebox::engine {
namespace {

// How long a delete waits for an engine whose container has just been ended. containerd gives a
// shim's `delete` 5 s.
constexpr std::chrono::milliseconds kDeletePatience{3000};

bool is_sigkill(const std::string& text) {
  return text == "9" || text == "KILL" || text == "SIGKILL" || text == "kill" || text == "sigkill";
}

// The container's cgroup, whether or not the runtime still calls it alive.
Result<container::Cgroup> cgroup_of(Engine& engine, const std::string& id) {
  const auto state = ICEBOX_TRY(engine.runtime.state(id));
  return container::Cgroup::of_container(engine.invocation.root, id, state.pid);
}

}  // namespace

Result<bool> kill(Engine& engine, const CommandArgs& args) {
  const std::string& id = args.positional[0];
  const std::string signal = args.positional.size() > 1 ? args.positional[1] : "SIGTERM";
  const auto state =
      ICEBOX_TRY(ContainerState::locate(engine.config.state_dir, engine.invocation.root, id));
  if (!state.present() || !is_sigkill(signal)) return false;
  auto lock = state.lock();
  if (!lock.ok() && lock.error().code != Code::unavailable) return lock.error();
  if (lock.ok() && !exists(state.path("journal.json"))) return false;

  // Held by us, or an operation is under way: the runtime's own kill would signal init only and, on
  // cgroup v1, thaw the rest of the tree, which would then run.
  state.mark_killed();
  const auto cgroup = cgroup_of(engine, id);
  if (!cgroup.ok()) {
    // A restore that has not made anything yet: the mark makes it fail.
    if (lock.ok()) return cgroup.error();
    return true;
  }
  // An engine at work freezes and thaws beside us; it finds its processes dead, or the mark, and
  // ends what is left.
  ICEBOX_TRY(kill_container(*cgroup));
  if (lock.ok()) ICEBOX_TRY(state.clear());
  return true;
}

Result<void> remove(Engine& engine, const CommandArgs& args) {
  const std::string& id = args.positional[0];
  const bool force = args.has("force") || args.has("f");
  const auto state =
      ICEBOX_TRY(ContainerState::locate(engine.config.state_dir, engine.invocation.root, id));
  UniqueFd lock;
  if (state.present()) {
    if (force) state.mark_killed();
    const auto cgroup = cgroup_of(engine, id);
    // Of a container that ended while it was paused the runtime says that it is paused, and
    // refuses.
    const auto held = state.read();
    const bool ended = held.ok() && *held && (*held)->held() && !is_alive((*held)->init);
    if ((force || ended) && cgroup.ok()) {
      const auto killed = kill_container(*cgroup);
      if (!killed.ok())
        log::warn("ending the container before its delete",
                  {{"id", id}, {"error", killed.error().message}});
    }
    auto taken = state.lock_within(force ? kDeletePatience : std::chrono::milliseconds(0));
    if (taken.ok()) {
      lock = std::move(taken).value();
    } else if (!force) {
      return taken.error();
    }
  }
  // Before the runtime removes anything recursively: a killed restore may have left a bind of the
  // root file system below the runtime's state directory.
  ICEBOX_TRY(container::unmount_below(engine.invocation.root + "/" + id));
  std::vector<std::string> arguments = {"delete"};
  arguments.insert(arguments.end(), engine.invocation.rest.begin(), engine.invocation.rest.end());
  const auto removed = engine.runtime.run({.argv = arguments}, {});
  const bool gone = removed.ok() || removed.error().code == Code::not_found;
  if (lock && gone) ICEBOX_TRY(state.remove());
  if (removed.ok() || (force && gone)) return {};
  return removed.error();
}

Result<void> guard(Engine& engine, const std::string& command, const CommandArgs& args) {
  const std::string& id = args.positional[0];
  const auto state = ContainerState::locate(engine.config.state_dir, engine.invocation.root, id);
  if (!state.ok() || !state->present()) return {};
  OperationKind kind = OperationKind::pause;
  {
    const auto lock = state->lock();
    if (!lock.ok()) return lock.error().context(command);
    const auto journal = ICEBOX_TRY(state->read());
    if (!journal || journal->held()) return {};
    kind = journal->operation;
  }
  // Its engine died half-way: opening a session rolls that back.
  const auto session = Session::open(engine, kind, id);
  return session.ok() ? Result<void>() : Result<void>(session.error().context(command));
}

}  // namespace icebox::engine
