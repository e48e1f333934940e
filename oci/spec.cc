// SPDX-License-Identifier: Apache-2.0
#include "oci/spec.h"

#include <nlohmann/json.hpp>

#include "oci/base/strings.h"

namespace icebox {
namespace {

const Json* find_path(const Json& spec, std::initializer_list<const char*> keys) {
  const Json* at = &spec;
  for (const char* key : keys) {
    at = json_find(*at, key);
    if (at == nullptr) return nullptr;
  }
  return at;
}

std::optional<std::int64_t> positive(const Json* value) {
  if (value == nullptr || !value->is_number_integer()) return std::nullopt;
  const auto number = value->get<std::int64_t>();
  if (number <= 0) return std::nullopt;
  return number;
}

bool raise_limit(Json& memory, const char* key, std::uint64_t extra) {
  const auto limit = positive(json_find(memory, key));
  if (!limit) return false;
  memory[key] = *limit + static_cast<std::int64_t>(extra);
  return true;
}

}  // namespace

std::string spec_cgroups_path(const Json& spec) {
  const Json* path = find_path(spec, {"linux", "cgroupsPath"});
  if (path == nullptr || !path->is_string()) return {};
  return *path->get_ptr<const std::string*>();
}

Result<void> set_spec_cgroups_path(Json& spec, const std::string& path) {
  if (find_path(spec, {"linux"}) == nullptr || !spec["linux"].is_object()) {
    return make_error(Code::invalid_argument, "the OCI spec has no linux section");
  }
  spec["linux"]["cgroupsPath"] = path;
  return {};
}

std::optional<std::string> rewritten_cgroups_path(const std::string& spec_path,
                                                  const std::string& checkpointed_path,
                                                  const std::string& old_id,
                                                  const std::string& new_id) {
  if (spec_path.empty() || spec_path != checkpointed_path || old_id == new_id) return std::nullopt;
  const auto cut = spec_path.find_last_of("/:");
  const std::string last = cut == std::string::npos ? spec_path : spec_path.substr(cut + 1);
  const std::string parent = cut == std::string::npos ? "" : spec_path.substr(0, cut + 1);
  if (last == old_id) return parent + new_id;
  // Some other naming scheme of the caller: keep its parent, never share its last part.
  return parent + last + "-" + new_id;
}

std::string unified_cgroup_path(const std::string& cgroups_path) {
  if (cgroups_path.starts_with("/")) return cgroups_path;
  const auto parts = split(cgroups_path, ':', SplitEmpty::keep);
  if (parts.size() != 3) return {};
  std::string slice(parts[0].empty() ? std::string_view("system.slice") : parts[0]);
  if (!slice.ends_with(".slice")) return {};
  // systemd.slice(5): "a-b.slice" lies in "a.slice"; "-.slice" is the root.
  std::string path;
  slice.resize(slice.size() - std::string_view(".slice").size());
  if (slice != "-") {
    for (auto dash = slice.find('-'); dash != std::string::npos; dash = slice.find('-', dash + 1)) {
      path += "/" + slice.substr(0, dash) + ".slice";
    }
    path += "/" + slice + ".slice";
  }
  const std::string prefix(parts[1]);
  return path + "/" + (prefix.empty() ? "" : prefix + "-") + std::string(parts[2]) + ".scope";
}

SpecMemory spec_memory(const Json& spec) {
  SpecMemory result;
  const Json* memory = find_path(spec, {"linux", "resources", "memory"});
  if (memory == nullptr) return result;
  result.limit = positive(json_find(*memory, "limit"));
  result.swap = positive(json_find(*memory, "swap"));
  return result;
}

bool raise_spec_memory(Json& spec, std::uint64_t extra) {
  if (find_path(spec, {"linux", "resources", "memory"}) == nullptr) return false;
  Json& memory = spec["linux"]["resources"]["memory"];
  if (!memory.is_object()) return false;
  const bool limit = raise_limit(memory, "limit", extra);
  const bool swap = raise_limit(memory, "swap", extra);
  return limit || swap;
}

}  // namespace icebox
