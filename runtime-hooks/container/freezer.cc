// SPDX-License-Identifier: Apache-2.0
//
// The freezer half of Cgroup. v1: Documentation/admin-guide/cgroup-v1/freezer-subsystem.rst; v2:
// cgroup.freeze and cgroup.events in Documentation/admin-guide/cgroup-v2.rst.
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <string_view>
#include <utility>

#include "oci/base/fault.h"
#include "oci/base/file.h"
#include "oci/base/strings.h"
#include "runtime-hooks/container/backoff.h"
#include "runtime-hooks/container/cgroup.h"
#include "runtime-hooks/container/process.h"
#include "runtime-hooks/container/task_state.h"

namespace icebox::container {
namespace {

using std::chrono::milliseconds;

constexpr std::size_t kMaxControl = 64 * 1024;
constexpr std::size_t kMaxThreads = 64 * 1024 * 1024;
// v1 only. As runc: after so many attempts a short thaw lets tasks finish what keeps them from
// freezing.
constexpr int kAttemptsBeforeThaw = 50;
constexpr milliseconds kThawTime{10};

Result<std::string> read_value(const std::string& path) {
  auto text = read_file(path, kMaxControl);
  if (text.ok()) return std::string(trim(*text));
  if (text.error().code != Code::not_found && text.error().sys_errno != ENODEV) return text;
  return make_error(Code::not_found, path + " is gone");
}

// The value of `key` in a flat keyed file such as cgroup.events; empty when it has none.
std::string value_of(std::string_view text, std::string_view key) {
  for (const auto line : split(text, '\n', SplitEmpty::drop)) {
    const auto words = split(line, ' ', SplitEmpty::drop);
    if (words.size() == 2 && words[0] == key) return std::string(words[1]);
  }
  return {};
}

Result<FreezerState> state_v1(const std::string& directory) {
  const std::string path = directory + "/freezer.state";
  const auto text = ICEBOX_TRY(read_value(path));
  if (text == "THAWED") return FreezerState::thawed;
  if (text == "FREEZING") return FreezerState::freezing;
  if (text == "FROZEN") return FreezerState::frozen;
  return make_error(Code::unknown, path + ": unexpected state '" + text + "'");
}

// Whether a task of a cgroup that is asked to freeze may well be frozen. v2 shows frozen tasks as
// sleeping in the freezer's trap; v1 shows them as D, as it does those that keep it from freezing.
bool looks_frozen(const TaskState& task, bool unified) {
  constexpr std::string_view kAtRest = "TtZXI";
  if (kAtRest.find(task.state) != std::string_view::npos) return true;
  if (!unified) return task.state == 'D';
  if (task.in_vfork()) return true;
  return task.state == 'S' && (task.wchan.find("freezer_trap") != std::string::npos ||
                               task.wchan.starts_with("get_signal") || task.wchan.empty());
}

// Whether what the kernel says of a v2 cgroup with others below it is true. It calls such a cgroup
// frozen as soon as either all below it or its own tasks are (kernel/cgroup/freezer.c:
// cgroup_propagate_frozen does not look at the tasks, cgroup_update_frozen not at the descendants).
// Of a leaf it is exact.
bool tree_is_frozen(const std::string& directory) {
  const auto names = list_directory(directory);
  if (!names.ok()) return true;  // gone
  bool leaf = true;
  for (const auto& name : *names) {
    const std::string child = directory + "/" + name;
    struct stat info = {};
    if (::lstat(child.c_str(), &info) != 0 || !S_ISDIR(info.st_mode)) continue;
    leaf = false;
    const auto events = read_file(child + "/cgroup.events", kMaxControl);
    if (events.ok() && value_of(*events, "frozen") != "1") return false;
    if (!tree_is_frozen(child)) return false;
  }
  if (leaf) return true;
  const auto threads = read_file(directory + "/cgroup.threads", kMaxThreads);
  if (!threads.ok()) return true;
  for (const auto line : split(*threads, '\n', SplitEmpty::drop)) {
    const auto tid = static_cast<pid_t>(parse_i64(line).value_or(0));
    const auto task = read_task_state(tid, tid);
    if (task.ok() && !looks_frozen(*task, /*unified=*/true)) return false;
  }
  return true;
}

Result<FreezerState> state_v2(const std::string& directory) {
  const auto events = ICEBOX_TRY(read_value(directory + "/cgroup.events"));
  if (value_of(events, "frozen") == "1") {
    return tree_is_frozen(directory) ? FreezerState::frozen : FreezerState::freezing;
  }
  const auto wanted = read_value(directory + "/cgroup.freeze");
  if (!wanted.ok()) return wanted.error();
  return *wanted == "1" ? FreezerState::freezing : FreezerState::thawed;
}

Result<void> write_state(const Cgroup& cgroup, bool frozen) {
  if (cgroup.unified())
    return write_control_file(cgroup.freezer_path() + "/cgroup.freeze", frozen ? "1" : "0");
  return write_control_file(cgroup.freezer_path() + "/freezer.state", frozen ? "FROZEN" : "THAWED");
}

// The nearest cgroup above that is frozen and keeps this one so; empty when there is none.
std::string frozen_ancestor(const Cgroup& cgroup) {
  std::string directory = cgroup.freezer_path();
  const char* file = cgroup.unified() ? "/cgroup.freeze" : "/freezer.self_freezing";
  for (;;) {
    directory.erase(std::min(directory.size(), directory.rfind('/')));
    const auto own = read_file(directory + file, kMaxControl);
    if (directory.empty() || !own.ok()) return {};  // a root has no such file
    if (trim(*own) == "1") return directory;
  }
}

std::vector<TaskState> task_states(const Cgroup& cgroup) {
  std::vector<TaskState> states;
  const auto pids = cgroup.processes();
  if (!pids.ok()) return states;
  for (const pid_t pid : *pids) {
    const auto tids = threads_of(pid);
    if (!tids.ok()) continue;
    for (const pid_t tid : *tids) {
      auto state = read_task_state(pid, tid);
      if (state.ok()) states.push_back(std::move(state).value());
    }
  }
  return states;
}

std::string describe(const std::vector<TaskState>& tasks) {
  if (tasks.empty()) return "no task could be singled out";
  std::string text = tasks[0].describe();
  if (tasks.size() > 1) text += " and " + std::to_string(tasks.size() - 1) + " more";
  return text;
}

// Tasks that keep the cgroup from freezing, as far as can be told while it is being frozen.
std::vector<TaskState> stubborn_tasks(const Cgroup& cgroup) {
  auto tasks = task_states(cgroup);
  std::erase_if(tasks, [&](const TaskState& task) { return looks_frozen(task, cgroup.unified()); });
  return tasks;
}

// On v1 a task that cannot be interrupted looks like a frozen one: it is what still hangs after a
// thaw.
std::vector<TaskState> still_hanging(const Cgroup& cgroup) {
  sleep_for(kThawTime);
  auto tasks = task_states(cgroup);
  std::erase_if(tasks, [](const TaskState& task) { return task.state != 'D' || task.in_vfork(); });
  return tasks;
}

Error not_frozen(const Cgroup& cgroup, milliseconds timeout, const std::vector<TaskState>& tasks) {
  return make_error(Code::deadline_exceeded,
                    "cgroup " + cgroup.freezer_path() + " did not freeze within " +
                        std::to_string(timeout.count()) + " ms: " + describe(tasks));
}

}  // namespace

Result<FreezerState> Cgroup::state() const {
  return unified_ ? state_v2(freezer_) : state_v1(freezer_);
}

Result<void> Cgroup::freeze(milliseconds timeout) const {
  const bool was_thawed = ICEBOX_TRY(state()) == FreezerState::thawed;
  ICEBOX_TRY(request_freeze());
  Backoff backoff(timeout);
  for (int attempt = 1;; ++attempt) {
    const auto now = state();
    if (!now.ok()) return now.error();
    if (*now == FreezerState::frozen) return {};
    if (!backoff.wait()) break;
    if (unified_) continue;
    if (was_thawed && attempt % kAttemptsBeforeThaw == 0) {
      ICEBOX_TRY(write_state(*this, false));
      sleep_for(kThawTime);
    }
    ICEBOX_TRY(write_state(*this, true));
  }
  auto tasks = stubborn_tasks(*this);
  if (was_thawed) {
    ICEBOX_TRY(
        write_state(*this, false).context("cgroup " + freezer_ + " neither freezes nor thaws"));
    if (tasks.empty()) tasks = still_hanging(*this);
  }
  return not_frozen(*this, timeout, tasks);
}

Result<void> Cgroup::request_freeze() const {
  ICEBOX_TRY(fault::reach("container.freeze"));
  return write_state(*this, true).context("freeze");
}

Result<void> Cgroup::wait_frozen(milliseconds timeout) const {
  Backoff backoff(timeout);
  for (;;) {
    if (ICEBOX_TRY(state()) == FreezerState::frozen) return {};
    if (!backoff.wait()) return not_frozen(*this, timeout, stubborn_tasks(*this));
    // v1 looks for tasks that were missed (forks) only when it is asked again.
    if (!unified_) ICEBOX_TRY(write_state(*this, true));
  }
}

Result<void> Cgroup::thaw() const {
  ICEBOX_TRY(fault::reach("container.thaw"));
  ICEBOX_TRY(write_state(*this, false).context("thaw"));
  const std::string ancestor = frozen_ancestor(*this);
  if (ancestor.empty()) return {};
  return make_error(Code::failed_precondition, "cgroup " + freezer_ + " stays frozen as long as " +
                                                   ancestor + " above it is: thaw that one");
}

}  // namespace icebox::container
