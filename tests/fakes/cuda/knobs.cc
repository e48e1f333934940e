// SPDX-License-Identifier: Apache-2.0
#include "tests/fakes/cuda/knobs.h"

#include <fcntl.h>
#include <unistd.h>

#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string_view>

namespace icebox::sim {
namespace {

constexpr std::size_t kMaxFile = 4096;

bool parse_int(std::string_view text, int& out) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  return error == std::errc() && end == text.data() + text.size();
}

/// The troubles that each operation knows, so that "lock=die" is an error and not ignored.
bool allowed(std::string_view operation, Trouble trouble) {
  switch (trouble) {
    case Trouble::none: return false;
    case Trouble::error:
    case Trouble::slow: return true;
    case Trouble::hang: return operation != "unlock";
    case Trouble::busy:
    case Trouble::crash: return operation == "lock";
    case Trouble::die:
    case Trouble::die_hang:
    case Trouble::needs_threads: return operation == "checkpoint" || operation == "restore";
    case Trouble::then_failed: return operation == "checkpoint";
    case Trouble::oom_sticky: return operation == "restore";
  }
  return false;
}

Trouble trouble_of(std::string_view word) {
  if (word == "busy") return Trouble::busy;
  if (word == "hang") return Trouble::hang;
  if (word == "needs_threads") return Trouble::needs_threads;
  if (word == "crash") return Trouble::crash;
  if (word == "die") return Trouble::die;
  if (word == "die_hang") return Trouble::die_hang;
  if (word == "then_failed") return Trouble::then_failed;
  if (word == "oom_sticky") return Trouble::oom_sticky;
  return Trouble::none;
}

bool parse_knob(std::string_view operation, std::string_view value, Knob& knob) {
  if (value.substr(0, 5) == "slow:") {
    knob.trouble = Trouble::slow;
    return parse_int(value.substr(5), knob.value) && knob.value >= 0;
  }
  if (parse_int(value, knob.value)) {
    knob.trouble = Trouble::error;
    return knob.value > 0;
  }
  knob.trouble = trouble_of(value);
  return allowed(operation, knob.trouble);
}

bool parse_line(std::string_view line, Knobs& knobs) {
  const auto equals = line.find('=');
  if (equals == std::string_view::npos) return false;
  const std::string_view key = line.substr(0, equals);
  const std::string_view value = line.substr(equals + 1);
  if (key == "lock") return parse_knob(key, value, knobs.lock);
  if (key == "checkpoint") return parse_knob(key, value, knobs.checkpoint);
  if (key == "restore") return parse_knob(key, value, knobs.restore);
  if (key == "unlock") return parse_knob(key, value, knobs.unlock);
  if (key == "state") return parse_int(value, knobs.state) && knobs.state >= 0;
  if (key == "leave_fd") {
    knobs.leave_fd = value == "1";
    return value == "0" || value == "1";
  }
  if (key == "log" && value.size() < sizeof knobs.log) {
    std::memcpy(knobs.log, value.data(), value.size());
    knobs.log[value.size()] = '\0';
    return true;
  }
  return false;
}

[[noreturn]] void refuse(const char* path, const char* why, std::size_t size) {
  char message[512];
  const int length =
      std::snprintf(message, sizeof message, "simulated CUDA driver: knob file %s: %.*s\n", path,
                    static_cast<int>(size < 100 ? size : 100), why);
  if (length > 0) (void)!::write(2, message, std::strlen(message));
  std::abort();
}

}  // namespace

const char* parse_knobs(const char* text, std::size_t size, Knobs& knobs) {
  std::string_view rest(text, size);
  while (!rest.empty()) {
    const auto end = rest.find('\n');
    const std::string_view line = rest.substr(0, end);
    rest.remove_prefix(end == std::string_view::npos ? rest.size() : end + 1);
    if (line.empty() || line.front() == '#') continue;
    if (!parse_line(line, knobs)) return line.data();
  }
  return nullptr;
}

Knobs read_knobs(const char* path) {
  Knobs knobs;
  if (path[0] == '\0') return knobs;
  const int fd = ::open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return knobs;
  char text[kMaxFile];
  std::size_t size = 0;
  for (ssize_t got; size < kMaxFile && (got = ::read(fd, text + size, kMaxFile - size)) > 0;)
    size += static_cast<std::size_t>(got);
  ::close(fd);
  if (size == kMaxFile) refuse(path, "is too long", 11);
  if (const char* bad = parse_knobs(text, size, knobs); bad != nullptr) {
    const char* end = static_cast<const char*>(
        std::memchr(bad, '\n', static_cast<std::size_t>(text + size - bad)));
    refuse(path, bad, static_cast<std::size_t>((end != nullptr ? end : text + size) - bad));
  }
  return knobs;
}

}  // namespace icebox::sim
