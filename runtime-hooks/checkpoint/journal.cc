// SPDX-License-Identifier: Apache-2.0
#include "runtime-hooks/checkpoint/journal.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>

#include <nlohmann/json.hpp>

#include "oci/base/file.h"
#include "oci/base/log.h"
#include "oci/base/pid_ref.h"
#include "oci/json.h"

namespace icebox::engine {
namespace {

constexpr int kVersion = 1;
constexpr const char* kJournalFile = "journal.json";
constexpr const char* kLockFile = "lock";
constexpr const char* kKilledFile = "killed";

Json name_to_json(const ProcessName& name) {
  return {{"pid", name.pid}, {"start_time", name.start_time}};
}

Result<ProcessName> name_from_json(const Json& json, const char* key) {
  const Json* value = json_find(json, key);
  if (value == nullptr)
    return make_error(Code::invalid_argument, std::string("'") + key + "' is missing");
  ProcessName name;
  name.pid = static_cast<pid_t>(ICEBOX_TRY(json_int(*value, "pid")));
  name.start_time = ICEBOX_TRY(json_uint(*value, "start_time"));
  return name;
}

Result<OperationKind> parse_kind(const std::string& text) {
  for (const auto kind : {OperationKind::pause, OperationKind::resume, OperationKind::checkpoint,
                          OperationKind::restore}) {
    if (text == to_string(kind)) return kind;
  }
  return make_error(Code::invalid_argument, "unknown operation '" + text + "'");
}

Json journal_to_json(const Journal& journal) {
  Json targets = Json::array();
  for (const auto& target : journal.targets)
    targets.push_back(name_to_json({target.pid, target.start_time}));
  Json limits = Json::array();
  for (const auto& limit : journal.memory_limits)
    limits.push_back({{"file", limit.file}, {"value", limit.value}});
  return {{"version", kVersion},
          {"operation", std::string(to_string(journal.operation))},
          {"phase", journal.phase},
          {"time", log::timestamp()},
          {"engine", name_to_json(journal.engine)},
          {"init", name_to_json(journal.init)},
          {"was_paused", journal.was_paused},
          {"suspended", journal.suspended},
          {"targets", targets},
          {"gpu_bytes", journal.gpu_bytes},
          {"memory_limits", limits},
          {"bundle", journal.bundle},
          {"original_spec", journal.original_spec}};
}

Result<Journal> journal_from_json(const Json& json) {
  if (ICEBOX_TRY(json_int(json, "version")) != kVersion) {
    return make_error(Code::failed_precondition, "written by another version of Icebox");
  }
  Journal journal;
  journal.operation = ICEBOX_TRY(parse_kind(ICEBOX_TRY(json_string(json, "operation"))));
  journal.phase = ICEBOX_TRY(json_string(json, "phase"));
  journal.engine = ICEBOX_TRY(name_from_json(json, "engine"));
  journal.init = ICEBOX_TRY(name_from_json(json, "init"));
  journal.was_paused = ICEBOX_TRY(json_bool(json, "was_paused"));
  journal.suspended = ICEBOX_TRY(json_bool(json, "suspended"));
  journal.bundle = ICEBOX_TRY(json_string(json, "bundle"));
  journal.original_spec = ICEBOX_TRY(json_string(json, "original_spec"));
  const Json* targets = json_find(json, "targets");
  const Json* limits = json_find(json, "memory_limits");
  if (targets == nullptr || !targets->is_array() || limits == nullptr || !limits->is_array()) {
    return make_error(Code::invalid_argument, "'targets' or 'memory_limits' is missing");
  }
  const Json* gpu_bytes = json_find(json, "gpu_bytes");
  if (gpu_bytes == nullptr || !gpu_bytes->is_object())
    return make_error(Code::invalid_argument, "'gpu_bytes' is missing");
  for (const auto& [uuid, bytes] : gpu_bytes->items()) {
    journal.gpu_bytes[uuid] = ICEBOX_TRY(json_uint(*gpu_bytes, uuid.c_str()));
    static_cast<void>(bytes);
  }
  for (const auto& item : *targets) {
    const Json wrapped = {{"target", item}};
    const auto name = ICEBOX_TRY(name_from_json(wrapped, "target"));
    journal.targets.push_back({name.pid, name.start_time});
  }
  for (const auto& item : *limits) {
    journal.memory_limits.push_back(
        {ICEBOX_TRY(json_string(item, "file")), ICEBOX_TRY(json_string(item, "value"))});
  }
  return journal;
}

bool valid_id(const std::string& id) {
  return !id.empty() && id != "." && id != ".." &&
         std::all_of(id.begin(), id.end(), [](unsigned char c) {
           return std::isalnum(c) != 0 || c == '_' || c == '+' || c == '-' || c == '.';
         });
}

}  // namespace

std::string_view to_string(OperationKind kind) {
  switch (kind) {
    case OperationKind::pause: return "pause";
    case OperationKind::resume: return "resume";
    case OperationKind::checkpoint: return "checkpoint";
    case OperationKind::restore: return "restore";
  }
  return "pause";
}

Result<ContainerState> ContainerState::locate(const std::string& state_dir,
                                              const std::string& runtime_root,
                                              const std::string& id) {
  if (!valid_id(id))
    return make_error(Code::invalid_argument, "'" + id + "' is no valid container id");
  ContainerState state;
  state.directory_ =
      state_dir + (runtime_root.starts_with("/") ? "" : "/") + runtime_root + "/" + id;
  return state;
}

bool ContainerState::present() const { return exists(directory_); }

Result<UniqueFd> ContainerState::lock() const {
  for (;;) {
    ICEBOX_TRY(make_directories(directory_, 0700));
    auto fd = open_file(path(kLockFile), O_RDWR | O_CREAT | O_NOFOLLOW, 0600);
    if (!fd.ok()) {
      if (fd.error().code == Code::not_found)
        continue;  // removed by a delete between the two calls
      return fd;
    }
    if (::flock(fd->get(), LOCK_EX | LOCK_NB) != 0) {
      if (errno != EWOULDBLOCK) return errno_error(path(kLockFile));
      const auto journal = read();
      const std::string what =
          journal.ok() && journal->has_value()
              ? std::string(to_string((*journal)->operation)) + " (" + (*journal)->phase + ")"
              : std::string("operation");
      return make_error(
          Code::unavailable,
          "another " + what + " of this container is under way: try again when it has ended");
    }
    // A delete may have removed the file between open and flock: a lock on a nameless file protects
    // nothing.
    struct stat locked = {};
    struct stat named = {};
    if (::fstat(fd->get(), &locked) == 0 && ::stat(path(kLockFile).c_str(), &named) == 0 &&
        locked.st_ino == named.st_ino) {
      return fd;
    }
  }
}

Result<UniqueFd> ContainerState::lock_within(std::chrono::milliseconds timeout) const {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  for (;;) {
    auto fd = lock();
    if (fd.ok() || fd.error().code != Code::unavailable ||
        std::chrono::steady_clock::now() >= deadline)
      return fd;
    struct timespec pause = {0, 10'000'000};
    ::nanosleep(&pause, nullptr);
  }
}

Result<std::optional<Journal>> ContainerState::read() const {
  const auto document = read_json_file(path(kJournalFile));
  if (!document.ok() && document.error().code == Code::not_found) return std::optional<Journal>();
  auto journal = document.ok() ? journal_from_json(*document).context(path(kJournalFile))
                               : Result<Journal>(document.error());
  if (journal.ok()) return std::optional<Journal>(std::move(journal).value());
  Error error = std::move(journal).error();
  error.message += "; end the container with kill -9, then remove that file";
  return error;
}

Result<void> ContainerState::write(const Journal& journal) const {
  return write_file_atomic(path(kJournalFile), json_pretty(journal_to_json(journal)), 0600,
                           Durable::no);
}

Result<void> ContainerState::clear() const {
  for (const char* name : {kJournalFile, kKilledFile}) {
    if (::unlink(path(name).c_str()) != 0 && errno != ENOENT) return errno_error(path(name));
  }
  return {};
}

Result<void> ContainerState::remove() const { return remove_tree(directory_); }

void ContainerState::mark_killed() const {
  static_cast<void>(write_file_atomic(path(kKilledFile), "", 0600, Durable::no).ok());
}

bool ContainerState::killed() const { return exists(path(kKilledFile)); }

}  // namespace icebox::engine
