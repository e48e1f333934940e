// SPDX-License-Identifier: Apache-2.0
#include "shim/bootstrap/start_input.h"

#include <gtest/gtest.h>

#include "containerd/bootstrap.pb.h"
#include "containerd/runc_options.pb.h"

namespace icebox::shim {
namespace {

namespace bootstrap = containerd::runtime::bootstrap::v1;

google::protobuf::Any options_any() {
  containerd::runc::v1::Options options;
  options.set_shim_cgroup("/shims");
  google::protobuf::Any any;
  any.set_type_url("containerd.runc.v1.Options");
  any.set_value(options.SerializeAsString());
  return any;
}

TEST(StartInput, NothingMeansDefaults) {
  const Result<StartInput> input = decode_start_input("", "id", "ns");
  ASSERT_TRUE(input.ok());
  EXPECT_EQ(input->socket_dir, kDefaultSocketDir);
  EXPECT_EQ(input->options.shim_cgroup, "");
}

TEST(StartInput, AnyOfContainerdBefore23) {
  const Result<StartInput> input =
      decode_start_input(options_any().SerializeAsString(), "id", "ns");
  ASSERT_TRUE(input.ok());
  EXPECT_EQ(input->options.shim_cgroup, "/shims");
}

TEST(StartInput, BootstrapParams) {
  bootstrap::BootstrapParams params;
  params.set_instance_id("id");
  params.set_namespace_("ns");
  params.set_socket_dir("/elsewhere");
  params.set_log_level(bootstrap::LOG_LEVEL_DEBUG);
  *params.add_extensions()->mutable_value() = options_any();
  const Result<StartInput> input = decode_start_input(params.SerializeAsString(), "id", "ns");
  ASSERT_TRUE(input.ok());
  EXPECT_EQ(input->socket_dir, "/elsewhere");
  EXPECT_EQ(input->options.shim_cgroup, "/shims");
  EXPECT_TRUE(input->debug);
}

// An Any parses as BootstrapParams with the type for an id; only the real ids tell.
TEST(StartInput, ParamsOfAnotherTaskAreNotParams) {
  bootstrap::BootstrapParams params;
  params.set_instance_id("other");
  params.set_namespace_("ns");
  params.set_socket_dir("/elsewhere");
  const Result<StartInput> input = decode_start_input(params.SerializeAsString(), "id", "ns");
  EXPECT_TRUE(!input.ok() || input->socket_dir == kDefaultSocketDir);
}

TEST(StartInput, RefusesBytesThatAreNeither) {
  EXPECT_FALSE(decode_start_input("\xff\xff\xff", "id", "ns").ok());
}

}  // namespace
}  // namespace icebox::shim
