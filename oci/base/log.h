// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>

namespace icebox::log {

enum class Level { debug, info, warn, error };
// text: logfmt as containerd's logrus writes it (time="..." level=info msg="..." key=value).
// json: one object a line with "level", "msg", "time", as runc's --log-format json.
enum class Format { text, json };

using Field = std::pair<std::string_view, std::string>;
using Fields = std::initializer_list<Field>;

// Where lines go. The fd is borrowed and must outlive the log; default is fd 2, text, info. A full
// pipe drops the line (the fd should be non-blocking where a reader may stall) and the next line
// that fits says how many were lost. Call before threads start.
void set_sink(int fd, Format format);
void set_level(Level level);
bool enabled(Level level);

// Writes one line with one write(2). Thread-safe. Never fails and, with a non-blocking fd, never
// blocks.
void write(Level level, std::string_view message, Fields fields = {});
inline void debug(std::string_view message, Fields fields = {}) {
  write(Level::debug, message, fields);
}
inline void info(std::string_view message, Fields fields = {}) {
  write(Level::info, message, fields);
}
inline void warn(std::string_view message, Fields fields = {}) {
  write(Level::warn, message, fields);
}
inline void error(std::string_view message, Fields fields = {}) {
  write(Level::error, message, fields);
}

// `text` quoted for JSON (quotes included); invalid UTF-8 bytes become U+FFFD.
std::string json_quote(std::string_view text);

// Now, as RFC 3339 in UTC with milliseconds.
std::string timestamp();

}  // namespace icebox::log
