// SPDX-License-Identifier: Apache-2.0
#include "oci/base/log.h"

#include <sys/time.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <ctime>

namespace icebox::log {
namespace {

std::atomic<int> sink_fd{2};
std::atomic<Format> sink_format{Format::text};
std::atomic<Level> sink_level{Level::info};
std::atomic<unsigned> dropped{0};

std::string_view level_name(Level level) {
  switch (level) {
    case Level::debug: return "debug";
    case Level::info: return "info";
    case Level::warn: return "warning";
    case Level::error: return "error";
  }
  return "info";
}

// Length of the valid UTF-8 sequence at the start of `text`, 0 when invalid.
std::size_t utf8_length(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(0);
  std::size_t length = 0;
  if (first < 0x80) return 1;
  if (first >= 0xC2 && first <= 0xDF) length = 2;
  if (first >= 0xE0 && first <= 0xEF) length = 3;
  if (first >= 0xF0 && first <= 0xF4) length = 4;
  if (length == 0 || text.size() < length) return 0;
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return 0;
  }
  if (first == 0xE0 && byte(1) < 0xA0) return 0;
  if (first == 0xED && byte(1) > 0x9F) return 0;
  if (first == 0xF0 && byte(1) < 0x90) return 0;
  if (first == 0xF4 && byte(1) > 0x8F) return 0;
  return length;
}

bool needs_quotes(std::string_view text) {
  if (text.empty()) return true;
  for (const char c : text) {
    if (c <= ' ' || c == '"' || c == '=' || c == '\\' || static_cast<unsigned char>(c) >= 0x7f)
      return true;
  }
  return false;
}

std::string format_line(Level level, std::string_view message, Fields fields) {
  std::string line;
  if (sink_format.load() == Format::json) {
    line = "{\"level\":\"" + std::string(level_name(level)) + "\",\"msg\":" + json_quote(message) +
           ",\"time\":\"" + timestamp() + "\"";
    for (const auto& [key, value] : fields) line += "," + json_quote(key) + ":" + json_quote(value);
    line += "}\n";
    return line;
  }
  line = "time=\"" + timestamp() + "\" level=" + std::string(level_name(level)) +
         " msg=" + json_quote(message);
  for (const auto& [key, value] : fields) {
    line += " " + std::string(key) + "=" + (needs_quotes(value) ? json_quote(value) : value);
  }
  line += "\n";
  return line;
}

}  // namespace

void set_sink(int fd, Format format) {
  sink_fd = fd;
  sink_format = format;
}
void set_level(Level level) { sink_level = level; }
bool enabled(Level level) { return level >= sink_level.load(); }

void write(Level level, std::string_view message, Fields fields) {
  if (!enabled(level)) return;
  const int saved_errno = errno;
  std::string line;
  const unsigned lost = dropped.exchange(0);
  if (lost > 0)
    line = format_line(Level::warn, std::to_string(lost) + " log lines were dropped", {});
  line += format_line(level, message, fields);
  ssize_t n = -1;
  do {
    n = ::write(sink_fd.load(), line.data(), line.size());
  } while (n < 0 && errno == EINTR);
  if (n < 0) dropped += lost + 1;
  errno = saved_errno;
}

std::string json_quote(std::string_view text) {
  std::string out = "\"";
  while (!text.empty()) {
    const std::size_t length = utf8_length(text);
    const char c = text[0];
    if (length == 0) {
      out += "\xEF\xBF\xBD";
      text.remove_prefix(1);
      continue;
    }
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\t') {
      out += "\\t";
    } else if (static_cast<unsigned char>(c) < 0x20) {
      char buffer[8];
      std::snprintf(buffer, sizeof buffer, "\\u%04x",
                    static_cast<unsigned>(static_cast<unsigned char>(c)));
      out += buffer;
    } else {
      out += text.substr(0, length);
    }
    text.remove_prefix(length);
  }
  out += '"';
  return out;
}

std::string timestamp() {
  struct timeval now = {};
  ::gettimeofday(&now, nullptr);
  struct tm parts = {};
  ::gmtime_r(&now.tv_sec, &parts);
  char buffer[64];
  const std::size_t n = std::strftime(buffer, sizeof buffer, "%Y-%m-%dT%H:%M:%S", &parts);
  std::snprintf(buffer + n, sizeof buffer - n, ".%03dZ", static_cast<int>(now.tv_usec / 1000));
  return buffer;
}

}  // namespace icebox::log
