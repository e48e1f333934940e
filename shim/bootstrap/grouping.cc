// SPDX-License-Identifier: Apache-2.0
#include "shim/bootstrap/grouping.h"

#include <algorithm>
#include <cstddef>
#include <vector>

#include "shim/bootstrap/sha256.h"

namespace icebox::shim {

std::string grouping_key(const BundleConfig& config, std::string_view id) {
  if (!config.shim_group.empty()) return config.shim_group;
  if (!config.cri_sandbox_id.empty()) return config.cri_sandbox_id;
  return std::string(id);
}

std::string go_path_join(std::string_view a, std::string_view b, std::string_view c) {
  std::string joined;
  for (const std::string_view part : {a, b, c}) {
    if (part.empty()) continue;
    if (!joined.empty()) joined += '/';
    joined += part;
  }
  if (joined.empty()) return joined;

  const bool rooted = joined.front() == '/';
  std::vector<std::string_view> kept;
  const std::string_view all = joined;
  for (std::size_t begin = 0; begin <= all.size();) {
    const std::size_t end = std::min(all.find('/', begin), all.size());
    const std::string_view part = all.substr(begin, end - begin);
    begin = end + 1;
    if (part.empty() || part == ".") continue;
    if (part == "..") {
      if (!kept.empty() && kept.back() != "..") {
        kept.pop_back();
        continue;
      }
      if (rooted) continue;
    }
    kept.push_back(part);
  }
  std::string cleaned = rooted ? "/" : "";
  for (std::size_t i = 0; i < kept.size(); ++i) {
    if (i > 0) cleaned += '/';
    cleaned += kept[i];
  }
  return cleaned.empty() ? "." : cleaned;
}

std::string socket_path(std::string_view dir, std::string_view address, std::string_view ns,
                        std::string_view key) {
  std::string path(dir);
  path += '/';
  path += sha256_hex(go_path_join(address, ns, key));
  return path;
}

}  // namespace icebox::shim
