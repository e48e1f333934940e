// SPDX-License-Identifier: Apache-2.0
#include "shim/runtime/rootfs.h"

#include <fcntl.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>

#include "oci/base/file.h"
#include "oci/base/log.h"
#include "oci/base/scope_guard.h"
#include "oci/base/strings.h"
#include "oci/base/unique_fd.h"

namespace icebox::shim {
namespace {

constexpr std::size_t kMaxMountinfoBytes = 32UL << 20;

// "\040" and the like, which the kernel writes for space, tab, newline and backslash.
std::string unescape_octal(std::string_view text) {
  std::string plain;
  plain.reserve(text.size());
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto is_octal = [&](std::size_t at) { return text[at] >= '0' && text[at] <= '7'; };
    if (text[i] == '\\' && i + 3 < text.size() && is_octal(i + 1) && is_octal(i + 2) &&
        is_octal(i + 3)) {
      plain.push_back(static_cast<char>((text[i + 1] - '0') * 64 + (text[i + 2] - '0') * 8 +
                                        (text[i + 3] - '0')));
      i += 3;
    } else {
      plain.push_back(text[i]);
    }
  }
  return plain;
}

// mount(2), from `chdir` if the call needs relative paths.
Result<void> mount_in(const MountCall& call, const std::string& source, const std::string& target,
                      const std::string& type) {
  UniqueFd old_cwd;
  const ScopeGuard back([&] {
    // The bundle always exists while its shim runs; a failure here could only be reported.
    if (old_cwd && ::fchdir(old_cwd.get()) != 0) log::error("cannot return to the bundle");
  });
  if (!call.chdir.empty()) {
    old_cwd = ICEBOX_TRY(open_file(".", O_RDONLY | O_DIRECTORY));
    if (::chdir(call.chdir.c_str()) != 0) return errno_error("cannot enter " + call.chdir);
  }
  if (::mount(source.c_str(), target.c_str(), type.c_str(), call.flags,
              call.data.empty() ? nullptr : call.data.c_str()) != 0) {
    return errno_error("cannot mount " + source + " (" + type + ") on " + target);
  }
  return {};
}

Result<void> mount_one(const RootfsMount& mount, const std::string& target, std::size_t page_size) {
  const MountCall call = ICEBOX_TRY(plan_mount(mount, page_size));
  // A remount without data only exists to change the propagation type or to add flags below.
  if ((call.flags & MS_REMOUNT) == 0 || !call.data.empty()) {
    ICEBOX_TRY(mount_in(call, mount.source, target, mount.type));
  }
  if (call.propagation != 0 && ::mount("", target.c_str(), "", call.propagation, nullptr) != 0) {
    return errno_error("cannot change the propagation of " + target);
  }
  // MS_BIND ignores every other flag in the first call: read-only takes a second one.
  constexpr unsigned long kReadOnlyBind = MS_BIND | MS_RDONLY;
  if ((call.flags & kReadOnlyBind) == kReadOnlyBind &&
      ::mount("", target.c_str(), "", call.flags | MS_REMOUNT, nullptr) != 0) {
    return errno_error("cannot make " + target + " read-only");
  }
  return {};
}

// A relative path without "..": `target` comes from a client and must not leave the rootfs.
Result<std::string> target_path(const std::string& rootfs, const std::string& target) {
  for (const std::string_view part : split(target, '/', SplitEmpty::drop)) {
    if (part == "..") {
      return make_error(Code::invalid_argument, "mount target " + target + " leaves the rootfs");
    }
  }
  return target.empty() ? rootfs : rootfs + "/" + target;
}

}  // namespace

std::vector<std::string> mount_points_under(std::string_view mountinfo, std::string_view path) {
  std::vector<std::string> points;
  for (const std::string_view line : split(mountinfo, '\n', SplitEmpty::drop)) {
    // proc_pid_mountinfo(5): id, parent, major:minor, root, mount point, ...
    const std::vector<std::string_view> fields = split(line, ' ', SplitEmpty::drop);
    if (fields.size() < 5) continue;
    std::string point = unescape_octal(fields[4]);
    const bool under = point.size() > path.size() && point.starts_with(path) &&
                       (path.ends_with('/') || point[path.size()] == '/');
    if (point == path || under) points.push_back(std::move(point));
  }
  return points;
}

Result<void> mount_rootfs(const std::vector<RootfsMount>& mounts, const std::string& rootfs) {
  const long page = ::sysconf(_SC_PAGESIZE);
  std::vector<std::string> done;
  for (const RootfsMount& mount : mounts) {
    Result<std::string> target = target_path(rootfs, mount.target);
    Result<void> mounted = target.ok() ? mount_one(mount, *target, static_cast<std::size_t>(page))
                                       : Result<void>(target.error());
    if (!mounted.ok()) {
      // The failed entry itself may be mounted already (its remount failed).
      if (target.ok()) done.push_back(*target);
      for (auto point = done.rbegin(); point != done.rend(); ++point) {
        if (::umount2(point->c_str(), UMOUNT_NOFOLLOW | MNT_DETACH) != 0 && errno != EINVAL) {
          log::warn("cannot undo the mount", {{"path", *point}});
        }
      }
      return mounted;
    }
    done.push_back(*target);
  }
  return {};
}

Result<void> unmount_tree(const std::string& path) {
  const std::string mountinfo = ICEBOX_TRY(read_file("/proc/self/mountinfo", kMaxMountinfoBytes));
  std::vector<std::string> points = mount_points_under(mountinfo, path);
  std::reverse(points.begin(), points.end());
  for (const std::string& point : points) {
    if (::umount2(point.c_str(), UMOUNT_NOFOLLOW) == 0) continue;
    // EINVAL: not a mount any more, it went with another one. ENOENT: as is its directory.
    if (errno == EINVAL || errno == ENOENT) continue;
    if (errno == EBUSY && ::umount2(point.c_str(), UMOUNT_NOFOLLOW | MNT_DETACH) == 0) {
      log::info("detached a busy mount", {{"path", point}});
      continue;
    }
    return errno_error("cannot unmount " + point);
  }
  return {};
}

}  // namespace icebox::shim
