// SPDX-License-Identifier: Apache-2.0
#include "runtime-hooks/container/task_state.h"

#include <sys/syscall.h>

#include <string_view>

#include "oci/base/file.h"
#include "oci/base/strings.h"

namespace icebox::container {
namespace {

constexpr std::size_t kMaxFile = 64 * 1024;

}  // namespace

bool TaskState::in_vfork() const {
  if (state != 'D') return false;
  switch (syscall) {
#ifdef SYS_vfork
    case SYS_vfork:
#endif
    case SYS_clone:
    case SYS_clone3:  // the same number in every table
      return true;
#ifdef __x86_64__
    case 120:  // clone and vfork of 32-bit programs. The 64-bit calls of these numbers (getresgid,
               // fremovexattr) do
    case 190:  // not sleep without being freezable.
      return wchan.empty() || wchan.find("clone") != std::string::npos ||
             wchan.find("vfork") != std::string::npos;
#endif
    default: return false;
  }
}

bool TaskState::maybe_group_stopped() const {
  // do_signal_stop is a static function that some compilers put into get_signal.
  return state == 'T' || wchan.empty() || wchan.starts_with("do_signal_stop") ||
         wchan.starts_with("get_signal");
}

std::string TaskState::describe() const {
  std::string text = "thread " + std::to_string(tid) + " (" + comm + ") of process " +
                     std::to_string(process) + ", state " + state;
  if (!wchan.empty()) text += ", in " + wchan;
  return text;
}

Result<TaskState> read_task_state(pid_t process, pid_t tid) {
  const std::string directory = "/proc/" + std::to_string(process) + "/task/" + std::to_string(tid);
  TaskState task;
  task.process = process;
  task.tid = tid;
  const auto status = ICEBOX_TRY(read_file(directory + "/status", kMaxFile));
  for (const auto line : split(status, '\n', SplitEmpty::drop)) {
    const auto colon = line.find(':');
    if (colon == std::string_view::npos) continue;
    const auto value = trim(line.substr(colon + 1));
    if (line.starts_with("Tgid:")) task.process = static_cast<pid_t>(ICEBOX_TRY(parse_i64(value)));
    if (line.starts_with("Name:")) task.comm = std::string(value);
    if (line.starts_with("State:") && !value.empty()) task.state = value[0];
    if (line.starts_with("TracerPid:"))
      task.tracer = static_cast<pid_t>(ICEBOX_TRY(parse_i64(value)));
  }
  const auto wchan = read_file(directory + "/wchan", kMaxFile);
  if (wchan.ok() && *wchan != "0") task.wchan = *wchan;
  // "NR 0xARG ... 0xSP 0xPC"; "running" or "-1 0xSP 0xPC" outside of a call (proc(5)).
  const auto call = read_file(directory + "/syscall", kMaxFile);
  if (call.ok())
    task.syscall = parse_i64(std::string_view(*call).substr(0, call->find(' '))).value_or(-1);
  return task;
}

}  // namespace icebox::container
