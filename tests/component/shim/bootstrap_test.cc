// SPDX-License-Identifier: Apache-2.0
// The command line of the real shim, and what holds when containerd or the daemon itself is gone.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "containerd/types.pb.h"
#include "google/protobuf/empty.pb.h"
#include "oci/base/file.h"
#include "oci/base/strings.h"
#include "tests/component/shim/shim_fixture.h"

namespace icebox::test {
namespace {

namespace wire = containerd::task::v2;
using google::protobuf::Empty;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr const char* kShimUnderTest =
    ICEBOX_BUILD_DIR "/shim-under-test/containerd-shim-icebox-v1";

class Bootstrap : public ShimTest {};

std::string readable_link(pid_t pid, int fd) {
  return read_link("/proc/" + std::to_string(pid) + "/fd/" + std::to_string(fd)).value_or("");
}

TEST_F(Bootstrap, VersionAndInfoAnswer) {
  make_bundle("x", {"true"});
  EXPECT_THAT(shim("x", {"-v"}).out, HasSubstr("Version:"));
  const Output output = shim("x", {"-info"});
  containerd::types::RuntimeInfo info;
  ASSERT_TRUE(info.ParseFromString(output.out)) << output.err;
  EXPECT_EQ(info.name(), "io.containerd.runc.icebox.v1");
  EXPECT_EQ(info.features().type_url(),
            "types.containerd.io/opencontainers/runtime-spec/1/features/Features");
  EXPECT_THAT(info.features().value(), HasSubstr("ociVersionMin"));
  // An OCI runtime without that command: an answer without features, not a failure.
  script("features", "fail no such command");
  const Output old = shim("x", {"-info"});
  EXPECT_EQ(old.wait_status, 0);
  ASSERT_TRUE(info.ParseFromString(old.out));
  EXPECT_FALSE(info.has_features());
}

TEST_F(Bootstrap, WrongCallsFailInWords) {
  make_bundle("x", {"true"});
  Output output = shim("x", {"-namespace=", "start"});
  EXPECT_NE(output.wait_status, 0);
  EXPECT_EQ(output.err, "shim namespace cannot be empty\n");
  output = shim("x", {"start"}, "\xff\xff\xff");
  EXPECT_NE(output.wait_status, 0);
  EXPECT_THAT(output.err, HasSubstr("standard input"));
  output = shim("x", {"dance"});
  EXPECT_NE(output.wait_status, 0);
}

TEST_F(Bootstrap, AMissingEngineIsNamedByStart) {
  make_bundle("x", {"true"});
  const std::string alone = path("containerd-shim-icebox-v1");
  const auto program = read_file(kShimUnderTest, std::size_t{64} << 20);
  ASSERT_TRUE(program.ok());
  ASSERT_TRUE(write_file_atomic(alone, *program, 0700, Durable::no).ok());
  Command command;
  command.argv = {alone, "-namespace", kNamespace, "-address", path("containerd.sock"),
                  "-id", "x",          "start"};
  command.env = {"PATH=" + path("nothing")};
  command.cwd = bundle("x");
  const auto output = run(command, {.deadline = std::chrono::seconds(20)});
  ASSERT_TRUE(output.ok()) << output.error().message;
  EXPECT_NE(output->wait_status, 0);
  EXPECT_THAT(output->err, HasSubstr("install icebox-runc beside this shim"));
  EXPECT_FALSE(file_exists(bundle("x") + "/address"));
}

TEST_F(Bootstrap, DaemonKeepsNothingOfItsStarter) {
  make_bundle("x", {"true"});
  TtrpcClient client(start_daemon("x"));
  const pid_t daemon = daemon_pid(client);
  EXPECT_EQ(readable_link(daemon, 0), "/dev/null");
  EXPECT_EQ(readable_link(daemon, 1), "/dev/null");
  EXPECT_EQ(readable_link(daemon, 2), bundle("x") + "/log");
  EXPECT_EQ(::getsid(daemon), daemon);
  const std::string own = read("/proc/self/oom_score_adj");
  EXPECT_EQ(
      parse_i64(trim(read("/proc/" + std::to_string(daemon) + "/oom_score_adj"))).value_or(-1),
      std::min<std::int64_t>(parse_i64(trim(own)).value_or(0) + 1, 1000));
  EXPECT_EQ(shutdown(client), 0);
  EXPECT_TRUE(ended_well(daemon));
}

TEST_F(Bootstrap, ASocketThatNobodyAnswersOnIsReplaced) {
  make_bundle("x", {"true"});
  pid_t first = 0;
  std::string socket;
  {
    socket = start_daemon("x");
    TtrpcClient client(socket);
    first = daemon_pid(client);
  }
  ASSERT_EQ(::kill(first, SIGKILL), 0);
  ASSERT_EQ(::waitpid(first, nullptr, 0), first);
  ASSERT_TRUE(file_exists(socket));
  EXPECT_EQ(start_daemon("x"), socket);
  TtrpcClient client(socket);
  EXPECT_NE(daemon_pid(client), first);
}

TEST_F(Bootstrap, SignalEndsTheDaemonInOrderAndLeavesTheContainer) {
  make_bundle("x", {"sleep", "100"});
  const std::string socket = start_daemon("x");
  TtrpcClient client(socket);
  const pid_t init = create(client, "x");
  start(client, "x");
  const pid_t daemon = daemon_pid(client);
  ASSERT_EQ(::kill(daemon, SIGTERM), 0);
  EXPECT_TRUE(ended_well(daemon));
  EXPECT_FALSE(file_exists(socket));
  EXPECT_EQ(::kill(init, 0), 0);
}

TEST_F(Bootstrap, DeleteAfterTheDaemonWasKilledTellsTheTrueStatus) {
  make_bundle("done", {"sh", "-c", "exit 42"});
  const std::string socket = start_daemon("done");
  pid_t pid = 0;
  pid_t daemon = 0;
  {
    TtrpcClient client(socket);
    daemon = daemon_pid(client);
    pid = create(client, "done");
    start(client, "done");
    EXPECT_EQ(wait(client, "done").exit_status(), 42U);
  }
  ASSERT_EQ(::kill(daemon, SIGKILL), 0);
  ASSERT_EQ(::waitpid(daemon, nullptr, 0), daemon);
  const wire::DeleteResponse answer = run_delete("done");
  EXPECT_EQ(answer.exit_status(), 42U);
  EXPECT_EQ(answer.pid(), static_cast<std::uint32_t>(pid));
  EXPECT_FALSE(file_exists(socket));
  EXPECT_FALSE(file_exists(path("root") + "/" + kNamespace + "/done"));
  EXPECT_EQ(run_delete("done").exit_status(), 42U);  // again, with nothing left to do
}

TEST_F(Bootstrap, DeleteOfARunningContainerKillsItAndSays137) {
  make_bundle("run", {"sleep", "100"});
  pid_t pid = 0;
  pid_t daemon = 0;
  {
    TtrpcClient client(start_daemon("run"));
    daemon = daemon_pid(client);
    pid = create(client, "run");
    start(client, "run");
  }
  ASSERT_EQ(::kill(daemon, SIGKILL), 0);
  ASSERT_EQ(::waitpid(daemon, nullptr, 0), daemon);
  const wire::DeleteResponse answer = run_delete("run");
  EXPECT_EQ(answer.exit_status(), 137U);
  EXPECT_EQ(answer.pid(), static_cast<std::uint32_t>(pid));
  int status = 0;
  ASSERT_EQ(::waitpid(pid, &status, 0), pid);
  EXPECT_TRUE(WIFSIGNALED(status));
}

TEST_F(Bootstrap, DeleteThatTheEngineCannotDoFailsInTime) {
  make_bundle("stuck", {"sleep", "100"});
  script("delete", "wait " + path("never"));
  const auto begin = std::chrono::steady_clock::now();
  const Output output = shim("stuck", {"-bundle", bundle("stuck"), "delete"});
  EXPECT_LT(std::chrono::steady_clock::now() - begin, seconds(5));
  EXPECT_NE(output.wait_status, 0);
}

TEST_F(Bootstrap, EventsSurviveAContainerdThatComesBack) {
  make_bundle("x", {"sleep", "100"});
  TtrpcClient client(start_daemon("x"));
  create(client, "x");
  ASSERT_TRUE(sink_->wait_for("/tasks/create"));
  sink_->stop();
  start(client, "x");
  kill(client, "x", SIGKILL);
  EXPECT_EQ(wait(client, "x").exit_status(), 137U);  // no operation waits for a delivery
  sink_->start();
  ASSERT_TRUE(sink_->wait_for("/tasks/exit"));
  EXPECT_THAT(sink_->topics(), ElementsAre("/tasks/create", "/tasks/start", "/tasks/exit"));
  const pid_t daemon = daemon_pid(client);
  EXPECT_EQ(remove(client, "x").code, 0);
  EXPECT_EQ(shutdown(client), 0);
  EXPECT_TRUE(ended_well(daemon));
  EXPECT_EQ(sink_->topics().back(), "/tasks/delete");  // queued right before the end
}

TEST_F(Bootstrap, ADaemonWithOneContainerStaysWithinItsMemory) {
  // Pages of a program that was just built count as dirty until they are on the disk.
  ASSERT_TRUE(sync_path(kShimUnderTest).ok());
  make_bundle("x", {"sleep", "100"});
  TtrpcClient client(start_daemon("x"));
  create(client, "x");
  start(client, "x");
  for (int i = 0; i < 20; ++i) {
    const std::string id = "e" + std::to_string(i);
    exec(client, "x", id, {"true"});
    start(client, "x", id);
    wait(client, "x", id);
    remove(client, "x", id);
  }
  std::uint64_t resident = 0;
  std::uint64_t dirty = 0;
  const std::string rollup = read("/proc/" + std::to_string(daemon_pid(client)) + "/smaps_rollup");
  for (const std::string_view line : split(rollup, '\n', SplitEmpty::drop)) {
    const std::vector<std::string_view> words = split(line, ' ', SplitEmpty::drop);
    if (words[0] == "Rss:") resident = parse_u64(words[1]).value_or(0);
    if (words[0] == "Private_Dirty:") dirty = parse_u64(words[1]).value_or(0);
  }
  RecordProperty("rss_kib", static_cast<int>(resident));
  RecordProperty("private_dirty_kib", static_cast<int>(dirty));
#if !defined(__SANITIZE_ADDRESS__)
  EXPECT_GT(resident, 0U);
  EXPECT_LE(resident, 4096U);
  EXPECT_LE(dirty, 1024U);
#endif
}

}  // namespace
}  // namespace icebox::test
