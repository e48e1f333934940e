// SPDX-License-Identifier: Apache-2.0
#include "runtime-hooks/container/mounts.h"

#include <sys/mount.h>
#include <sys/sysmacros.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdlib>
#include <utility>

#include "oci/base/file.h"
#include "oci/base/strings.h"

namespace icebox::container {
namespace {

// A node with thousands of containers has tens of thousands of mounts, a few hundred bytes each.
constexpr std::size_t kMaxMountinfo = 64 * 1024 * 1024;

// Links resolved where the path exists: the kernel reports mount points without them (/var/run is a
// link to /run).
std::string canonical(const std::string& path) {
  char resolved[PATH_MAX];
  if (::realpath(path.c_str(), resolved) != nullptr) return resolved;
  std::string text = path;
  while (text.size() > 1 && text.back() == '/') text.pop_back();
  return text;
}

bool is_at_or_below(std::string_view path, std::string_view directory) {
  if (directory == "/") return true;
  if (!path.starts_with(directory)) return false;
  return path.size() == directory.size() || path[directory.size()] == '/';
}

// The kernel writes space, tab, newline and backslash as a backslash and three octal digits.
std::string decode_octal(std::string_view text) {
  std::string out;
  const auto digit = [&](std::size_t at) { return text[at] >= '0' && text[at] <= '7'; };
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\\' && i + 3 < text.size() && digit(i + 1) && digit(i + 2) && digit(i + 3)) {
      const int value = (text[i + 1] - '0') * 64 + (text[i + 2] - '0') * 8 + (text[i + 3] - '0');
      out += static_cast<char>(value);
      i += 3;
    } else {
      out += text[i];
    }
  }
  return out;
}

}  // namespace

std::vector<Mount> parse_mountinfo(std::string_view text) {
  std::vector<Mount> mounts;
  for (const auto line : split(text, '\n', SplitEmpty::drop)) {
    // 36 35 98:0 /root /mount/point rw,noatime shared:1 - ext3 /dev/root rw,errors=continue
    const auto fields = split(line, ' ', SplitEmpty::keep);
    const auto dash = std::find(fields.begin(), fields.end(), "-");
    if (dash - fields.begin() < 6 || fields.end() - dash < 4) continue;
    const auto numbers = split(fields[2], ':', SplitEmpty::keep);
    if (numbers.size() != 2) continue;
    const auto major_number = parse_u64(numbers[0]);
    const auto minor_number = parse_u64(numbers[1]);
    if (!major_number.ok() || !minor_number.ok()) continue;
    Mount mount;
    mount.device =
        makedev(static_cast<unsigned>(*major_number), static_cast<unsigned>(*minor_number));
    mount.root = decode_octal(fields[3]);
    mount.point = decode_octal(fields[4]);
    mount.type = std::string(dash[1]);
    mount.super_options = std::string(dash[3]);
    mounts.push_back(std::move(mount));
  }
  return mounts;
}

Result<std::vector<Mount>> read_mounts() {
  return parse_mountinfo(ICEBOX_TRY(read_file("/proc/self/mountinfo", kMaxMountinfo)));
}

Result<std::vector<std::string>> mounts_below(const std::string& directory) {
  const std::string top = canonical(directory);
  std::vector<std::string> points;
  for (auto& mount : ICEBOX_TRY(read_mounts())) {
    if (is_at_or_below(mount.point, top)) points.push_back(std::move(mount.point));
  }
  // Mounts are listed in the order of mounting, so the last of several on one point is the one on
  // top.
  std::reverse(points.begin(), points.end());
  const auto depth = [](const std::string& path) {
    return std::count(path.begin(), path.end(), '/');
  };
  std::stable_sort(points.begin(), points.end(),
                   [&](const auto& a, const auto& b) { return depth(a) > depth(b); });
  return points;
}

Result<void> unmount_below(const std::string& directory) {
  auto points = ICEBOX_TRY(mounts_below(directory));
  // A bind of a shared mount is its peer: an unmount below it would also unmount below the
  // original.
  for (const auto& point : points) ::mount(nullptr, point.c_str(), nullptr, MS_PRIVATE, nullptr);
  // A mount over a directory hides those below it until it is gone itself: as many rounds as there
  // is progress.
  while (!points.empty()) {
    const std::size_t before = points.size();
    int err = 0;
    std::string failed;
    for (const auto& point : points) {
      if (::umount2(point.c_str(), UMOUNT_NOFOLLOW) == 0) continue;
      if (::umount2(point.c_str(), UMOUNT_NOFOLLOW | MNT_DETACH) == 0) continue;
      if (failed.empty()) {
        err = errno;
        failed = point;
      }
    }
    points = ICEBOX_TRY(mounts_below(directory));
    if (points.size() >= before) return errno_error("unmount " + failed, err);
  }
  return {};
}

}  // namespace icebox::container
