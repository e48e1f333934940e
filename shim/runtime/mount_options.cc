// SPDX-License-Identifier: Apache-2.0
#include "shim/runtime/mount_options.h"

#include <sys/mount.h>

#include <algorithm>
#include <optional>

#include "oci/base/strings.h"

namespace icebox::shim {
namespace {

struct FlagOption {
  std::string_view name;
  unsigned long flags;
  bool clear;
};

// fstab(5) names, as containerd's mount package knows them.
constexpr FlagOption kFlagOptions[] = {
    {"async", MS_SYNCHRONOUS, true},
    {"atime", MS_NOATIME, true},
    {"bind", MS_BIND, false},
    {"defaults", 0, false},
    {"dev", MS_NODEV, true},
    {"diratime", MS_NODIRATIME, true},
    {"dirsync", MS_DIRSYNC, false},
    {"exec", MS_NOEXEC, true},
    {"mand", MS_MANDLOCK, false},
    {"noatime", MS_NOATIME, false},
    {"nodev", MS_NODEV, false},
    {"nodiratime", MS_NODIRATIME, false},
    {"noexec", MS_NOEXEC, false},
    {"nomand", MS_MANDLOCK, true},
    {"norelatime", MS_RELATIME, true},
    {"nostrictatime", MS_STRICTATIME, true},
    {"nosuid", MS_NOSUID, false},
    {"rbind", MS_BIND | MS_REC, false},
    {"relatime", MS_RELATIME, false},
    {"remount", MS_REMOUNT, false},
    {"ro", MS_RDONLY, false},
    {"rw", MS_RDONLY, true},
    {"strictatime", MS_STRICTATIME, false},
    {"suid", MS_NOSUID, true},
    {"sync", MS_SYNCHRONOUS, false},
};

constexpr FlagOption kPropagationOptions[] = {
    {"private", MS_PRIVATE, false},       {"rprivate", MS_PRIVATE | MS_REC, false},
    {"shared", MS_SHARED, false},         {"rshared", MS_SHARED | MS_REC, false},
    {"slave", MS_SLAVE, false},           {"rslave", MS_SLAVE | MS_REC, false},
    {"unbindable", MS_UNBINDABLE, false}, {"runbindable", MS_UNBINDABLE | MS_REC, false},
};

template <std::size_t N>
const FlagOption* find(const FlagOption (&table)[N], std::string_view name) {
  const auto* found = std::find_if(std::begin(table), std::end(table),
                                   [&](const FlagOption& option) { return option.name == name; });
  return found == std::end(table) ? nullptr : found;
}

// The longest directory that all `paths` lie in, without a trailing slash; "" if there is none but
// /.
std::string common_directory(const std::vector<std::string_view>& paths) {
  std::string_view common = paths.front();
  for (const std::string_view path : paths) {
    const auto [end, unused] =
        std::mismatch(common.begin(), common.end(), path.begin(), path.end());
    common = common.substr(0, static_cast<std::size_t>(end - common.begin()));
  }
  const std::size_t slash = common.rfind('/');
  return std::string(common.substr(0, slash == std::string_view::npos ? 0 : slash));
}

// Rewrites the lowerdir option inside `options` relative to `chdir`, which is returned; nullopt if
// that is impossible (no lowerdir, relative entries, nothing in common).
std::optional<std::string> shorten_lowerdir(std::vector<std::string>& options) {
  constexpr std::string_view kLower = "lowerdir=";
  for (std::string& option : options) {
    if (!option.starts_with(kLower)) continue;
    const std::vector<std::string_view> layers =
        split(std::string_view(option).substr(kLower.size()), ':', SplitEmpty::keep);
    const std::string chdir = common_directory(layers);
    if (chdir.empty() || chdir.front() != '/') return std::nullopt;
    std::vector<std::string> relative;
    for (const std::string_view layer : layers) {
      relative.emplace_back(layer.substr(chdir.size() + 1));
    }
    option = std::string(kLower) + join(relative, ":");
    return chdir;
  }
  return std::nullopt;
}

}  // namespace

Result<MountCall> plan_mount(const RootfsMount& mount, std::size_t page_size) {
  MountCall call;
  std::vector<std::string> data;
  for (const std::string& option : mount.options) {
    if (const FlagOption* flag = find(kFlagOptions, option)) {
      call.flags = flag->clear ? call.flags & ~flag->flags : call.flags | flag->flags;
    } else if (const FlagOption* propagation = find(kPropagationOptions, option)) {
      call.propagation = propagation->flags;
    } else if (option == "loop") {
      return make_error(Code::invalid_argument,
                        "mount option \"loop\" of " + mount.source +
                            " is not supported: use a snapshotter that mounts images itself");
    } else if (option.starts_with("uidmap=") || option.starts_with("gidmap=")) {
      return make_error(Code::invalid_argument,
                        "id-mapped mount of " + mount.source +
                            " is not supported: use a snapshotter that remaps ids itself");
    } else {
      data.push_back(option);
    }
  }
  call.data = join(data, ",");
  // mount(2) copies at most one page, the terminating zero included.
  if (call.data.size() + 1 > page_size && mount.type == "overlay") {
    if (std::optional<std::string> chdir = shorten_lowerdir(data)) {
      call.chdir = *std::move(chdir);
      call.data = join(data, ",");
    }
  }
  if (call.data.size() + 1 > page_size) {
    return make_error(Code::invalid_argument,
                      "mount options of " + mount.source + " (" + mount.type + ") have " +
                          std::to_string(call.data.size()) + " bytes, the kernel takes " +
                          std::to_string(page_size - 1) + ": the image has too many layers");
  }
  return call;
}

}  // namespace icebox::shim
