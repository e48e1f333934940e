// SPDX-License-Identifier: Apache-2.0
#include "shim/runtime/options.h"

#include <gtest/gtest.h>

#include "containerd/linux_runc.pb.h"
#include "containerd/runc_options.pb.h"

namespace icebox::shim {
namespace {

template <typename Message>
google::protobuf::Any pack(const std::string& type, const Message& message) {
  google::protobuf::Any any;
  any.set_type_url(type);
  any.set_value(message.SerializeAsString());
  return any;
}

TEST(RuntimeOptions, AbsentEmptyAndUnknownMeanDefaults) {
  google::protobuf::Any any;
  EXPECT_TRUE(decode_runtime_options(any).ok());
  any.set_type_url("containerd.runc.v1.Options");
  EXPECT_TRUE(decode_runtime_options(any).ok());
  any.set_type_url("someone.elses.Options");
  any.set_value("\x01\x02");
  EXPECT_EQ(decode_runtime_options(any)->root, "");
}

TEST(RuntimeOptions, RuncOptionsByNameWithOrWithoutPrefix) {
  containerd::runc::v1::Options message;
  message.set_binary_name("crun");
  message.set_root("/r");
  message.set_systemd_cgroup(true);
  message.set_io_uid(7);
  message.set_criu_image_path("/i");
  for (const char* type :
       {"containerd.runc.v1.Options", "types.containerd.io/containerd.runc.v1.Options"}) {
    const Result<RuntimeOptions> options = decode_runtime_options(pack(type, message));
    ASSERT_TRUE(options.ok());
    EXPECT_EQ(options->binary_name, "crun");
    EXPECT_EQ(options->root, "/r");
    EXPECT_TRUE(options->systemd_cgroup);
    EXPECT_EQ(options->io_uid, 7U);
    EXPECT_EQ(options->criu_image_path, "/i");
  }
  google::protobuf::Any broken;
  broken.set_type_url("containerd.runc.v1.Options");
  broken.set_value("\xff\xff");
  EXPECT_EQ(decode_runtime_options(broken).error().code, Code::invalid_argument);
}

TEST(RuntimeOptions, Legacy) {
  containerd::linux::runc::CreateOptions message;
  message.set_no_pivot_root(true);
  message.set_criu_work_path("/w");
  const Result<RuntimeOptions> options =
      decode_runtime_options(pack("containerd.linux.runc.CreateOptions", message));
  EXPECT_TRUE(options->no_pivot_root);
  EXPECT_EQ(options->criu_work_path, "/w");
}

TEST(CheckpointOptions, NoneMeansLeaveRunning) {
  const Result<CheckpointOptions> options = decode_checkpoint_options({});
  ASSERT_TRUE(options.ok());
  EXPECT_FALSE(options->args.exit);
  EXPECT_EQ(options->image_path, "");
}

// The legacy message has the numbers of the two paths swapped.
TEST(CheckpointOptions, BothMessagesAgree) {
  containerd::runc::v1::CheckpointOptions now;
  now.set_exit(true);
  now.set_image_path("/i");
  now.set_work_path("/w");
  containerd::linux::runc::CheckpointOptions legacy;
  legacy.set_exit(true);
  legacy.set_image_path("/i");
  legacy.set_work_path("/w");
  for (const google::protobuf::Any& any :
       {pack("containerd.runc.v1.CheckpointOptions", now),
        pack("containerd.linux.runc.CheckpointOptions", legacy)}) {
    const Result<CheckpointOptions> options = decode_checkpoint_options(any);
    ASSERT_TRUE(options.ok());
    EXPECT_TRUE(options->args.exit);
    EXPECT_EQ(options->image_path, "/i");
    EXPECT_EQ(options->args.work_path, "/w");
  }
}

TEST(OptionsJson, ComesBackAndLooksLikeTheStockShims) {
  RuntimeOptions options;
  options.root = "/r \"x\"";
  options.binary_name = "runc";
  options.systemd_cgroup = true;
  options.io_gid = 5;
  const std::string json = options_to_json(options);
  EXPECT_EQ(json, R"({"io_gid":5,"binary_name":"runc","root":"/r \"x\"","systemd_cgroup":true})");
  const Result<RuntimeOptions> back = options_from_json(json);
  ASSERT_TRUE(back.ok());
  EXPECT_EQ(back->root, options.root);
  EXPECT_TRUE(back->systemd_cgroup);
  EXPECT_EQ(back->io_gid, 5U);
  EXPECT_EQ(options_to_json({}), "{}");
  EXPECT_FALSE(options_from_json("{\"root\":").ok());
}

}  // namespace
}  // namespace icebox::shim
