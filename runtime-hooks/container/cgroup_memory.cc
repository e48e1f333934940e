// SPDX-License-Identifier: Apache-2.0
//
// The memory half of Cgroup: room for bytes that are put back into a container.
// v1: Documentation/admin-guide/cgroup-v1/memory.rst; v2: "Memory" in
// Documentation/admin-guide/cgroup-v2.rst.
#include <algorithm>
#include <cerrno>
#include <ctime>
#include <limits>
#include <optional>
#include <string_view>
#include <utility>

#include "oci/base/file.h"
#include "oci/base/scope_guard.h"
#include "oci/base/strings.h"
#include "runtime-hooks/container/cgroup.h"

namespace icebox::container {
namespace {

constexpr std::size_t kMaxControl = 64 * 1024;
constexpr std::uint64_t kUnlimited = std::numeric_limits<std::uint64_t>::max();
// v1 writes "unlimited" as the largest number of whole pages in a signed 64-bit count of bytes.
constexpr std::uint64_t kUnlimitedV1 = std::uint64_t{1} << 62U;
// The pages are not all that is charged: page tables take 1/512 of what they map, and each
// processor holds back up to 64 pages of charge. Twice the first, and a lump for the second.
constexpr std::uint64_t kPageTableShare = 256;
constexpr std::uint64_t kChargeBatches = std::uint64_t{16} << 20U;
constexpr int kRestoreAttempts = 50;
constexpr long kRestorePauseNs = 20L * 1000 * 1000;

// A limit and the usage that it limits.
struct Limit {
  const char* limit;
  const char* usage;
};
// memsw may never be below the limit: it is raised before it and put back after it.
constexpr Limit kLimitsV1[] = {{"memory.memsw.limit_in_bytes", "memory.memsw.usage_in_bytes"},
                               {"memory.limit_in_bytes", "memory.usage_in_bytes"}};
// Past memory.high tasks are slowed down to a crawl: as bad for a fill of gigabytes as the limit
// itself.
constexpr Limit kLimitsV2[] = {{"memory.max", "memory.current"}, {"memory.high", "memory.current"}};

Result<std::string> read_value(const std::string& path) {
  return std::string(trim(ICEBOX_TRY(read_file(path, kMaxControl))));
}

Result<std::uint64_t> parse_limit(std::string_view text) {
  if (text == "max") return kUnlimited;
  const auto bytes = ICEBOX_TRY(parse_u64(text));
  return bytes >= kUnlimitedV1 ? kUnlimited : bytes;
}

Result<std::uint64_t> read_bytes(const std::string& path) {
  return parse_u64(ICEBOX_TRY(read_value(path))).context(path);
}

bool gone(const Error& error) { return error.code == Code::not_found || error.sys_errno == ENODEV; }

// MemAvailable of /proc/meminfo in bytes: what can be had without swapping (proc(5)).
Result<std::uint64_t> host_memory_available() {
  const auto text = ICEBOX_TRY(read_file("/proc/meminfo", kMaxControl));
  for (const auto line : split(text, '\n', SplitEmpty::drop)) {
    if (!line.starts_with("MemAvailable:")) continue;
    const auto words = split(line, ' ', SplitEmpty::drop);
    if (words.size() >= 2) return ICEBOX_TRY(parse_u64(words[1]).context("/proc/meminfo")) * 1024;
  }
  return make_error(Code::unknown, "/proc/meminfo: no MemAvailable line");
}

// Raises one limit of one cgroup if `need` bytes do not fit below it. A missing file (controller
// off, memsw not accounted, root) limits nothing.
Result<void> raise_one(const std::string& directory, const Limit& names, std::uint64_t need,
                       std::vector<SavedLimit>& saved, const Cgroup::NoteLimits& note) {
  const std::string file = directory + "/" + names.limit;
  const auto text = read_value(file);
  if (!text.ok()) {
    if (gone(text.error()) || text.error().sys_errno == EOPNOTSUPP) return {};
    return text.error();
  }
  const auto limit = ICEBOX_TRY(parse_limit(*text).context(file));
  if (limit == kUnlimited) return {};
  const std::string usage_file = directory + "/" + names.usage;
  const auto usage = ICEBOX_TRY(read_bytes(usage_file));
  if (usage <= limit && limit - usage >= need) return {};
  if (usage > kUnlimitedV1 - need)
    return make_error(Code::invalid_argument, usage_file + ": no room in the counter");
  saved.push_back({file, *text});
  if (note) ICEBOX_TRY(note(saved));
  return write_control_file(file, std::to_string(usage + need)).context("raise the memory limit");
}

// The file with the usage that belongs to a limit file; empty for a file that is none.
std::string usage_file_of(const std::string& file) {
  const auto slash = file.rfind('/');
  const std::string name = file.substr(slash + 1);
  const auto in = [&](const auto& limits) -> std::string {
    for (const auto& names : limits) {
      if (name == names.limit) return file.substr(0, slash + 1) + names.usage;
    }
    return {};
  };
  const std::string v1 = in(kLimitsV1);
  return v1.empty() ? in(kLimitsV2) : v1;
}

// One attempt to put a limit back. v2 kills inside the cgroup when memory.max is set below what
// cannot be reclaimed, so there the excess is reclaimed first and the limit left alone while it
// does not fit; v1 refuses by itself (EBUSY).
Result<void> restore_one(const SavedLimit& limit) {
  const auto wanted = ICEBOX_TRY(parse_limit(limit.value).context(limit.file));
  if (limit.file.ends_with("/memory.max") && wanted != kUnlimited) {
    const std::string directory = limit.file.substr(0, limit.file.rfind('/'));
    auto usage = ICEBOX_TRY(read_bytes(directory + "/memory.current"));
    if (usage > wanted) {
      // Whether less could be reclaimed (EAGAIN) or the file is missing (before Linux 5.19): the
      // usage decides.
      static_cast<void>(
          write_control_file(directory + "/memory.reclaim", std::to_string(usage - wanted)).ok());
      usage = ICEBOX_TRY(read_bytes(directory + "/memory.current"));
      if (usage > wanted) return errno_error(limit.file, EBUSY);
    }
  }
  return write_control_file(limit.file, limit.value);
}

Error not_restored(const SavedLimit& limit, const Error& cause) {
  const std::string usage_file = usage_file_of(limit.file);
  const auto usage = read_value(usage_file);
  return Error{cause.code,
               "memory limit " + limit.file + " could not be put back to " + limit.value +
                   " (usage " + (usage.ok() ? *usage : std::string("unknown")) +
                   "): " + cause.message,
               cause.sys_errno};
}

// Puts back what can be put back; keeps the rest in `left` and returns the first failure.
std::optional<Error> restore_round(std::vector<SavedLimit>& left) {
  std::optional<Error> first;
  std::vector<SavedLimit> again;
  for (const auto& limit : left) {
    const auto done = restore_one(limit);
    if (done.ok() || gone(done.error())) continue;
    if (!first) first = not_restored(limit, done.error());
    again.push_back(limit);
  }
  left = std::move(again);
  return first;
}

}  // namespace

Result<std::vector<SavedLimit>> Cgroup::raise_memory_limit(std::uint64_t extra,
                                                           const NoteLimits& note) const {
  std::vector<SavedLimit> saved;
  if (extra == 0) return saved;
  const auto available = ICEBOX_TRY(host_memory_available());
  if (available < extra) {
    return make_error(Code::resource_exhausted,
                      "the host has " + human_bytes(available) + " of memory available and " +
                          human_bytes(extra) + " are needed: free memory or move the container");
  }
  const std::uint64_t need = extra + extra / kPageTableShare + kChargeBatches;
  ScopeGuard undo([&] { static_cast<void>(restore_limits(saved).ok()); });
  std::string directory = memory_;
  // Up to the root: it has cgroup.procs too, but no limit that could be too low.
  while (!directory.empty() && exists(directory + "/cgroup.procs")) {
    if (unified_) {
      for (const auto& names : kLimitsV2)
        ICEBOX_TRY(raise_one(directory, names, need, saved, note));
    } else {
      for (const auto& names : kLimitsV1)
        ICEBOX_TRY(raise_one(directory, names, need, saved, note));
    }
    directory.erase(directory.rfind('/'));
  }
  undo.dismiss();
  return saved;
}

Result<void> Cgroup::restore_limits(const std::vector<SavedLimit>& saved) {
  std::vector<SavedLimit> left(saved.rbegin(), saved.rend());
  for (int attempt = 1;; ++attempt) {
    const std::size_t before = left.size();
    const auto failed = restore_round(left);
    if (!failed) return {};
    if (left.size() < before)
      continue;  // memsw goes back only after the limit, in whatever order they were given
    if (attempt >= kRestoreAttempts) return *failed;
    const struct timespec pause = {0, kRestorePauseNs};
    ::nanosleep(&pause, nullptr);
  }
}

}  // namespace icebox::container
