// SPDX-License-Identifier: Apache-2.0
#include "oci/base/file.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <cstdlib>
#include <memory>

#include "oci/base/scope_guard.h"
#include "oci/base/strings.h"

namespace icebox {
namespace {

std::string parent_of(const std::string& path) {
  const auto slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

struct DirCloser {
  void operator()(DIR* dir) const { ::closedir(dir); }
};
using Directory = std::unique_ptr<DIR, DirCloser>;

// Removes everything below `dir_fd`, which lies on device `device`. Takes ownership of dir_fd.
Result<void> remove_children(UniqueFd dir_fd, const std::string& path, dev_t device) {
  Directory dir(::fdopendir(dir_fd.get()));
  if (!dir) return errno_error(path);
  const int fd = dir_fd.release();  // owned by `dir` now
  for (;;) {
    errno = 0;
    const struct dirent* entry = ::readdir(dir.get());
    if (entry == nullptr) {
      if (errno != 0) return errno_error(path);
      return {};
    }
    const std::string name = entry->d_name;
    if (name == "." || name == "..") continue;
    const std::string child = path + "/" + name;
    struct stat info = {};
    if (::fstatat(fd, name.c_str(), &info, AT_SYMLINK_NOFOLLOW) != 0) {
      if (errno == ENOENT) continue;
      return errno_error(child);
    }
    if (info.st_dev != device) {
      return make_error(Code::failed_precondition, child + " is a mount point: not removed");
    }
    if (!S_ISDIR(info.st_mode)) {
      if (::unlinkat(fd, name.c_str(), 0) != 0 && errno != ENOENT) return errno_error(child);
      continue;
    }
    UniqueFd sub(::openat(fd, name.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    if (!sub) return errno_error(child);
    ICEBOX_TRY(remove_children(std::move(sub), child, device));
    if (::unlinkat(fd, name.c_str(), AT_REMOVEDIR) != 0 && errno != ENOENT)
      return errno_error(child);
  }
}

}  // namespace

Result<UniqueFd> open_file(const std::string& path, int flags, mode_t mode) {
  for (;;) {
    UniqueFd fd(::open(path.c_str(), flags | O_CLOEXEC, mode));
    if (fd) return fd;
    if (errno != EINTR) return errno_error(path);
  }
}

Result<std::string> read_all(int fd, std::size_t max_bytes) {
  std::string data;
  char buffer[16384];
  for (;;) {
    const ssize_t n = ::read(fd, buffer, sizeof buffer);
    if (n < 0) {
      if (errno == EINTR) continue;
      return errno_error("read");
    }
    if (n == 0) return data;
    data.append(buffer, static_cast<std::size_t>(n));
    if (data.size() > max_bytes) {
      return make_error(Code::resource_exhausted,
                        "longer than " + std::to_string(max_bytes) + " bytes");
    }
  }
}

Result<std::string> read_file(const std::string& path, std::size_t max_bytes) {
  // Non-blocking: a pipe of that name, which nobody writes to, must not hold us up.
  const auto fd = ICEBOX_TRY(open_file(path, O_RDONLY | O_NONBLOCK));
  return read_all(fd.get(), max_bytes).context(path);
}

Result<void> write_all(int fd, std::string_view data) {
  while (!data.empty()) {
    const ssize_t n = ::write(fd, data.data(), data.size());
    if (n < 0) {
      if (errno == EINTR) continue;
      return errno_error("write");
    }
    data.remove_prefix(static_cast<std::size_t>(n));
  }
  return {};
}

Result<void> write_control_file(const std::string& path, std::string_view data) {
  const auto fd = ICEBOX_TRY(open_file(path, O_WRONLY));
  for (;;) {
    const ssize_t n = ::write(fd.get(), data.data(), data.size());
    if (n == static_cast<ssize_t>(data.size())) return {};
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return errno_error(path);
    return make_error(Code::unknown, path + ": short write");
  }
}

Result<void> sync_path(const std::string& path) {
  const auto fd = ICEBOX_TRY(open_file(path, O_RDONLY));
  if (::fsync(fd.get()) != 0) return errno_error(path);
  return {};
}

Result<void> write_file_atomic(const std::string& path, std::string_view data, mode_t mode,
                               Durable durable) {
  const std::string temporary = path + ".tmp" + std::to_string(::getpid());
  auto fd = ICEBOX_TRY(open_file(temporary, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW, mode));
  ScopeGuard cleanup([&] { ::unlink(temporary.c_str()); });
  ICEBOX_TRY(write_all(fd.get(), data).context(temporary));
  if (durable == Durable::yes && ::fsync(fd.get()) != 0) return errno_error(temporary);
  if (::close(fd.release()) != 0) return errno_error(temporary);
  if (::rename(temporary.c_str(), path.c_str()) != 0) return errno_error(path);
  cleanup.dismiss();
  if (durable == Durable::yes) ICEBOX_TRY(sync_path(parent_of(path)));
  return {};
}

Result<void> make_directories(const std::string& path, mode_t mode) {
  std::size_t at = 0;
  while (at != std::string::npos) {
    at = path.find('/', at + 1);
    const std::string part = path.substr(0, at);
    if (::mkdir(part.c_str(), mode) != 0 && errno != EEXIST) return errno_error(part);
  }
  struct stat info = {};
  if (::stat(path.c_str(), &info) != 0) return errno_error(path);
  if (!S_ISDIR(info.st_mode)) return errno_error(path, ENOTDIR);
  return {};
}

Result<std::vector<std::string>> list_directory(const std::string& path) {
  Directory dir(::opendir(path.c_str()));
  if (!dir) return errno_error(path);
  std::vector<std::string> names;
  for (;;) {
    errno = 0;
    const struct dirent* entry = ::readdir(dir.get());
    if (entry == nullptr) break;
    const std::string name = entry->d_name;
    if (name != "." && name != "..") names.push_back(name);
  }
  if (errno != 0) return errno_error(path);
  std::sort(names.begin(), names.end());
  return names;
}

Result<void> remove_tree(const std::string& path) {
  struct stat info = {};
  if (::lstat(path.c_str(), &info) != 0) {
    if (errno == ENOENT) return {};
    return errno_error(path);
  }
  if (!S_ISDIR(info.st_mode)) {
    if (::unlink(path.c_str()) != 0 && errno != ENOENT) return errno_error(path);
    return {};
  }
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!fd) return errno_error(path);
  ICEBOX_TRY(remove_children(std::move(fd), path, info.st_dev));
  if (::rmdir(path.c_str()) != 0 && errno != ENOENT) return errno_error(path);
  return {};
}

bool exists(const std::string& path) { return ::access(path.c_str(), F_OK) == 0; }

std::string absolute_path(const std::string& path) {
  if (path.starts_with("/")) return path;
  std::array<char, PATH_MAX> buffer;
  // Fails only for a removed working directory, where a relative path leads nowhere either.
  if (::getcwd(buffer.data(), buffer.size()) == nullptr) return path;
  return std::string(buffer.data()) + "/" + path;
}

Result<std::string> read_link(const std::string& path) {
  char buffer[PATH_MAX];
  const ssize_t n = ::readlink(path.c_str(), buffer, sizeof buffer);
  if (n < 0) return errno_error(path);
  return std::string(buffer, static_cast<std::size_t>(n));
}

Result<std::string> own_directory() { return parent_of(ICEBOX_TRY(read_link("/proc/self/exe"))); }

Result<std::string> find_program(const std::string& name) {
  if (name.find('/') != std::string::npos) {
    if (::access(name.c_str(), X_OK) == 0) return name;
    return errno_error(name);
  }
  const char* path = std::getenv("PATH");
  const std::string search =
      path != nullptr ? path : "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
  for (const auto folder : split(search, ':', SplitEmpty::drop)) {
    std::string candidate = std::string(folder) + "/" + name;
    struct stat info = {};
    if (::stat(candidate.c_str(), &info) == 0 && S_ISREG(info.st_mode) &&
        ::access(candidate.c_str(), X_OK) == 0) {
      return candidate;
    }
  }
  return make_error(Code::not_found, name + " was not found in PATH (" + search + ")");
}

}  // namespace icebox
