// SPDX-License-Identifier: Apache-2.0
#include <cerrno>
#include <cstring>

#include "oci/base/result.h"

namespace icebox {

Error Error::context(std::string_view prefix) const {
  return Error{code, std::string(prefix) + ": " + message, sys_errno};
}

std::string_view to_string(Code code) {
  switch (code) {
    case Code::unknown: return "unknown";
    case Code::invalid_argument: return "invalid_argument";
    case Code::not_found: return "not_found";
    case Code::already_exists: return "already_exists";
    case Code::failed_precondition: return "failed_precondition";
    case Code::deadline_exceeded: return "deadline_exceeded";
    case Code::unavailable: return "unavailable";
    case Code::unimplemented: return "unimplemented";
    case Code::resource_exhausted: return "resource_exhausted";
    case Code::cancelled: return "cancelled";
  }
  return "unknown";
}

Error make_error(Code code, std::string message) { return Error{code, std::move(message), 0}; }

Error errno_error(std::string_view what, int err) {
  Code code = Code::unknown;
  if (err == ENOENT || err == ESRCH) code = Code::not_found;
  if (err == EEXIST) code = Code::already_exists;
  char buffer[128];
  const char* text = ::strerror_r(err, buffer, sizeof buffer);
  return Error{code, std::string(what) + ": " + text, err};
}

Error errno_error(std::string_view what) { return errno_error(what, errno); }

}  // namespace icebox
