// SPDX-License-Identifier: Apache-2.0
// What other programs rely on in the messages: names inside Any, field numbers, equality of Task v2
// and v3.
#include <string>

#include <gtest/gtest.h>

#include "cgroups/v1.pb.h"
#include "cgroups/v2.pb.h"
#include "containerd/bootstrap.pb.h"
#include "containerd/events.pb.h"
#include "containerd/events_service.pb.h"
#include "containerd/linux_runc.pb.h"
#include "containerd/runc_options.pb.h"
#include "containerd/runtimeoptions.pb.h"
#include "containerd/task_v2.pb.h"
#include "containerd/task_v3.pb.h"
#include "containerd/types.pb.h"

namespace icebox::shim {
namespace {

TEST(Proto, NamesThatTravelInAny) {
  EXPECT_EQ(containerd::runc::v1::Options().GetTypeName(), "containerd.runc.v1.Options");
  EXPECT_EQ(containerd::runc::v1::CheckpointOptions().GetTypeName(),
            "containerd.runc.v1.CheckpointOptions");
  EXPECT_EQ(containerd::runc::v1::ProcessDetails().GetTypeName(),
            "containerd.runc.v1.ProcessDetails");
  EXPECT_EQ(containerd::linux::runc::CreateOptions().GetTypeName(),
            "containerd.linux.runc.CreateOptions");
  EXPECT_EQ(runtimeoptions::v1::Options().GetTypeName(), "runtimeoptions.v1.Options");
  EXPECT_EQ(containerd::events::TaskExit().GetTypeName(), "containerd.events.TaskExit");
  EXPECT_EQ(containerd::events::TaskOOM().GetTypeName(), "containerd.events.TaskOOM");
  EXPECT_EQ(io::containerd::cgroups::v1::Metrics().GetTypeName(),
            "io.containerd.cgroups.v1.Metrics");
  EXPECT_EQ(io::containerd::cgroups::v2::Metrics().GetTypeName(),
            "io.containerd.cgroups.v2.Metrics");
  EXPECT_EQ(containerd::types::RuntimeInfo().GetTypeName(), "containerd.types.RuntimeInfo");
  EXPECT_EQ(containerd::runtime::bootstrap::v1::BootstrapParams().GetTypeName(),
            "containerd.runtime.bootstrap.v1.BootstrapParams");
  EXPECT_EQ(containerd::services::events::ttrpc::v1::ForwardRequest().GetTypeName(),
            "containerd.services.events.ttrpc.v1.ForwardRequest");
  EXPECT_EQ(containerd::task::v2::StateRequest().GetTypeName(), "containerd.task.v2.StateRequest");
  EXPECT_EQ(containerd::task::v3::StateRequest().GetTypeName(), "containerd.task.v3.StateRequest");
}

TEST(Proto, TaskV3IsTaskV2ByteForByte) {
  containerd::task::v3::CreateTaskRequest v3;
  v3.set_id("id");
  v3.set_bundle("bundle");
  auto* mount = v3.add_rootfs();
  mount->set_type("overlay");
  mount->set_target("sub");
  mount->add_options("ro");
  v3.set_terminal(true);
  v3.set_stdin("in");
  v3.set_stdout("out");
  v3.set_stderr("err");
  v3.set_checkpoint("checkpoint");
  v3.set_parent_checkpoint("parent");
  v3.mutable_options()->set_type_url("containerd.runc.v1.Options");
  containerd::task::v2::CreateTaskRequest v2;
  ASSERT_TRUE(v2.ParseFromString(v3.SerializeAsString()));
  EXPECT_EQ(v2.parent_checkpoint(), "parent");
  EXPECT_EQ(v2.rootfs(0).target(), "sub");
  EXPECT_EQ(v2.SerializeAsString(), v3.SerializeAsString());
}

TEST(Proto, ObservedBytes) {
  // The answer to Connect, and Go's zero time, as the stock shim sends them.
  containerd::task::v2::ConnectResponse connect;
  connect.set_shim_pid(3780);
  connect.set_task_pid(3803);
  EXPECT_EQ(connect.SerializeAsString(), "\x08\xc4\x1d\x10\xdb\x1d");
  google::protobuf::Timestamp zero;
  zero.set_seconds(-62135596800);
  EXPECT_EQ(zero.SerializeAsString(), "\x08\x80\x92\xb8\xc3\x98\xfe\xff\xff\xff\x01");
}

// Field numbers that a wrong order in our files would swap without any other test noticing.
TEST(Proto, FieldNumbersThatAreEasyToGetWrong) {
  containerd::runc::v1::CheckpointOptions now;
  now.set_image_path("i");
  now.set_work_path("w");
  EXPECT_EQ(now.SerializeAsString(), "\x42\x01i\x4a\x01w");  // 8, 9
  containerd::linux::runc::CheckpointOptions then;
  then.set_image_path("i");
  then.set_work_path("w");
  EXPECT_EQ(then.SerializeAsString(), "\x42\x01w\x4a\x01i");  // the other way round
  containerd::events::TaskDelete deleted;
  deleted.set_id("x");
  EXPECT_EQ(deleted.SerializeAsString(), "\x2a\x01x");  // 5
  containerd::runtime::bootstrap::v1::BootstrapParams params;
  params.set_socket_dir("d");
  EXPECT_EQ(params.SerializeAsString(),
            "\x4a\x01"
            "d");  // 9
  params.Clear();
  params.set_log_level(containerd::runtime::bootstrap::v1::LOG_LEVEL_TRACE);
  EXPECT_EQ(params.SerializeAsString(), "\x18\xf8\xff\xff\xff\xff\xff\xff\xff\xff\x01");  // 3: -8
  io::containerd::cgroups::v1::Metrics v1;
  v1.mutable_memory_oom_control()->set_oom_kill(1);
  v1.mutable_memory()->mutable_usage()->set_usage(2);
  EXPECT_EQ(v1.SerializeAsString(), "\x22\x05\x8a\x02\x02\x10\x02\x4a\x02\x18\x01");  // 4.33.2, 9.3
  io::containerd::cgroups::v2::Metrics v2;
  v2.mutable_memory()->set_inactive_file(1);
  v2.mutable_memory()->set_usage(2);
  v2.mutable_memory_events()->set_oom_kill(3);
  EXPECT_EQ(v2.SerializeAsString(),
            "\x22\x05\x68\x01\x80\x02\x02\x42\x02\x28\x03");  // 4.13, 4.32, 8.5
}

}  // namespace
}  // namespace icebox::shim
