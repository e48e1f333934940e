// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

namespace icebox::shim {

// The msg of the last error-level (or fatal, panic) entry in `lines`, a log in the format of runc's
// --log-format json: one object a line. Lines that are not JSON objects (a line cut by a crash) are
// skipped. "" if there is none. Pure.
[[nodiscard]] std::string last_error_message(std::string_view lines);

// The text that a failed command is reported with: the log's last error, else the end of what it
// wrote on stderr, else nothing. One line, at most 2 KiB. Pure.
[[nodiscard]] std::string failure_text(std::string_view log_lines, std::string_view err);

}  // namespace icebox::shim
