// SPDX-License-Identifier: Apache-2.0
#include "tests/component/shim/shim_fixture.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <thread>

#include "containerd/task_v2.pb.h"
#include "google/protobuf/empty.pb.h"
#include "oci/base/file.h"
#include "oci/base/log.h"
#include "oci/base/strings.h"

namespace icebox::test {
namespace {

namespace wire = containerd::task::v2;
using google::protobuf::Empty;

constexpr std::size_t kMaxFile = 16UL << 20;
const char* const kShim = ICEBOX_BUILD_DIR "/shim-under-test/containerd-shim-icebox-v1";

std::vector<pid_t> children_of(pid_t pid) {
  const std::string name = std::to_string(pid);
  std::vector<pid_t> children;
  const std::string text =
      read_file("/proc/" + name + "/task/" + name + "/children", kMaxFile).value_or("");
  for (const std::string_view word : split(text, ' ', SplitEmpty::drop)) {
    children.push_back(static_cast<pid_t>(parse_i64(trim(word)).value_or(0)));
  }
  return children;
}

}  // namespace

void ShimTest::SetUp() {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root";
  // Daemons and what they leave behind come back to this process, which sees how they ended.
  ASSERT_EQ(::prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0), 0);
  char name[] = "/tmp/icebox-shim-XXXXXX";
  ASSERT_NE(::mkdtemp(name), nullptr);
  directory_ = name;
  for (const char* each : {"fake", "s", "tmp", "bundles", "root"}) {
    ASSERT_EQ(::mkdir(path(each).c_str(), 0700), 0);
  }
  sink_ = std::make_unique<EventSink>(path("events.sock"));
}

void ShimTest::TearDown() {
  if (directory_.empty()) return;
  for (const pid_t daemon : daemons_) {
    std::vector<pid_t> left = children_of(daemon);
    ::kill(daemon, SIGKILL);
    for (const pid_t pid : left) ::kill(pid, SIGKILL);
  }
  // Processes that containers left behind are children of this process now.
  while (!children_of(::getpid()).empty()) {
    for (const pid_t pid : children_of(::getpid())) ::kill(pid, SIGKILL);
    if (::waitpid(-1, nullptr, 0) < 0) break;
  }
  sink_.reset();
  EXPECT_TRUE(remove_tree(directory_).ok());
}

// --- bundles
// --------------------------------------------------------------------------------------

std::string ShimTest::bundle(const std::string& id) const { return path("bundles/" + id); }

std::string ShimTest::make_bundle(const std::string& id, const std::vector<std::string>& args,
                                  const std::string& annotations) {
  const std::string directory = bundle(id);
  EXPECT_EQ(::mkdir(directory.c_str(), 0700), 0);
  EXPECT_EQ(::mkfifo((directory + "/log").c_str(), 0700), 0);
  EXPECT_EQ(::mkdir((directory + "/work").c_str(), 0700), 0);
  std::vector<std::string> quoted;
  quoted.reserve(args.size());
  for (const std::string& arg : args) quoted.push_back(log::json_quote(arg));
  const std::string config = R"({"ociVersion":"1.0.2","process":{"args":[)" + join(quoted, ",") +
                             R"(],"cwd":"/"},"root":{"path":"rootfs"},"annotations":{)" +
                             annotations + "}}";
  EXPECT_TRUE(write_file_atomic(directory + "/config.json", config, 0600, Durable::no).ok());
  return directory;
}

// --- the shim's command line
// ----------------------------------------------------------------------

