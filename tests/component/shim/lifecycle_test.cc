// SPDX-License-Identifier: Apache-2.0
// A task's life through the real shim: what is answered, what is told in which order, what is left.
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "containerd/events.pb.h"
#include "google/protobuf/empty.pb.h"
#include "oci/base/file.h"
#include "oci/base/strings.h"
#include "tests/component/shim/shim_fixture.h"

namespace icebox::test {
namespace {

namespace wire = containerd::task::v2;
using containerd::v1::types::Status;
using google::protobuf::Empty;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int kNotFound = 5;
constexpr int kAlreadyExists = 6;
constexpr int kFailedPrecondition = 9;
constexpr int kUnimplemented = 12;
constexpr std::int64_t kGoZeroSeconds = -62135596800;

class Lifecycle : public ShimTest {};

TEST_F(Lifecycle, FromStartToDeleteTheTaskIsToldAsItIs) {
  make_bundle("life", {"sh", "-c", "sleep 0.2; exit 7"});
  const std::string socket = start_daemon("life");
  TtrpcClient client(socket);
  const pid_t daemon = daemon_pid(client);

  const pid_t pid = create(client, "life");
  EXPECT_GT(pid, 0);
  wire::StateResponse created = state(client, "life");
  EXPECT_EQ(created.status(), Status::CREATED);
  EXPECT_EQ(created.pid(), static_cast<std::uint32_t>(pid));
  EXPECT_EQ(created.bundle(), bundle("life"));
  EXPECT_EQ(created.exited_at().seconds(), kGoZeroSeconds);

  EXPECT_EQ(start(client, "life"), pid);
  EXPECT_EQ(state(client, "life").status(), Status::RUNNING);
  EXPECT_EQ(remove(client, "life").code, kFailedPrecondition);

  const wire::WaitResponse exit = wait(client, "life");
  EXPECT_EQ(exit.exit_status(), 7U);
  const wire::StateResponse stopped = state(client, "life");
  EXPECT_EQ(stopped.status(), Status::STOPPED);
  EXPECT_EQ(stopped.pid(), static_cast<std::uint32_t>(pid));
  EXPECT_EQ(stopped.exit_status(), 7U);
  EXPECT_EQ(stopped.exited_at().seconds(), exit.exited_at().seconds());
  EXPECT_EQ(kill(client, "life", SIGTERM), kNotFound);

  // A daemon with a task in it does not end.
  EXPECT_EQ(shutdown(client), 0);
  EXPECT_EQ(state(client, "life").status(), Status::STOPPED);

  const auto removed = remove(client, "life");
  EXPECT_EQ(removed.code, 0) << removed.message;
  EXPECT_EQ(removed.body.exit_status(), 7U);
  EXPECT_EQ(removed.body.pid(), static_cast<std::uint32_t>(pid));
  EXPECT_EQ(remove(client, "life").code, kNotFound);
  EXPECT_EQ(shutdown(client), 0);
  EXPECT_TRUE(ended_well(daemon));
  EXPECT_FALSE(file_exists(socket));
  EXPECT_THAT(sink_->topics(),
              ElementsAre("/tasks/create", "/tasks/start", "/tasks/exit", "/tasks/delete"));

  // containerd runs it after every end; there is nothing left to do and the status is still true.
  const std::size_t before = calls("delete").size();
  EXPECT_EQ(run_delete("life").exit_status(), 7U);
  EXPECT_EQ(calls("delete").size(), before);
}

TEST_F(Lifecycle, EventsCarryNamespaceTypeTimeAndValues) {
  make_bundle("event", {"sh", "-c", "exit 3"});
  TtrpcClient client(start_daemon("event"));
  const pid_t pid = create(client, "event");
  start(client, "event");
  ASSERT_TRUE(sink_->wait_for("/tasks/exit"));
  for (const ReceivedEvent& event : sink_->events()) {
    EXPECT_EQ(event.ns, kNamespace);
    EXPECT_GT(event.seconds, 1'700'000'000);
  }
  const ReceivedEvent last = sink_->events().back();
  EXPECT_EQ(last.type, "containerd.events.TaskExit");
  containerd::events::TaskExit exit;
  ASSERT_TRUE(exit.ParseFromString(last.payload));
  EXPECT_EQ(exit.container_id(), "event");
  EXPECT_EQ(exit.id(), "event");
  EXPECT_EQ(exit.pid(), static_cast<std::uint32_t>(pid));
  EXPECT_EQ(exit.exit_status(), 3U);
}

// The exit of a process that ends at once races with the answers to Create and Start.
TEST_F(Lifecycle, StartIsToldBeforeExitHoweverFastInitIs) {
  make_bundle("hold", {"sleep", "100"});
  TtrpcClient client(start_daemon("hold"));
  create(client, "hold");
  for (int round = 0; round < 15; ++round) {
    const std::string id = "fast" + std::to_string(round);
    make_bundle(id, {"true"}, R"("io.containerd.runc.v2.group":"hold")");
    create(client, id);
    start(client, id);
    EXPECT_EQ(wait(client, id).exit_status(), 0U);
    EXPECT_EQ(remove(client, id).code, 0);
  }
  ASSERT_TRUE(sink_->wait_for("/tasks/delete", 15));
  std::vector<std::string> topics = sink_->topics();
  topics.erase(topics.begin());  // of "hold"
  for (std::size_t i = 0; i < topics.size(); i += 4) {
    EXPECT_EQ(topics[i], "/tasks/create");
    EXPECT_EQ(topics[i + 1], "/tasks/start");
    EXPECT_EQ(topics[i + 2], "/tasks/exit");
    EXPECT_EQ(topics[i + 3], "/tasks/delete");
  }
}

TEST_F(Lifecycle, InitThatDiesBeforeCreateReturnsIsStopped) {
  make_bundle("early", {"sleep", "100"});
  TtrpcClient client(start_daemon("early"));
  script("create", "init-exits 9");
  create(client, "early");
  EXPECT_EQ(wait(client, "early").exit_status(), 9U);
  EXPECT_EQ(state(client, "early").status(), Status::STOPPED);
  wire::StartRequest request;
  request.set_id("early");
  EXPECT_EQ(call<wire::StartResponse>(client, "Start", request).code, kFailedPrecondition);
  EXPECT_EQ(remove(client, "early").body.exit_status(), 9U);
  ASSERT_TRUE(sink_->wait_for("/tasks/delete"));
  EXPECT_THAT(sink_->topics(), ElementsAre("/tasks/create", "/tasks/exit", "/tasks/delete"));
}

TEST_F(Lifecycle, SlowCreateBlocksNobody) {
  make_bundle("first", {"sleep", "100"});
  make_bundle("slow", {"sleep", "100"}, R"("io.containerd.runc.v2.group":"first")");
  TtrpcClient client(start_daemon("first"));
  create(client, "first");
  start(client, "first");
  script("create", "wait " + path("go"));
  const std::uint32_t slow =
      client.send(kTaskV2, "Create", create_request("slow").SerializeAsString());
  EXPECT_EQ(state(client, "first").status(), Status::RUNNING);
  wire::StateRequest request;
  request.set_id("slow");
  EXPECT_EQ(call<wire::StateResponse>(client, "State", request, seconds(2)).code, kNotFound);
  EXPECT_EQ(call<wire::CreateTaskResponse>(client, "Create", create_request("slow")).code,
            kAlreadyExists);
  EXPECT_FALSE(client.answered(slow, milliseconds(100)));
  ASSERT_TRUE(write_file_atomic(path("go"), "", 0600, Durable::no).ok());
  EXPECT_EQ(client.receive(slow, seconds(10)).code, 0);
  EXPECT_EQ(state(client, "slow").status(), Status::CREATED);
}

TEST_F(Lifecycle, DeleteAbortsACreateThatHangs) {
  make_bundle("hang", {"sleep", "100"});
  TtrpcClient client(start_daemon("hang"));
  const pid_t daemon = daemon_pid(client);
  script("create", "touch " + path("reached") + "\nwait " + path("never"));
  const std::uint32_t hanging =
      client.send(kTaskV2, "Create", create_request("hang").SerializeAsString());
  ASSERT_TRUE(wait_until([&] { return file_exists(path("reached")); }));
  EXPECT_EQ(remove(client, "hang").code, kNotFound);
  EXPECT_NE(client.receive(hanging, seconds(10)).code, 0);
  EXPECT_EQ(calls("delete").size(), 1U);  // what the killed command may have left
  EXPECT_EQ(shutdown(client), 0);
  EXPECT_TRUE(ended_well(daemon));
}

TEST_F(Lifecycle, CreateDeadlineKillsTheCommand) {
  make_bundle("late", {"sleep", "100"});
  TtrpcClient client(start_daemon("late"));
  script("create", "wait " + path("never"));
  const std::uint32_t stream =
      client.send(kTaskV2, "Create", create_request("late").SerializeAsString(), milliseconds(200));
  EXPECT_EQ(client.receive(stream, seconds(10)).code, 4);
  EXPECT_TRUE(wait_until([&] { return calls("delete").size() == 1; }));
  unscript("create");
  EXPECT_TRUE(wait_until([&] {
    return call<wire::CreateTaskResponse>(client, "Create", create_request("late")).code == 0;
  }));
}

TEST_F(Lifecycle, FailedCreateTellsTheEnginesWordsAndLeavesNothing) {
  make_bundle("bad", {"sleep", "100"});
  TtrpcClient client(start_daemon("bad"));
  const pid_t daemon = daemon_pid(client);
  script("create", "fail exec: \"nope\": no such file or directory");
  const auto answer = call<wire::CreateTaskResponse>(client, "Create", create_request("bad"));
  EXPECT_EQ(answer.code, 2);
  EXPECT_EQ(answer.message, "OCI runtime create failed: exec: \"nope\": no such file or directory");
  EXPECT_EQ(shutdown(client), 0);
  EXPECT_TRUE(ended_well(daemon));
  EXPECT_TRUE(sink_->topics().empty());
}

TEST_F(Lifecycle, ExecRunsIsWaitedForAndSignalled) {
  make_bundle("box", {"sleep", "100"});
  TtrpcClient client(start_daemon("box"));
  create(client, "box");
  start(client, "box");
  exec(client, "box", "one", {"sh", "-c", "exit 4"});
  EXPECT_EQ(state(client, "box", "one").status(), Status::CREATED);
  EXPECT_EQ(kill(client, "box", SIGTERM, "one"), kFailedPrecondition);
  start(client, "box", "one");
  EXPECT_EQ(wait(client, "box", "one").exit_status(), 4U);
  EXPECT_EQ(kill(client, "box", SIGTERM, "one"), kNotFound);

  exec(client, "box", "two", {"sleep", "100"});
  const pid_t pid = start(client, "box", "two");
  EXPECT_EQ(state(client, "box", "two").status(), Status::RUNNING);
  EXPECT_EQ(state(client, "box", "two").pid(), static_cast<std::uint32_t>(pid));
  EXPECT_EQ(remove(client, "box", "two").code, kFailedPrecondition);
  EXPECT_EQ(kill(client, "box", SIGUSR1, "two"), 0);
  EXPECT_EQ(wait(client, "box", "two").exit_status(), 128U + SIGUSR1);
  EXPECT_EQ(remove(client, "box", "two").body.exit_status(), 128U + SIGUSR1);
  EXPECT_EQ(remove(client, "box", "two").code, kNotFound);
  EXPECT_EQ(remove(client, "box", "one").code, 0);
  ASSERT_TRUE(sink_->wait_for("/tasks/exit", 2));
  EXPECT_THAT(
      sink_->topics(),
      ElementsAre("/tasks/create", "/tasks/start", "/tasks/exec-added", "/tasks/exec-started",
                  "/tasks/exit", "/tasks/exec-added", "/tasks/exec-started", "/tasks/exit"));
  finish(client, "box");
}

TEST_F(Lifecycle, ExecThatFailsToStartHasAnEndAndNoEvents) {
  make_bundle("box", {"sleep", "100"});
  TtrpcClient client(start_daemon("box"));
  create(client, "box");
  start(client, "box");
  exec(client, "box", "bad", {"nope"});
  wire::WaitRequest waiting;
  waiting.set_id("box");
  waiting.set_exec_id("bad");
  const std::uint32_t waiter = client.send(kTaskV2, "Wait", waiting.SerializeAsString());
  script("exec", "fail no such file or directory");
  wire::StartRequest request;
  request.set_id("box");
  request.set_exec_id("bad");
  const auto answer = call<wire::StartResponse>(client, "Start", request);
  EXPECT_EQ(answer.message, "OCI runtime exec failed: no such file or directory");
  EXPECT_EQ(client.receive(waiter, seconds(5)).code, 0);
  EXPECT_EQ(remove(client, "box", "bad").code, 0);
  finish(client, "box");
  EXPECT_THAT(sink_->topics(), ElementsAre("/tasks/create", "/tasks/start", "/tasks/exec-added",
                                           "/tasks/exit", "/tasks/delete"));
}

// An exec that ends before `exec` returns is still told as started, then ended, each once.
TEST_F(Lifecycle, ExecStartedIsToldBeforeItsExit) {
  make_bundle("box", {"sleep", "100"});
  TtrpcClient client(start_daemon("box"));
  create(client, "box");
  start(client, "box");
  script("exec", "exec-exits 6");
  exec(client, "box", "quick", {"true"});
  start(client, "box", "quick");
  EXPECT_EQ(wait(client, "box", "quick").exit_status(), 6U);
  ASSERT_TRUE(sink_->wait_for("/tasks/exit"));
  EXPECT_THAT(sink_->topics(), ElementsAre("/tasks/create", "/tasks/start", "/tasks/exec-added",
                                           "/tasks/exec-started", "/tasks/exit"));
}

// Init's exit is told last, even when it came first.
TEST_F(Lifecycle, ExitOfAnExecIsToldBeforeThatOfInit) {
  make_bundle("box", {"sleep", "100"});
  TtrpcClient client(start_daemon("box"));
  const pid_t init = create(client, "box");
  start(client, "box");
  exec(client, "box", "long", {"sleep", "100"});
  const pid_t pid = start(client, "box", "long");
  ASSERT_EQ(::kill(init, SIGKILL), 0);
  ASSERT_TRUE(wait_until([&] { return !file_exists("/proc/" + std::to_string(init)); }));
  wire::ExecProcessRequest more;
  more.set_id("box");
  more.set_exec_id("late");
  more.mutable_spec()->set_value("{}");
  EXPECT_EQ(call<Empty>(client, "Exec", more).code, kFailedPrecondition);
  EXPECT_FALSE(sink_->wait_for("/tasks/exit", 1, milliseconds(100)));
  ASSERT_EQ(::kill(pid, SIGKILL), 0);
  ASSERT_TRUE(sink_->wait_for("/tasks/exit", 2));
  std::vector<std::string> ended;
  for (const ReceivedEvent& event : sink_->events()) {
    containerd::events::TaskExit exit;
    if (event.topic == "/tasks/exit" && exit.ParseFromString(event.payload)) {
      ended.push_back(exit.id());
    }
  }
  EXPECT_THAT(ended, ElementsAre("long", "box"));
}

TEST_F(Lifecycle, PauseAndResumeFollowTheTable) {
  make_bundle("box", {"sleep", "100"});
  TtrpcClient client(start_daemon("box"));
  create(client, "box");
  wire::PauseRequest pause;
  pause.set_id("box");
  wire::ResumeRequest resume;
  resume.set_id("box");
  EXPECT_EQ(call<Empty>(client, "Pause", pause).code, kFailedPrecondition);
  start(client, "box");
  exec(client, "box", "e", {"sleep", "100"});
  start(client, "box", "e");
  EXPECT_EQ(call<Empty>(client, "Resume", resume).code, kFailedPrecondition);
  EXPECT_EQ(call<Empty>(client, "Pause", pause).code, 0);
  EXPECT_EQ(state(client, "box").status(), Status::PAUSED);
  EXPECT_EQ(state(client, "box", "e").status(), Status::PAUSED);
  wire::ExecProcessRequest refused;
  refused.set_id("box");
  refused.set_exec_id("no");
  refused.mutable_spec()->set_value("{}");
  EXPECT_EQ(call<Empty>(client, "Exec", refused).code, kFailedPrecondition);
  EXPECT_EQ(call<Empty>(client, "Pause", pause).code, kFailedPrecondition);
  EXPECT_EQ(call<Empty>(client, "Resume", resume).code, 0);
  EXPECT_EQ(state(client, "box").status(), Status::RUNNING);
  ASSERT_TRUE(sink_->wait_for("/tasks/resumed"));
  EXPECT_EQ(sink_->topics().size(), 6U);
}

TEST_F(Lifecycle, PauseWhoseClientGaveUpIsTakenBack) {
  make_bundle("box", {"sleep", "100"});
  TtrpcClient client(start_daemon("box"));
  create(client, "box");
  start(client, "box");
  script("pause", "touch " + path("reached") + "\nwait " + path("never"));
  wire::PauseRequest pause;
  pause.set_id("box");
  const std::uint32_t stream =
      client.send(kTaskV2, "Pause", pause.SerializeAsString(), milliseconds(300));
  ASSERT_TRUE(wait_until([&] { return file_exists(path("reached")); }));
  EXPECT_EQ(state(client, "box").status(), Status::PAUSING);
  EXPECT_EQ(client.receive(stream, seconds(5)).code, 4);
  // The engine was asked to stop; what it left half-way is put right by its next command.
  EXPECT_TRUE(wait_until([&] { return calls("resume").size() == 1; }));
  EXPECT_TRUE(wait_until([&] { return state(client, "box").status() == Status::RUNNING; }));
}

TEST_F(Lifecycle, UpdateHandsTheResourcesOn) {
  make_bundle("box", {"sleep", "100"});
  TtrpcClient client(start_daemon("box"));
  create(client, "box");
  start(client, "box");
  wire::UpdateTaskRequest update;
  update.set_id("box");
  update.mutable_resources()->set_value(R"({"memory":{"limit":1048576}})");
  EXPECT_EQ(call<Empty>(client, "Update", update).code, 0);
  EXPECT_EQ(read(path("root") + "/" + kNamespace + "/box/resources.json"),
            R"({"memory":{"limit":1048576}})");
  EXPECT_FALSE(file_exists(bundle("box") + "/resources.json"));
}

TEST_F(Lifecycle, OutputReachesTheClientsFifoAndEndsWithTheProcess) {
  make_bundle("out", {"sh", "-c", "echo hello; cat"});
  for (const char* name : {"in", "out"}) ASSERT_EQ(::mkfifo(path(name).c_str(), 0600), 0);
  TtrpcClient client(start_daemon("out"));
  wire::CreateTaskRequest request = create_request("out");
  request.set_stdin(path("in"));
  request.set_stdout(path("out"));
  const UniqueFd reader(::open(path("out").c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  EXPECT_EQ(call<wire::CreateTaskResponse>(client, "Create", request).code, 0);
  UniqueFd writer(::open(path("in").c_str(), O_WRONLY | O_CLOEXEC));
  start(client, "out");
  ASSERT_TRUE(write_all(writer.get(), "typed\n").ok());
  writer.reset();
  wire::CloseIORequest close;
  close.set_id("out");
  close.set_stdin(true);
  EXPECT_EQ(call<Empty>(client, "CloseIO", close).code, 0);
  EXPECT_EQ(wait(client, "out").exit_status(), 0U);
  std::string text;
  // The FIFO has to end before Delete: containerd's client waits for that.
  EXPECT_TRUE(wait_until([&] {
    char chunk[256];
    const ssize_t size = ::read(reader.get(), chunk, sizeof chunk);
    if (size > 0) text.append(chunk, static_cast<std::size_t>(size));
    return size == 0;
  }));
  EXPECT_EQ(text, "hello\ntyped\n");
  EXPECT_EQ(remove(client, "out").code, 0);
}

TEST_F(Lifecycle, TerminalCarriesInputOutputAndSize) {
  make_bundle("tty", {"sh", "-c", "read line; stty size; echo got $line"});
  for (const char* name : {"in", "out"}) ASSERT_EQ(::mkfifo(path(name).c_str(), 0600), 0);
  TtrpcClient client(start_daemon("tty"));
  wire::CreateTaskRequest request = create_request("tty");
  request.set_terminal(true);
  request.set_stdin(path("in"));
  request.set_stdout(path("out"));
  const UniqueFd reader(::open(path("out").c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  const auto created = call<wire::CreateTaskResponse>(client, "Create", request);
  ASSERT_EQ(created.code, 0) << created.message;
  wire::ResizePtyRequest resize;
  resize.set_id("tty");
  resize.set_width(91);
  resize.set_height(33);
  EXPECT_EQ(call<Empty>(client, "ResizePty", resize).code, 0);
  start(client, "tty");
  const UniqueFd writer(::open(path("in").c_str(), O_WRONLY | O_CLOEXEC));
  ASSERT_TRUE(write_all(writer.get(), "word\n").ok());
  EXPECT_EQ(wait(client, "tty").exit_status(), 0U);
  std::string text;
  EXPECT_TRUE(wait_until([&] {
    char chunk[256];
    const ssize_t size = ::read(reader.get(), chunk, sizeof chunk);
    if (size > 0) text.append(chunk, static_cast<std::size_t>(size));
    return size == 0;
  }));
  EXPECT_THAT(text, HasSubstr("33 91"));
  EXPECT_THAT(text, HasSubstr("got word"));
  EXPECT_EQ(remove(client, "tty").code, 0);
}

TEST_F(Lifecycle, TwoContainersOfAGroupShareADaemonUntilTheLastIsGone) {
  make_bundle("pod", {"sleep", "100"}, R"("io.kubernetes.cri.sandbox-id":"pod")");
  make_bundle("app", {"sleep", "100"}, R"("io.kubernetes.cri.sandbox-id":"pod")");
  const std::string socket = start_daemon("pod");
  EXPECT_EQ(start_daemon("app"), socket);
  ASSERT_EQ(daemons_.size(), 1U);
  TtrpcClient client(socket);
  create(client, "pod");
  start(client, "pod");
  create(client, "app");
  start(client, "app");
  EXPECT_EQ(kill(client, "app", SIGKILL), 0);
  EXPECT_EQ(wait(client, "app").exit_status(), 137U);
  EXPECT_EQ(remove(client, "app").code, 0);
  EXPECT_EQ(shutdown(client), 0);
  EXPECT_EQ(run_delete("app").exit_status(), 137U);
  EXPECT_TRUE(file_exists(socket));
  EXPECT_EQ(state(client, "pod").status(), Status::RUNNING);
  finish(client, "pod");
  EXPECT_FALSE(file_exists(socket));
}

TEST_F(Lifecycle, UnknownThingsAreNotFoundButConnectAnswers) {
  make_bundle("box", {"sleep", "100"});
  TtrpcClient client(start_daemon("box"));
  wire::StateRequest request;
  request.set_id("ghost");
  EXPECT_EQ(call<wire::StateResponse>(client, "State", request).code, kNotFound);
  wire::ConnectRequest connect;
  connect.set_id("ghost");
  const auto answer = call<wire::ConnectResponse>(client, "Connect", connect);
  EXPECT_EQ(answer.code, 0);
  EXPECT_EQ(answer.body.task_pid(), 0U);
  const std::uint32_t v3 =
      client.send("containerd.task.v3.Task", "Connect", connect.SerializeAsString());
  EXPECT_EQ(client.receive(v3, seconds(5)).code, 0);
  EXPECT_EQ(client.receive(client.send(kTaskV2, "Dance", ""), seconds(5)).code, kUnimplemented);
  wire::CreateTaskRequest evil = create_request("box");
  evil.set_id("../box");
  EXPECT_EQ(call<wire::CreateTaskResponse>(client, "Create", evil).code, 3);
}

std::size_t open_fds(pid_t pid) {
  return list_directory("/proc/" + std::to_string(pid) + "/fd").value_or({}).size();
}

TEST_F(Lifecycle, ExecsLeaveNeitherDescriptorsNorZombies) {
  make_bundle("box", {"sleep", "100"});
  TtrpcClient client(start_daemon("box"));
  const pid_t daemon = daemon_pid(client);
  create(client, "box");
  start(client, "box");
  ASSERT_EQ(::mkfifo(path("out").c_str(), 0600), 0);
  const UniqueFd reader(::open(path("out").c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  const auto round = [&](int number) {
    const std::string id = "e" + std::to_string(number);
    wire::ExecProcessRequest request;
    request.set_id("box");
    request.set_exec_id(id);
    request.set_stdout(path("out"));
    request.mutable_spec()->set_value(R"({"args":["sh","-c","(sleep 0.01 &) ; echo x"]})");
    EXPECT_EQ(call<Empty>(client, "Exec", request).code, 0);
    start(client, "box", id);
    wait(client, "box", id);
    EXPECT_EQ(remove(client, "box", id).code, 0);
  };
  round(0);
  const std::size_t before = open_fds(daemon);
  for (int number = 1; number <= 10; ++number) round(number);
  EXPECT_TRUE(wait_until([&] { return open_fds(daemon) == before; }))
      << before << " before, " << open_fds(daemon) << " after";
  const std::string children =
      "/proc/" + std::to_string(daemon) + "/task/" + std::to_string(daemon) + "/children";
  // Orphans of the execs are reaped too; init alone stays.
  EXPECT_TRUE(wait_until([&] {
    return split(trim(read(children)), ' ', SplitEmpty::drop).size() == 1;
  })) << read(children);
  finish(client, "box");
}

}  // namespace
}  // namespace icebox::test
