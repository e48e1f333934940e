// SPDX-License-Identifier: Apache-2.0
// Checkpoint and restore through the real shim: what goes on meanwhile, what a failure leaves.
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "containerd/runc_options.pb.h"
#include "google/protobuf/empty.pb.h"
#include "oci/base/file.h"
#include "tests/component/shim/shim_fixture.h"

namespace icebox::test {
namespace {

namespace wire = containerd::task::v2;
using containerd::v1::types::Status;
using google::protobuf::Empty;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr int kCancelled = 1;
constexpr int kNotFound = 5;
constexpr int kFailedPrecondition = 9;

class Checkpoint : public ShimTest {
 protected:
  wire::CheckpointTaskRequest checkpoint_request(const std::string& id) const {
    wire::CheckpointTaskRequest request;
    request.set_id(id);
    request.set_path(path("image"));
    return request;
  }
  // A daemon with a running task.
  std::unique_ptr<TtrpcClient> running(const std::string& id) {
    make_bundle(id, {"sleep", "100"});
    auto client = std::make_unique<TtrpcClient>(start_daemon(id));
    create(*client, id);
    start(*client, id);
    return client;
  }
  int simple(TtrpcClient& client, const std::string& method, const std::string& id) {
    wire::PauseRequest request;  // Pause and Resume look the same
    request.set_id(id);
    return call<Empty>(client, method, request).code;
  }
};

TEST_F(Checkpoint, WithoutOptionsLeavesTheTaskRunning) {
  const auto client = running("box");
  const auto answer = call<Empty>(*client, "Checkpoint", checkpoint_request("box"));
  EXPECT_EQ(answer.code, 0) << answer.message;
  EXPECT_TRUE(file_exists(path("image/fake.img")));
  EXPECT_EQ(state(*client, "box").status(), Status::RUNNING);
  ASSERT_EQ(calls("checkpoint").size(), 1U);
  EXPECT_THAT(calls("checkpoint")[0], HasSubstr("--leave-running"));
  EXPECT_FALSE(file_exists(bundle("box") + "/work/criu-work"));
  EXPECT_TRUE(sink_->wait_for("/tasks/checkpointed"));
  finish(*client, "box");
}

TEST_F(Checkpoint, OptionsBecomeFlags) {
  const auto client = running("box");
  containerd::runc::v1::CheckpointOptions options;
  options.set_exit(true);
  options.set_open_tcp(true);
  options.set_external_unix_sockets(true);
  options.set_terminal(true);
  options.set_file_locks(true);
  options.add_empty_namespaces("network");
  options.set_work_path(path("kept-work"));
  wire::CheckpointTaskRequest request = checkpoint_request("box");
  request.mutable_options()->set_type_url("containerd.runc.v1.CheckpointOptions");
  request.mutable_options()->set_value(options.SerializeAsString());
  EXPECT_EQ(call<Empty>(*client, "Checkpoint", request).code, 0);
  ASSERT_EQ(calls("checkpoint").size(), 1U);
  const std::string line = calls("checkpoint")[0];
  EXPECT_THAT(line, Not(HasSubstr("--leave-running")));
  for (const char* flag : {"--tcp-established", "--ext-unix-sk", "--shell-job", "--file-locks",
                           "--empty-ns network"}) {
    EXPECT_THAT(line, HasSubstr(flag));
  }
  EXPECT_TRUE(file_exists(path("kept-work")));
  // exit: the task ends, and Delete does not mind that the runtime knows nothing of it any more.
  EXPECT_EQ(wait(*client, "box").exit_status(), 137U);
  EXPECT_EQ(remove(*client, "box").code, 0);
}

TEST_F(Checkpoint, NothingElseWaitsForALongOne) {
  const auto client = running("box");
  script("checkpoint", "touch " + path("reached") + "\nwait " + path("go"));
  const std::uint32_t dump =
      client->send(kTaskV2, "Checkpoint", checkpoint_request("box").SerializeAsString());
  ASSERT_TRUE(wait_until([&] { return file_exists(path("reached")); }));
  EXPECT_EQ(state(*client, "box").status(), Status::RUNNING);
  wire::PidsRequest pids;
  pids.set_id("box");
  const auto listed = call<wire::PidsResponse>(*client, "Pids", pids, seconds(2));
  EXPECT_EQ(listed.code, 0);
  EXPECT_GE(listed.body.processes_size(), 1);
  // A second mutation waits for its turn ...
  wire::PauseRequest pause;
  pause.set_id("box");
  const std::uint32_t paused = client->send(kTaskV2, "Pause", pause.SerializeAsString());
  EXPECT_FALSE(client->answered(paused, milliseconds(100)));
  // ... and Kill does not.
  EXPECT_EQ(kill(*client, "box", SIGKILL), 0);
  EXPECT_EQ(wait(*client, "box").exit_status(), 137U);
  EXPECT_EQ(state(*client, "box").status(), Status::STOPPED);
  EXPECT_FALSE(client->answered(dump, milliseconds(50)));
  ASSERT_TRUE(write_file_atomic(path("go"), "", 0600, Durable::no).ok());
  EXPECT_NE(client->receive(dump, seconds(10)).code, 0);  // there was nothing left to dump
  EXPECT_EQ(client->receive(paused, seconds(10)).code, kFailedPrecondition);
  EXPECT_EQ(remove(*client, "box").code, 0);
}

// The engine may be unable to deliver a kill while another command of it has the container.
TEST_F(Checkpoint, KillReachesInitWhenTheEngineIsBusy) {
  const auto client = running("box");
  script("checkpoint", "touch " + path("reached") + "\nwait " + path("go"));
  script("kill", "fail container is locked by another operation");
  const std::uint32_t dump =
      client->send(kTaskV2, "Checkpoint", checkpoint_request("box").SerializeAsString());
  ASSERT_TRUE(wait_until([&] { return file_exists(path("reached")); }));
  EXPECT_EQ(kill(*client, "box", SIGTERM), 2);
  EXPECT_EQ(kill(*client, "box", SIGKILL), 0);
  EXPECT_EQ(wait(*client, "box").exit_status(), 137U);
  ASSERT_TRUE(write_file_atomic(path("go"), "", 0600, Durable::no).ok());
  client->receive(dump, seconds(10));
}

TEST_F(Checkpoint, FailureTellsTheEnginesWordsAndKeepsCriusLog) {
  const auto client = running("box");
  const std::string work = bundle("box") + "/work/criu-work";
  // The engine's CRIU writes its log to the work directory.
  ASSERT_TRUE(make_directories(work, 0700).ok());
  ASSERT_TRUE(write_file_atomic(work + "/dump.log", "why it failed\n", 0600, Durable::no).ok());
  script("checkpoint", "fail file 5 is /dev/nvidia0: stop using it");
  const auto answer = call<Empty>(*client, "Checkpoint", checkpoint_request("box"));
  EXPECT_EQ(answer.code, 2);
  EXPECT_EQ(answer.message, "file 5 is /dev/nvidia0: stop using it; CRIU's log: " + bundle("box") +
                                "/criu-dump.log");
  EXPECT_EQ(read(bundle("box") + "/criu-dump.log"), "why it failed\n");
  EXPECT_FALSE(file_exists(work));
  EXPECT_EQ(state(*client, "box").status(), Status::RUNNING);
  finish(*client, "box");
  EXPECT_THAT(sink_->topics(),
              ElementsAre("/tasks/create", "/tasks/start", "/tasks/exit", "/tasks/delete"));
}

TEST_F(Checkpoint, APausedTaskStaysPausedWhateverHappensToTheEngine) {
  const auto client = running("box");
  ASSERT_EQ(simple(*client, "Pause", "box"), 0);
  EXPECT_EQ(call<Empty>(*client, "Checkpoint", checkpoint_request("box")).code, 0);
  EXPECT_EQ(state(*client, "box").status(), Status::PAUSED);
  script("checkpoint", "die");
  const auto answer = call<Empty>(*client, "Checkpoint", checkpoint_request("box"));
  EXPECT_EQ(answer.code, 2);
  EXPECT_THAT(answer.message, HasSubstr("killed by signal 9"));
  EXPECT_EQ(state(*client, "box").status(), Status::PAUSED);
  // The next command, which recovers, is given at once, and it is the one that freezes.
  EXPECT_TRUE(wait_until([&] { return calls("pause").size() == 2; }));
  EXPECT_TRUE(calls("resume").empty());
  EXPECT_EQ(simple(*client, "Resume", "box"), 0);
  finish(*client, "box");
}

TEST_F(Checkpoint, IsRefusedBeforeStartAndAfterTheEnd) {
  make_bundle("box", {"sleep", "100"});
  TtrpcClient client(start_daemon("box"));
  create(client, "box");
  const auto early = call<Empty>(client, "Checkpoint", checkpoint_request("box"));
  EXPECT_EQ(early.code, kFailedPrecondition);
  EXPECT_EQ(early.message, "cannot checkpoint task box: it is created");
  start(client, "box");
  kill(client, "box", SIGKILL);
  wait(client, "box");
  EXPECT_EQ(call<Empty>(client, "Checkpoint", checkpoint_request("box")).code, kFailedPrecondition);
  EXPECT_TRUE(calls("checkpoint").empty());
}

TEST_F(Checkpoint, DeadlineStopsTheEngineAndTheTaskGoesOn) {
  const auto client = running("box");
  script("checkpoint", "touch " + path("reached") + "\nwait " + path("never"));
  const std::uint32_t dump = client->send(
      kTaskV2, "Checkpoint", checkpoint_request("box").SerializeAsString(), milliseconds(300));
  EXPECT_EQ(client->receive(dump, seconds(5)).code, 4);
  EXPECT_TRUE(wait_until([&] { return calls("resume").size() == 1; }));
  EXPECT_EQ(state(*client, "box").status(), Status::RUNNING);
  finish(*client, "box");
}

// --- restore
// --------------------------------------------------------------------------------------

class Restore : public Checkpoint {
 protected:
  // An image of `sleep 100` in `directory`.
  void make_image(const std::string& directory) {
    ASSERT_TRUE(make_directories(directory, 0700).ok());
    ASSERT_TRUE(write_file_atomic(directory + "/fake.img",
                                  std::string("sleep\0"
                                              "100\0",
                                              10),
                                  0600, Durable::no)
                    .ok());
  }
  Typed<wire::CreateTaskResponse> create_from(TtrpcClient& client, const std::string& id,
                                              const std::string& image) {
    wire::CreateTaskRequest request = create_request(id);
    request.set_checkpoint(image);
    return call<wire::CreateTaskResponse>(client, "Create", request);
  }
  std::uint32_t send_start(TtrpcClient& client, const std::string& id) {
    wire::StartRequest request;
    request.set_id(id);
    return client.send(kTaskV2, "Start", request.SerializeAsString());
  }
};

TEST_F(Restore, CreateOnlyPreparesAndStartRestores) {
  make_bundle("box", {"sleep", "100"});
  const std::string image = path("tmp/ctrd-checkpoint123456");
  make_image(image);
  TtrpcClient client(start_daemon("box"));
  const auto created = create_from(client, "box", image);
  EXPECT_EQ(created.code, 0) << created.message;
  EXPECT_EQ(created.body.pid(), 0U);
  EXPECT_EQ(state(client, "box").status(), Status::CREATED);
  EXPECT_TRUE(calls("create").empty());
  EXPECT_EQ(kill(client, "box", SIGTERM), kNotFound);
  const pid_t pid = start(client, "box");
  EXPECT_GT(pid, 0);
  EXPECT_EQ(state(client, "box").pid(), static_cast<std::uint32_t>(pid));
  EXPECT_EQ(state(client, "box").status(), Status::RUNNING);
  ASSERT_EQ(calls("restore").size(), 1U);
  EXPECT_THAT(calls("restore")[0], HasSubstr("--detach --no-subreaper --pid-file"));
  EXPECT_FALSE(file_exists(image));  // containerd made it and never removes it
  finish(client, "box");
  EXPECT_THAT(sink_->topics(),
              ElementsAre("/tasks/create", "/tasks/start", "/tasks/exit", "/tasks/delete"));
}

TEST_F(Restore, ADirectoryThatAUserNamedIsNeverRemoved) {
  make_bundle("box", {"sleep", "100"});
  make_image(path("mine"));
  make_image(path("tmp/ctrd-checkpoint-mine"));
  TtrpcClient client(start_daemon("box"));
  EXPECT_EQ(create_from(client, "box", path("mine")).code, 0);
  start(client, "box");
  kill(client, "box", SIGKILL);
  wait(client, "box");
  EXPECT_EQ(remove(client, "box").code, 0);
  EXPECT_TRUE(file_exists(path("mine/fake.img")));
  EXPECT_EQ(create_from(client, "box", path("tmp/ctrd-checkpoint-mine")).code, 0);
  start(client, "box");
  EXPECT_TRUE(file_exists(path("tmp/ctrd-checkpoint-mine/fake.img")));
  finish(client, "box");
}

TEST_F(Restore, RefusesWhatWouldDisturbItAndAnswersTheRest) {
  make_bundle("box", {"sleep", "100"});
  make_image(path("mine"));
  TtrpcClient client(start_daemon("box"));
  create_from(client, "box", path("mine"));
  script("restore", "touch " + path("reached") + "\nwait " + path("go"));
  const std::uint32_t starting = send_start(client, "box");
  ASSERT_TRUE(wait_until([&] { return file_exists(path("reached")); }));
  EXPECT_EQ(state(client, "box").status(), Status::CREATED);
  EXPECT_EQ(simple(client, "Pause", "box"), kFailedPrecondition);
  wire::UpdateTaskRequest update;
  update.set_id("box");
  EXPECT_EQ(call<Empty>(client, "Update", update).code, kFailedPrecondition);
  wire::ExecProcessRequest exec_request;
  exec_request.set_id("box");
  exec_request.set_exec_id("e");
  exec_request.mutable_spec()->set_value("{}");
  EXPECT_EQ(call<Empty>(client, "Exec", exec_request).code, kFailedPrecondition);
  EXPECT_EQ(remove(client, "box").code, kFailedPrecondition);
  // containerd takes a shim that lists no process after a restart for a leaked one.
  wire::PidsRequest pids;
  pids.set_id("box");
  EXPECT_GE(call<wire::PidsResponse>(client, "Pids", pids).body.processes_size(), 1);
  EXPECT_EQ(kill(client, "box", SIGUSR1), 0);  // delivered once it runs
  ASSERT_TRUE(write_file_atomic(path("go"), "", 0600, Durable::no).ok());
  EXPECT_EQ(client.receive(starting, seconds(10)).code, 0);
  EXPECT_EQ(wait(client, "box").exit_status(), 128U + SIGUSR1);
  EXPECT_EQ(remove(client, "box").code, 0);
}

TEST_F(Restore, KillEndsIt) {
  make_bundle("box", {"sleep", "100"});
  make_image(path("mine"));
  TtrpcClient client(start_daemon("box"));
  create_from(client, "box", path("mine"));
  script("restore", "touch " + path("reached") + "\nwait " + path("never"));
  const std::uint32_t starting = send_start(client, "box");
  ASSERT_TRUE(wait_until([&] { return file_exists(path("reached")); }));
  EXPECT_EQ(kill(client, "box", SIGKILL), 0);
  const Answer answer = client.receive(starting, seconds(10));
  EXPECT_EQ(answer.code, kCancelled);
  EXPECT_THAT(answer.message, HasSubstr("was killed while it was restored"));
  EXPECT_EQ(wait(client, "box").exit_status(), 137U);
  EXPECT_EQ(state(client, "box").status(), Status::STOPPED);
  EXPECT_GE(calls("delete").size(), 1U);
  EXPECT_EQ(remove(client, "box").code, 0);
}

// The kill came while the engine was past the point where it could be stopped.
TEST_F(Restore, KillHoldsAlsoWhenTheEngineFinishes) {
  make_bundle("box", {"sleep", "100"});
  make_image(path("mine"));
  TtrpcClient client(start_daemon("box"));
  create_from(client, "box", path("mine"));
  script("restore", "after touch " + path("reached") + "\nafter wait " + path("go"));
  script("kill", "touch " + path("go"));
  const std::uint32_t starting = send_start(client, "box");
  ASSERT_TRUE(wait_until([&] { return file_exists(path("reached")); }));
  const pid_t pid = std::atoi(read(bundle("box") + "/init.pid").c_str());
  ASSERT_GT(pid, 0);
  EXPECT_EQ(kill(client, "box", SIGKILL), 0);
  EXPECT_EQ(client.receive(starting, seconds(10)).code, kCancelled);
  EXPECT_TRUE(wait_until([&] { return !file_exists("/proc/" + std::to_string(pid)); }));
  EXPECT_EQ(remove(client, "box").code, 0);
}

TEST_F(Restore, FailureLeavesACreatedTaskThatCanOnlyBeDeleted) {
  make_bundle("box", {"sleep", "100"});
  const std::string image = path("tmp/ctd-checkpoint42");
  make_image(image);
  TtrpcClient client(start_daemon("box"));
  const pid_t daemon = daemon_pid(client);
  create_from(client, "box", image);
  script("restore", "fail the checkpoint was made on another GPU model");
  Answer answer = client.receive(send_start(client, "box"), seconds(10));
  EXPECT_EQ(answer.code, 2);
  EXPECT_EQ(answer.message,
            "OCI runtime restore failed: the checkpoint was made on another GPU model");
  EXPECT_EQ(state(client, "box").status(), Status::CREATED);
  EXPECT_EQ(state(client, "box").pid(), 0U);
  unscript("restore");
  EXPECT_EQ(client.receive(send_start(client, "box"), seconds(10)).code, kFailedPrecondition);
  EXPECT_TRUE(file_exists(image));
  EXPECT_EQ(remove(client, "box").code, 0);
  EXPECT_FALSE(file_exists(image));
  EXPECT_EQ(shutdown(client), 0);
  EXPECT_TRUE(ended_well(daemon));
  EXPECT_THAT(sink_->topics(), ElementsAre("/tasks/create", "/tasks/delete"));
}

// `ctr task delete --force` waits for the task, kills it, and goes on when it has ended: it hung
// for ever.
TEST_F(Restore, AFailedOneEndsWhenItIsKilled) {
  make_bundle("box", {"sleep", "100"});
  const std::string image = path("tmp/ctrd-checkpoint43");
  make_image(image);
  TtrpcClient client(start_daemon("box"));
  create_from(client, "box", image);
  script("restore", "fail no room on the GPU");
  EXPECT_EQ(client.receive(send_start(client, "box"), seconds(10)).code, 2);
  wire::WaitRequest request;
  request.set_id("box");
  const std::uint32_t waiting = client.send(kTaskV2, "Wait", request.SerializeAsString());
  EXPECT_EQ(kill(client, "box", SIGKILL), 0);
  EXPECT_EQ(client.receive(waiting, seconds(10)).code, 0);
  EXPECT_EQ(state(client, "box").status(), Status::STOPPED);
  EXPECT_EQ(state(client, "box").exit_status(), 137U);
  EXPECT_EQ(remove(client, "box").code, 0);
  EXPECT_EQ(shutdown(client), 0);
}

TEST_F(Restore, DeleteActionRemovesTheTemporaryCheckpointOfAKilledDaemon) {
  make_bundle("box", {"sleep", "100"});
  const std::string image = path("tmp/ctrd-checkpoint7");
  make_image(image);
  TtrpcClient client(start_daemon("box"));
  create_from(client, "box", image);
  ::kill(daemon_pid(client), SIGKILL);
  run_delete("box");
  EXPECT_FALSE(file_exists(image));
}

}  // namespace
}  // namespace icebox::test
