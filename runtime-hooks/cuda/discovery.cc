// SPDX-License-Identifier: Apache-2.0
#include "runtime-hooks/cuda/discovery.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "oci/base/file.h"
#include "oci/base/strings.h"

namespace icebox::cuda {
namespace {

constexpr unsigned kNvidiaMajor = 195;  // fixed: Documentation/admin-guide/devices.txt
constexpr std::size_t kSmallFile = 64 * 1024;
// A process may have millions of mappings (vm.max_map_count), some 100 bytes each.
constexpr std::size_t kMapsLimit = 512UL << 20;
constexpr std::size_t kCommandLineLimit = 256;

std::string_view base_name(std::string_view path) {
  const auto slash = path.rfind('/');
  return slash == std::string_view::npos ? path : path.substr(slash + 1);
}

// What is needed of /proc/PID/stat (proc(5)).
struct Stat {
  std::string comm;
  char state = '?';
  pid_t parent = 0;
  std::uint64_t threads = 0;
  std::uint64_t start_time = 0;
};

Result<Stat> read_stat(const std::string& directory) {
  const std::string path = directory + "/stat";
  const std::string text = ICEBOX_TRY(read_file(path, kSmallFile));
  // The name may hold spaces and parentheses: it ends at the last ')'.
  const auto open = text.find('(');
  const auto close = text.rfind(')');
  if (open == std::string::npos || close == std::string::npos || close < open) {
    return make_error(Code::unknown, path + " is not readable as proc(5) describes it");
  }
  // fields[0] is field 3 of proc(5).
  const auto fields = split(trim(std::string_view(text).substr(close + 1)), ' ', SplitEmpty::drop);
  constexpr std::size_t kFirst = 3;
  constexpr std::size_t kStartTime = 22;
  if (fields.size() <= kStartTime - kFirst) {
    return make_error(Code::unknown, path + " has too few fields");
  }
  Stat stat;
  stat.comm = text.substr(open + 1, close - open - 1);
  stat.state = fields[0].front();
  stat.parent = static_cast<pid_t>(ICEBOX_TRY(parse_u64(fields[4 - kFirst])));
  stat.threads = ICEBOX_TRY(parse_u64(fields[20 - kFirst]));
  stat.start_time = ICEBOX_TRY(parse_u64(fields[kStartTime - kFirst]));
  return stat;
}

bool is_dead(const Stat& stat) { return stat.state == 'Z' || stat.state == 'X'; }

// The /proc folder that shows the descriptors and mappings of a process. Where the first thread has
// exited while others live on, the process looks like a zombie and only its threads' folders tell
// the truth. nullopt: the process is dead.
Result<std::optional<std::string>> living_directory(const std::string& directory,
                                                    const Stat& stat) {
  if (!is_dead(stat)) return std::optional(directory);
  if (stat.threads <= 1) return std::optional<std::string>();
  const auto threads = list_directory(directory + "/task");
  if (!threads.ok()) {
    if (threads.error().code == Code::not_found) return std::optional<std::string>();
    return threads.error();
  }
  for (const std::string& thread : *threads) {
    std::string candidate = directory + "/task/" + thread;
    const auto thread_stat = read_stat(candidate);
    if (thread_stat.ok() && !is_dead(*thread_stat)) return std::optional(std::move(candidate));
  }
  return std::optional<std::string>();
}

// The first bytes of a file; empty if there is none.
std::string read_prefix(const std::string& path, std::size_t size) {
  const auto fd = open_file(path, O_RDONLY);
  if (!fd.ok()) return {};
  std::string text(size, '\0');
  const ssize_t got = ::read(fd->get(), text.data(), text.size());
  text.resize(got > 0 ? static_cast<std::size_t>(got) : 0);
  return text;
}

std::string command_line_of(const std::string& directory, const std::string& comm) {
  std::string text = read_prefix(directory + "/cmdline", kCommandLineLimit + 1);
  const bool cut = text.size() > kCommandLineLimit;
  if (cut) text.resize(kCommandLineLimit - 3);
  while (!text.empty() && text.back() == '\0') text.pop_back();
  for (char& c : text) {
    if (c == '\0') c = ' ';
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
  }
  if (text.empty()) return "[" + comm + "]";
  return cut ? text + "..." : text;
}

// stat of what a /proc link leads to, without asking a network file system: a dead server must not
// block the look at a process.
std::optional<struct statx> device_behind(const std::string& link) {
  struct statx status = {};
  if (::statx(AT_FDCWD, link.c_str(), AT_STATX_DONT_SYNC | AT_NO_AUTOMOUNT, STATX_TYPE, &status) !=
      0) {
    return std::nullopt;
  }
  return status;
}

bool is_unsupported_device(std::string_view path) {
  const std::string_view name = base_name(path);
  return path.find("/infiniband/") != std::string_view::npos || name.starts_with("gdrdrv") ||
         name.starts_with("nvidia-fs");
}

void add_once(std::vector<std::string>& list, std::string_view path) {
  if (std::find(list.begin(), list.end(), path) == list.end()) list.emplace_back(path);
}

Result<void> read_fds(const std::string& directory, const NvidiaMajors& majors, GpuUse& use) {
  const std::string folder = directory + "/fd";
  const auto names = ICEBOX_TRY(list_directory(folder));
  for (const std::string& name : names) {
    const std::string link = folder + "/" + name;
    const auto path = read_link(link);
    if (!path.ok()) {
      if (path.error().code == Code::not_found) continue;  // closed meanwhile
      return path.error();
    }
    if (!path->starts_with('/')) continue;  // socket:, pipe:, anon_inode:
    const auto status = device_behind(link);
    if (!status || !S_ISCHR(status->stx_mode)) continue;
    if (is_unsupported_device(*path)) add_once(use.unsupported_devices, *path);
    if (!base_name(*path).starts_with("nvidia") && !majors.contains(status->stx_rdev_major))
      continue;
    const auto number = ICEBOX_TRY(parse_u64(name));
    use.nvidia_fds.push_back(
        {static_cast<int>(number), *path, status->stx_rdev_major, status->stx_rdev_minor});
  }
  return {};
}

// Whether the file behind a mapping is a character device. `range` is the first word of the maps
// line. Where the kernel does not let us look (map_files needs privileges), its place under /dev
// decides.
bool is_device_mapping(const std::string& directory, std::string_view range,
                       std::string_view path) {
  // Names in map_files have no leading zeros, addresses in maps are padded to eight digits.
  std::string name;
  for (const std::string_view address : split(range, '-', SplitEmpty::keep)) {
    const auto digit = address.find_first_not_of('0');
    if (!name.empty()) name += '-';
    name += digit == std::string_view::npos ? std::string_view("0") : address.substr(digit);
  }
  const auto status = device_behind(directory + "/map_files/" + name);
  if (status) return S_ISCHR(status->stx_mode);
  return path.starts_with("/dev/");
}

Result<void> read_maps(const std::string& directory, GpuUse& use) {
  const std::string text = ICEBOX_TRY(read_file(directory + "/maps", kMapsLimit));
  std::set<std::string_view> seen;
  for (const std::string_view line : split(text, '\n', SplitEmpty::drop)) {
    const auto slash = line.find('/');
    if (slash == std::string_view::npos) continue;
    const std::string_view path = line.substr(slash);
    if (!seen.insert(path).second) continue;
    const std::string_view name = base_name(path);
    if (name.starts_with("libcuda.so")) use.libcuda = path;
    if (name.starts_with("libnvidia-ml.so")) use.nvml = true;
    if (is_unsupported_device(path)) add_once(use.unsupported_devices, path);
    if (!name.starts_with("nvidia")) continue;
    if (is_device_mapping(directory, line.substr(0, line.find(' ')), path)) {
      add_once(use.nvidia_mappings, path);
    }
  }
  return {};
}

GpuUse gone_process(pid_t pid) {
  GpuUse use;
  use.process.pid = pid;
  use.gone = true;
  return use;
}

// Looks at a process that is there. not_found: it ended meanwhile.
Result<GpuUse> inspect_living(pid_t pid, const std::string& directory, const NvidiaMajors& majors) {
  const Stat stat = ICEBOX_TRY(read_stat(directory));
  const auto living = ICEBOX_TRY(living_directory(directory, stat));
  if (!living) return gone_process(pid);
  GpuUse use;
  use.process = {pid, stat.start_time};
  use.parent = stat.parent;
  use.command_line = command_line_of(*living, stat.comm);
  ICEBOX_TRY(read_fds(*living, majors, use));
  ICEBOX_TRY(read_maps(*living, use));
  // A process that was ending showed fewer descriptors and mappings than it had: only one that is
  // still there, and still the same, has been seen whole.
  const Stat again = ICEBOX_TRY(read_stat(*living));
  if (is_dead(again)) return make_error(Code::not_found, "the process ended meanwhile");
  const Stat leader = ICEBOX_TRY(read_stat(directory));
  if (leader.start_time != stat.start_time) return gone_process(pid);
  return use;
}

}  // namespace

bool NvidiaMajors::contains(unsigned major) const {
  return std::find(majors.begin(), majors.end(), major) != majors.end();
}

Result<NvidiaMajors> read_nvidia_majors(const std::string& proc_root) {
  const std::string text = ICEBOX_TRY(read_file(proc_root + "/devices", kSmallFile));
  NvidiaMajors result;
  result.majors.push_back(kNvidiaMajor);
  bool characters = false;
  for (std::string_view line : split(text, '\n', SplitEmpty::drop)) {
    line = trim(line);
    if (line.ends_with(':')) characters = line == "Character devices:";
    const auto space = line.find(' ');
    if (!characters || space == std::string_view::npos) continue;
    const auto major = parse_u64(line.substr(0, space));
    if (!major.ok() || !trim(line.substr(space)).starts_with("nvidia")) continue;
    if (!result.contains(static_cast<unsigned>(*major))) {
      result.majors.push_back(static_cast<unsigned>(*major));
    }
  }
  return result;
}

Result<GpuUse> inspect_process(pid_t pid, const NvidiaMajors& majors,
                               const std::string& proc_root) {
  const std::string directory = proc_root + "/" + std::to_string(pid);
  // A process whose first thread exits while it is read must be read again, through another thread.
  constexpr int kAttempts = 3;
  for (int attempt = 1;; ++attempt) {
    auto use = inspect_living(pid, directory, majors);
    if (use.ok()) return use;
    if (use.error().code != Code::not_found) {
      return use.error().context("cannot see whether process " + std::to_string(pid) +
                                 " uses a GPU");
    }
    const auto stat = read_stat(directory);
    const bool threads_left = stat.ok() && (!is_dead(*stat) || stat->threads > 1);
    if (!threads_left) return gone_process(pid);
    if (attempt == kAttempts) {
      return use.error().context("cannot see whether process " + std::to_string(pid) +
                                 " uses a GPU");
    }
  }
}

}  // namespace icebox::cuda
