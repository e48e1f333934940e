// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "oci/base/result.h"

// The only place where the project's error codes and gRPC's numbers meet.
namespace icebox::shim::ttrpc {

// google.rpc.Code of an error; never 0.
std::int32_t to_rpc(Code code);

// The Error behind a status with a non-zero code. Numbers without a counterpart become
// Code::unknown.
Error from_rpc(std::int32_t rpc_code, std::string message);

}  // namespace icebox::shim::ttrpc