Output ShimTest::shim(const std::string& id, const std::vector<std::string>& action,
                      const std::string& input) {
  Command command;
  command.argv = {kShim,
                  "-namespace",
                  kNamespace,
                  "-address",
                  path("containerd.sock"),
                  "-publish-binary",
                  "/usr/bin/containerd",
                  "-id",
                  id};
  command.argv.insert(command.argv.end(), action.begin(), action.end());
  command.env = {"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "TTRPC_ADDRESS=" + path("events.sock"),
                 "FAKE_RUNC_DIR=" + path("fake"), "TMPDIR=" + path("tmp")};
  command.cwd = bundle(id);
  const std::string input_file = path("stdin");
  EXPECT_TRUE(write_file_atomic(input_file, input, 0600, Durable::no).ok());
  const UniqueFd stdin_fd(::open(input_file.c_str(), O_RDONLY | O_CLOEXEC));
  command.fds = {{stdin_fd.get(), 0}};
  RunOptions options;
  options.deadline = seconds(20);
  Result<Output> output = run(command, options);
  EXPECT_TRUE(output.ok()) << output.error().message;
  return output.ok() ? *output : Output{};
}

std::string ShimTest::start_daemon(const std::string& id) {
  // As BootstrapParams of containerd 2.3 would say it, for a socket directory of the test's own.
  const std::string directory = path("s");
  std::string params;
  const auto add = [&](char tag, const std::string& value) {
    params.push_back(tag);
    params.push_back(static_cast<char>(value.size()));
    params += value;
  };
  add(0x0a, id);          // instance_id
  add(0x12, kNamespace);  // namespace
  add(0x4a, directory);   // socket_dir
  const Output output = shim(id, {"start"}, params);
  EXPECT_EQ(output.wait_status, 0) << output.out << output.err;
  EXPECT_EQ(output.err, "");
  const std::string prefix = "unix://" + directory + "/";
  EXPECT_TRUE(output.out.starts_with(prefix)) << output.out;
  EXPECT_EQ(read(bundle(id) + "/address"), output.out);
  const std::string socket = output.out.substr(std::string("unix://").size());
  TtrpcClient client(socket);
  const pid_t daemon = daemon_pid(client);
  if (std::find(daemons_.begin(), daemons_.end(), daemon) == daemons_.end()) {
    daemons_.push_back(daemon);
  }
  return socket;
}

wire::DeleteResponse ShimTest::run_delete(const std::string& id) {
  const Output output = shim(id, {"-bundle", bundle(id), "delete"});
  EXPECT_EQ(output.wait_status, 0) << output.err;
  wire::DeleteResponse response;
  EXPECT_TRUE(response.ParseFromString(output.out));
  return response;
}

pid_t ShimTest::daemon_pid(TtrpcClient& client) {
  const auto answer = call<wire::ConnectResponse>(client, "Connect", wire::ConnectRequest());
  EXPECT_EQ(answer.code, 0) << answer.message;
  return static_cast<pid_t>(answer.body.shim_pid());
}

