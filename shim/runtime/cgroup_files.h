// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace icebox::shim {

// Readers of the few formats that cgroup files come in. Missing files and unreadable values count
// as absent, never as an error: which files exist depends on kernel and configuration.

// One number; "max" is 2^64-1; 0 if absent.
[[nodiscard]] std::uint64_t read_cgroup_value(const std::string& path);

// The whole text, "" if absent.
[[nodiscard]] std::string read_cgroup_text(const std::string& path);

using CgroupTable = std::map<std::string, std::uint64_t, std::less<>>;

// Lines "key value" (memory.stat, cpu.stat, memory.events). Pure.
[[nodiscard]] CgroupTable parse_cgroup_table(std::string_view text);

// Value of `key`, 0 if absent.
[[nodiscard]] std::uint64_t value_in(const CgroupTable& table, std::string_view key);

// Lines "<name> key=value key=value" (io.stat, *.pressure, rdma.current). Values stay text. Pure.
struct CgroupRow {
  std::string name;
  std::map<std::string, std::string, std::less<>> values;
};
[[nodiscard]] std::vector<CgroupRow> parse_cgroup_rows(std::string_view text);

// Page sizes of the hugetlb controller as they stand in file names ("2MB", "1GB"), from names like
// hugetlb.2MB.<suffix>.
[[nodiscard]] std::vector<std::string> hugetlb_sizes(const std::string& directory,
                                                     std::string_view suffix);

}  // namespace icebox::shim
