// SPDX-License-Identifier: Apache-2.0
#include "shim/task/exit_record.h"

#include <vector>

#include "oci/base/strings.h"

namespace icebox::shim {
namespace {

constexpr std::int64_t kNanosPerSecond = 1'000'000'000;

}  // namespace

std::string format_exit(const ExitInfo& exit) {
  const std::int64_t nanos =
      std::chrono::duration_cast<std::chrono::nanoseconds>(exit.at.time_since_epoch()).count();
  return std::to_string(exit.pid) + " " + std::to_string(exit.status) + " " +
         std::to_string(nanos / kNanosPerSecond) + " " + std::to_string(nanos % kNanosPerSecond) +
         "\n";
}

Result<ExitInfo> parse_exit(std::string_view text) {
  const std::vector<std::string_view> words = split(trim(text), ' ', SplitEmpty::drop);
  if (words.size() != 4) return make_error(Code::invalid_argument, "malformed exit record");
  const std::int64_t pid = ICEBOX_TRY(parse_i64(words[0]));
  const std::uint64_t status = ICEBOX_TRY(parse_u64(words[1]));
  const std::int64_t seconds = ICEBOX_TRY(parse_i64(words[2]));
  const std::int64_t nanos = ICEBOX_TRY(parse_i64(words[3]));
  ExitInfo exit;
  exit.pid = static_cast<pid_t>(pid);
  exit.status = static_cast<unsigned>(status);
  exit.at = std::chrono::system_clock::time_point(
      std::chrono::nanoseconds(seconds * kNanosPerSecond + nanos));
  return exit;
}

}  // namespace icebox::shim