bool ShimTest::ended_well(pid_t daemon) {
  int status = -1;
  const bool ended = wait_until([&] { return ::waitpid(daemon, &status, WNOHANG) == daemon; });
  return ended && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

// --- the fake engine
// ------------------------------------------------------------------------------

void ShimTest::script(const std::string& command, const std::string& steps) const {
  ASSERT_TRUE(write_file_atomic(path("fake/" + command), steps + "\n", 0600, Durable::no).ok());
}

void ShimTest::unscript(const std::string& command) const {
  ::unlink(path("fake/" + command).c_str());
}

std::vector<std::string> ShimTest::calls(const std::string& command) const {
  std::vector<std::string> found;
  const std::string text = read(path("fake/calls"));
  for (const std::string_view line : split(text, '\n', SplitEmpty::drop)) {
    const std::size_t at = line.find(" --log-format json " + command + " ");
    if (at != std::string_view::npos) found.emplace_back(line.substr(at + 19));
  }
  return found;
}

// --- calls
// ----------------------------------------------------------------------------------------

wire::CreateTaskRequest ShimTest::create_request(const std::string& id) const {
  wire::CreateTaskRequest request;
  request.set_id(id);
  request.set_bundle(bundle(id));
  // Options with a state directory of the test's own: field 7, root.
  const std::string root = path("root");
  request.mutable_options()->set_type_url("containerd.runc.v1.Options");
  request.mutable_options()->set_value(std::string("\x3a") + static_cast<char>(root.size()) + root);
  return request;
}

pid_t ShimTest::create(TtrpcClient& client, const std::string& id) {
  const auto answer = call<wire::CreateTaskResponse>(client, "Create", create_request(id));
  EXPECT_EQ(answer.code, 0) << answer.message;
  return static_cast<pid_t>(answer.body.pid());
}

pid_t ShimTest::start(TtrpcClient& client, const std::string& id, const std::string& exec_id) {
  wire::StartRequest request;
  request.set_id(id);
  request.set_exec_id(exec_id);
  const auto answer = call<wire::StartResponse>(client, "Start", request);
  EXPECT_EQ(answer.code, 0) << answer.message;
  return static_cast<pid_t>(answer.body.pid());
}

wire::StateResponse ShimTest::state(TtrpcClient& client, const std::string& id,
                                    const std::string& exec_id) {
  wire::StateRequest request;
  request.set_id(id);
  request.set_exec_id(exec_id);
  // containerd's own limit: a State that takes longer makes the task "unknown".
  const auto answer = call<wire::StateResponse>(client, "State", request, seconds(2));
  EXPECT_EQ(answer.code, 0) << answer.message;
  return answer.body;
}

void ShimTest::exec(TtrpcClient& client, const std::string& id, const std::string& exec_id,
                    const std::vector<std::string>& args) {
  wire::ExecProcessRequest request;
  request.set_id(id);
  request.set_exec_id(exec_id);
  std::vector<std::string> quoted;
  quoted.reserve(args.size());
  for (const std::string& arg : args) quoted.push_back(log::json_quote(arg));
  request.mutable_spec()->set_type_url("types.containerd.io/opencontainers/runtime-spec/1/Process");
  request.mutable_spec()->set_value(R"({"cwd":"/","args":[)" + join(quoted, ",") + "]}");
  const auto answer = call<Empty>(client, "Exec", request);
  EXPECT_EQ(answer.code, 0) << answer.message;
}

int ShimTest::kill(TtrpcClient& client, const std::string& id, int signo,
                   const std::string& exec_id) {
  wire::KillRequest request;
  request.set_id(id);
  request.set_exec_id(exec_id);
  request.set_signal(static_cast<std::uint32_t>(signo));
  return call<Empty>(client, "Kill", request).code;
}

wire::WaitResponse ShimTest::wait(TtrpcClient& client, const std::string& id,
                                  const std::string& exec_id) {
  wire::WaitRequest request;
  request.set_id(id);
  request.set_exec_id(exec_id);
  const auto answer = call<wire::WaitResponse>(client, "Wait", request);
  EXPECT_EQ(answer.code, 0) << answer.message;
  return answer.body;
}

Typed<wire::DeleteResponse> ShimTest::remove(TtrpcClient& client, const std::string& id,
                                             const std::string& exec_id) {
  wire::DeleteRequest request;
  request.set_id(id);
  request.set_exec_id(exec_id);
  return call<wire::DeleteResponse>(client, "Delete", request);
}

int ShimTest::shutdown(TtrpcClient& client) {
  return call<Empty>(client, "Shutdown", wire::ShutdownRequest()).code;
}

void ShimTest::finish(TtrpcClient& client, const std::string& id) {
  const pid_t daemon = daemon_pid(client);
  EXPECT_EQ(kill(client, id, SIGKILL), 0);
  EXPECT_EQ(wait(client, id).exit_status(), 137U);
  EXPECT_EQ(remove(client, id).code, 0);
  EXPECT_EQ(shutdown(client), 0);
  EXPECT_TRUE(ended_well(daemon));
}

// --- small things
// ---------------------------------------------------------------------------------

bool ShimTest::wait_until(const std::function<bool()>& condition, milliseconds limit) {
  const auto deadline = std::chrono::steady_clock::now() + limit;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(milliseconds(2));
  }
  return true;
}

bool ShimTest::file_exists(const std::string& path) { return exists(path); }

std::string ShimTest::read(const std::string& path) {
  return read_file(path, kMaxFile).value_or("");
}

}  // namespace icebox::test
