// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "oci/base/result.h"
#include "oci/base/unique_fd.h"

namespace icebox {

// Opens `path` with O_CLOEXEC added to `flags` (EINTR retried). Error names the path.
Result<UniqueFd> open_file(const std::string& path, int flags, mode_t mode = 0);

// The whole content of a file (also of /proc and cgroup files). Fails with resource_exhausted when
// it is longer than `max_bytes`. Blocks on disk only.
Result<std::string> read_file(const std::string& path, std::size_t max_bytes);

// Reads until end of file or `max_bytes`. Fails with resource_exhausted when there is more.
Result<std::string> read_all(int fd, std::size_t max_bytes);

// Writes all of `data`, retrying short writes and EINTR.
Result<void> write_all(int fd, std::string_view data);

// Writes `data` to an existing file in one write(2) without creating or truncating: for cgroup and
// /proc files, whose kernel side sees each write as one command.
Result<void> write_control_file(const std::string& path, std::string_view data);

enum class Durable { no, yes };

// Replaces `path` by a file holding `data`: temporary file beside it, rename(2); never a
// half-written file under the name. With Durable::yes the data and the directory are fsynced. The
// temporary file is removed on failure.
Result<void> write_file_atomic(const std::string& path, std::string_view data, mode_t mode,
                               Durable durable);

// fsync of a file or directory by path.
Result<void> sync_path(const std::string& path);

// mkdir -p. Existing directories are fine.
Result<void> make_directories(const std::string& path, mode_t mode);

// Names in a directory without "." and "..", sorted.
Result<std::vector<std::string>> list_directory(const std::string& path);

// Removes a directory tree, never following links and never crossing into another mounted file
// system (a mount below fails the call with its path: removing across it would empty somebody's
// data). A missing path is success.
Result<void> remove_tree(const std::string& path);

// Whether something exists under `path` (links are followed).
bool exists(const std::string& path);

// `path` from the root on: behind the working directory when it is relative. Nothing is resolved.
std::string absolute_path(const std::string& path);

// Target of a symbolic link.
Result<std::string> read_link(const std::string& path);

// The directory of the running program's own executable (/proc/self/exe).
Result<std::string> own_directory();

// Looks `name` up in PATH; a name with a slash is returned as it is when executable. not_found
// names both.
Result<std::string> find_program(const std::string& name);

}  // namespace icebox
