// SPDX-License-Identifier: Apache-2.0
#include "shim/runtime/cgroup_files.h"

#include <cstddef>
#include <limits>

#include "oci/base/file.h"
#include "oci/base/strings.h"

namespace icebox::shim {
namespace {

constexpr std::size_t kMaxBytes = 1UL << 20;

}  // namespace

std::string read_cgroup_text(const std::string& path) {
  return read_file(path, kMaxBytes).value_or("");
}

std::uint64_t read_cgroup_value(const std::string& path) {
  const std::string text = read_cgroup_text(path);
  if (trim(text) == "max") return std::numeric_limits<std::uint64_t>::max();
  return parse_u64(trim(text)).value_or(0);
}

CgroupTable parse_cgroup_table(std::string_view text) {
  CgroupTable table;
  for (const std::string_view line : split(text, '\n', SplitEmpty::drop)) {
    const std::size_t space = line.find(' ');
    if (space == std::string_view::npos) continue;
    const Result<std::uint64_t> value = parse_u64(trim(line.substr(space + 1)));
    if (value.ok()) table.emplace(line.substr(0, space), *value);
  }
  return table;
}

std::uint64_t value_in(const CgroupTable& table, std::string_view key) {
  const auto found = table.find(key);
  return found == table.end() ? 0 : found->second;
}

std::vector<CgroupRow> parse_cgroup_rows(std::string_view text) {
  std::vector<CgroupRow> rows;
  for (const std::string_view line : split(text, '\n', SplitEmpty::drop)) {
    const std::vector<std::string_view> words = split(line, ' ', SplitEmpty::drop);
    if (words.empty()) continue;
    CgroupRow row;
    row.name = std::string(words.front());
    for (std::size_t i = 1; i < words.size(); ++i) {
      const std::size_t equals = words[i].find('=');
      if (equals == std::string_view::npos) continue;
      row.values.emplace(words[i].substr(0, equals), words[i].substr(equals + 1));
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

std::vector<std::string> hugetlb_sizes(const std::string& directory, std::string_view suffix) {
  constexpr std::string_view kPrefix = "hugetlb.";
  std::vector<std::string> sizes;
  const Result<std::vector<std::string>> names = list_directory(directory);
  if (!names.ok()) return sizes;
  for (const std::string& name : *names) {
    std::string_view middle = name;
    if (!middle.starts_with(kPrefix) || !middle.ends_with(suffix)) continue;
    middle.remove_prefix(kPrefix.size());
    middle.remove_suffix(suffix.size());
    // "2MB" of hugetlb.2MB.max, not "2MB.rsvd" of hugetlb.2MB.rsvd.max.
    if (middle.find('.') == std::string_view::npos) sizes.emplace_back(middle);
  }
  return sizes;
}

}  // namespace icebox::shim
