// SPDX-License-Identifier: Apache-2.0
#include "shim/ttrpc/status.h"

#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace icebox::shim::ttrpc {
namespace {

TEST(Status, CodesAreThoseOfGrpc) {
  const std::vector<std::pair<Code, int>> table = {
      {Code::cancelled, 1},          {Code::unknown, 2},
      {Code::invalid_argument, 3},   {Code::deadline_exceeded, 4},
      {Code::not_found, 5},          {Code::already_exists, 6},
      {Code::resource_exhausted, 8}, {Code::failed_precondition, 9},
      {Code::unimplemented, 12},     {Code::unavailable, 14}};
  for (const auto& [code, number] : table) {
    EXPECT_EQ(to_rpc(code), number) << to_string(code);
    const Error error = from_rpc(number, "text");
    EXPECT_EQ(error.code, code);
    EXPECT_EQ(error.message, "text");
  }
}

TEST(Status, OtherNumbersAreUnknown) {
  for (const int number : {7, 10, 11, 13, 15, 16, 17, -1, 1 << 30}) {
    EXPECT_EQ(from_rpc(number, "").code, Code::unknown) << number;
  }
}

}  // namespace
}  // namespace icebox::shim::ttrpc
