// SPDX-License-Identifier: Apache-2.0
#include "shim/runtime/cli_args.h"

#include <gtest/gtest.h>

#include "oci/base/strings.h"

namespace icebox::shim {
namespace {

EngineContext context() {
  EngineContext context;
  context.program = "icebox-runc";
  context.root = "/r/ns";
  context.log = "/b/log.json";
  return context;
}

const std::string kGlobal = "icebox-runc --root /r/ns --log /b/log.json --log-format json ";

TEST(CliArgs, Create) {
  CreateArgs args;
  args.id = "x";
  args.bundle = "/b";
  args.pid_file = "/b/init.pid";
  EXPECT_EQ(join(create_argv(context(), args), " "),
            kGlobal + "create --bundle /b --pid-file /b/init.pid x");
  args.console_socket = "/s";
  args.no_pivot = true;
  args.no_new_keyring = true;
  EXPECT_EQ(join(create_argv(context(), args), " "),
            kGlobal +
                "create --bundle /b --pid-file /b/init.pid --console-socket /s --no-pivot "
                "--no-new-keyring x");
}

TEST(CliArgs, SystemdCgroupIsGlobal) {
  EngineContext systemd = context();
  systemd.systemd_cgroup = true;
  EXPECT_EQ(join(start_argv(systemd, "x"), " "), kGlobal + "--systemd-cgroup start x");
}

TEST(CliArgs, ShortCommands) {
  EXPECT_EQ(join(kill_argv(context(), "x", 15, false), " "), kGlobal + "kill x 15");
  EXPECT_EQ(join(kill_argv(context(), "x", 9, true), " "), kGlobal + "kill --all x 9");
  EXPECT_EQ(join(delete_argv(context(), "x", false), " "), kGlobal + "delete x");
  EXPECT_EQ(join(delete_argv(context(), "x", true), " "), kGlobal + "delete --force x");
  EXPECT_EQ(join(pause_argv(context(), "x"), " "), kGlobal + "pause x");
  EXPECT_EQ(join(resume_argv(context(), "x"), " "), kGlobal + "resume x");
  EXPECT_EQ(join(update_argv(context(), "x", "/b/r.json"), " "),
            kGlobal + "update --resources /b/r.json x");
  EXPECT_EQ(join(exec_argv(context(), {"x", "/b/p.json", "/b/e.pid", ""}), " "),
            kGlobal + "exec --process /b/p.json --detach --pid-file /b/e.pid x");
}

TEST(CliArgs, CheckpointWithoutOptionsLeavesRunning) {
  CheckpointArgs args;
  args.id = "x";
  args.image_path = "/i";
  args.work_path = "/w";
  EXPECT_EQ(join(checkpoint_argv(context(), args), " "),
            kGlobal + "checkpoint --image-path /i --work-path /w --leave-running x");
  args.exit = true;
  args.parent_path = "../p";
  args.empty_namespaces = {"network", "ipc"};
  EXPECT_EQ(join(checkpoint_argv(context(), args), " "),
            kGlobal +
                "checkpoint --image-path /i --work-path /w --parent-path ../p "
                "--empty-ns network --empty-ns ipc x");
}

TEST(CliArgs, Restore) {
  RestoreArgs args;
  args.id = "x";
  args.bundle = "/b";
  args.image_path = "/i";
  args.work_path = "/w";
  args.pid_file = "/b/init.pid";
  EXPECT_EQ(join(restore_argv(context(), args), " "),
            kGlobal +
                "restore --image-path /i --work-path /w --bundle /b --detach --no-subreaper "
                "--pid-file /b/init.pid x");
}

}  // namespace
}  // namespace icebox::shim
