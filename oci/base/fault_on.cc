// SPDX-License-Identifier: Apache-2.0
#include <signal.h>
#include <time.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

#include "oci/base/fault.h"
#include "oci/base/file.h"
#include "oci/base/strings.h"

namespace icebox::fault {
namespace {

constexpr std::size_t kMaxFile = 64 * 1024;

void sleep_ms(std::uint64_t ms) {
  struct timespec pause = {static_cast<time_t>(ms / 1000), static_cast<long>(ms % 1000) * 1000000L};
  while (::nanosleep(&pause, &pause) != 0) {
  }
}

// The action for `point` in the fault file, empty when there is none.
std::string action_for(std::string_view point) {
  const char* path = std::getenv("ICEBOX_FAULT_FILE");
  if (path == nullptr) return {};
  const auto text = read_file(path, kMaxFile);
  if (!text.ok()) return {};
  for (const auto line : split(*text, '\n', SplitEmpty::drop)) {
    const auto words = split(line, ' ', SplitEmpty::drop);
    if (words.size() == 2 && words[0] == point) return std::string(words[1]);
  }
  return {};
}

}  // namespace

Result<void> reach(const char* point) {
  const std::string action = action_for(point);
  if (action == "fail")
    return make_error(Code::unknown, std::string("fault point ") + point + " failed on request");
  if (action == "kill") ::kill(::getpid(), SIGKILL);
  if (action.starts_with("sleep:"))
    sleep_ms(parse_u64(std::string_view(action).substr(6)).value_or(0));
  while (action == "hang" && action_for(point) == "hang") sleep_ms(20);
  return {};
}

bool skipped(const char* point) { return action_for(point) == "skip"; }

}  // namespace icebox::fault
