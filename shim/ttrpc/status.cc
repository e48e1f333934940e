// SPDX-License-Identifier: Apache-2.0
#include "shim/ttrpc/status.h"

#include <utility>

namespace icebox::shim::ttrpc {
namespace {

// google/rpc/code.proto.
enum RpcCode : std::int32_t {
  rpc_cancelled = 1,
  rpc_unknown = 2,
  rpc_invalid_argument = 3,
  rpc_deadline_exceeded = 4,
  rpc_not_found = 5,
  rpc_already_exists = 6,
  rpc_resource_exhausted = 8,
  rpc_failed_precondition = 9,
  rpc_unimplemented = 12,
  rpc_unavailable = 14,
};

Code code_of(std::int32_t rpc_code) {
  switch (rpc_code) {
    case rpc_cancelled: return Code::cancelled;
    case rpc_invalid_argument: return Code::invalid_argument;
    case rpc_deadline_exceeded: return Code::deadline_exceeded;
    case rpc_not_found: return Code::not_found;
    case rpc_already_exists: return Code::already_exists;
    case rpc_resource_exhausted: return Code::resource_exhausted;
    case rpc_failed_precondition: return Code::failed_precondition;
    case rpc_unimplemented: return Code::unimplemented;
    case rpc_unavailable: return Code::unavailable;
    default: return Code::unknown;
  }
}

}  // namespace

std::int32_t to_rpc(Code code) {
  switch (code) {
    case Code::unknown: return rpc_unknown;
    case Code::invalid_argument: return rpc_invalid_argument;
    case Code::not_found: return rpc_not_found;
    case Code::already_exists: return rpc_already_exists;
    case Code::failed_precondition: return rpc_failed_precondition;
    case Code::deadline_exceeded: return rpc_deadline_exceeded;
    case Code::unavailable: return rpc_unavailable;
    case Code::unimplemented: return rpc_unimplemented;
    case Code::resource_exhausted: return rpc_resource_exhausted;
    case Code::cancelled: return rpc_cancelled;
  }
  return rpc_unknown;
}

Error from_rpc(std::int32_t rpc_code, std::string message) {
  return make_error(code_of(rpc_code), std::move(message));
}

}  // namespace icebox::shim::ttrpc
