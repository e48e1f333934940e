// SPDX-License-Identifier: Apache-2.0
#include "shim/runtime/process_spec.h"

#include <nlohmann/json.hpp>

namespace icebox::shim {

Result<std::string> with_terminal(std::string_view json, bool terminal) {
  nlohmann::json spec = nlohmann::json::parse(json.begin(), json.end(), nullptr, false);
  if (!spec.is_object()) {
    return make_error(Code::invalid_argument, "the process of the exec is not a JSON object");
  }
  spec["terminal"] = terminal;
  // Invalid UTF-8 in an argument is passed on replaced, as Go does, instead of thrown at.
  return spec.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace icebox::shim
