// SPDX-License-Identifier: Apache-2.0
#include "shim/task/temp_checkpoint.h"

#include <algorithm>
#include <cstdlib>

namespace icebox::shim {
namespace {

std::string_view without_trailing_slashes(std::string_view path) {
  while (path.size() > 1 && path.ends_with('/')) path.remove_suffix(1);
  return path;
}

bool is_generated_name(std::string_view name) {
  for (const std::string_view prefix : {"ctrd-checkpoint", "ctd-checkpoint"}) {
    if (!name.starts_with(prefix)) continue;
    const std::string_view rest = name.substr(prefix.size());
    return !rest.empty() && std::all_of(rest.begin(), rest.end(),
                                        [](char each) { return each >= '0' && each <= '9'; });
  }
  return false;
}

}  // namespace

bool is_temporary_checkpoint(std::string_view path, std::string_view user_path,
                             const std::vector<std::string>& temp_dirs) {
  path = without_trailing_slashes(path);
  if (path == without_trailing_slashes(user_path)) return false;
  const std::size_t slash = path.rfind('/');
  if (slash == std::string_view::npos || !is_generated_name(path.substr(slash + 1))) return false;
  const std::string_view parent = slash == 0 ? path.substr(0, 1) : path.substr(0, slash);
  return std::any_of(temp_dirs.begin(), temp_dirs.end(), [&](const std::string& directory) {
    return without_trailing_slashes(directory) == parent;
  });
}

std::vector<std::string> temporary_directories() {
  std::vector<std::string> directories;
  for (const char* name : {"XDG_RUNTIME_DIR", "TMPDIR"}) {
    const char* value = ::getenv(name);
    if (value != nullptr && *value != '\0') directories.emplace_back(value);
  }
  directories.emplace_back("/tmp");
  return directories;
}

}  // namespace icebox::shim
