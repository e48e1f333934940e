// SPDX-License-Identifier: Apache-2.0
//
// The agent as a process: how it is confined, what it does with signals, with bytes that are no
// requests, and when its client goes away.
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/inotify.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "oci/base/file.h"
#include "oci/base/subprocess.h"
#include "runtime-hooks/cuda/protocol.h"
#include "tests/component/cuda/sim_host.h"

namespace icebox::cuda::testing {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;
using ::testing::Not;

// An agent without its client: the test holds the other end of the socket.
class RawAgent {
 public:
  explicit RawAgent(const SimHost& host) {
    int ends[2];
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    socket_ = UniqueFd(ends[0]);
    const UniqueFd theirs(ends[1]);
    const auto options = host.options();
    Command command;
    command.argv = {options.agent_path, "--libcuda", options.libcuda, "--nvml",
                    options.libnvidia_ml};
    command.fds = {{theirs.get(), protocol::kAgentFd}};
    auto child = spawn(command);
    EXPECT_TRUE(child.ok());
    if (child.ok()) process_ = std::move(child->process);
  }
  RawAgent(const RawAgent&) = delete;
  RawAgent& operator=(const RawAgent&) = delete;
  ~RawAgent() {
    if (reaped_) return;
    static_cast<void>(process_.signal(SIGKILL).ok());
    static_cast<void>(wait_status(process_).ok());
  }

  [[nodiscard]] int socket() const { return socket_.get(); }
  [[nodiscard]] const PidRef& process() const { return process_; }
  void close() { socket_.reset(); }
  void send(std::string_view bytes) const {
    EXPECT_EQ(::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes.size()));
  }
  void send(const protocol::Request& request) const {
    EXPECT_TRUE(protocol::send_frame(socket_.get(), protocol::encode(request)).ok());
  }
  std::string receive() {
    auto payload = protocol::receive_frame(socket_.get(), decoder_, kPatience);
    EXPECT_TRUE(payload.ok());
    return payload.ok() && payload->has_value() ? **payload : "";
  }
  // Exit status once it has ended by itself; -1 if it does not.
  int exit_status() {
    if (!process_.wait_end(kPatience)) return -1;
    reaped_ = true;
    return exit_code_of(wait_status(process_).value());
  }

 private:
  UniqueFd socket_;
  PidRef process_;
  protocol::FrameDecoder decoder_;
  bool reaped_ = false;
};

protocol::Request request_for(Operation operation, const Target& target) {
  protocol::Action action;
  action.operation = operation;
  action.targets = {target};
  if (protocol::has_deadline(operation)) action.timeout_ms = 5'000;
  return {1, action};
}

// Tells when the restore thread of a sample looks at its knobs: it is inside an operation then.
class KnobWatch {
 public:
  explicit KnobWatch(const Sample& sample) : fd_(::inotify_init1(IN_CLOEXEC)) {
    EXPECT_GE(::inotify_add_watch(fd_.get(), sample.knob_file().c_str(), IN_OPEN), 0);
  }
  bool wait() {
    pollfd ready = {fd_.get(), POLLIN, 0};
    return ::poll(&ready, 1, static_cast<int>(kPatience.count())) == 1;
  }

 private:
  UniqueFd fd_;
};

TEST(AgentProcess, SurvivesSignalsAndFinishesWhatItBeganWhenItsClientDies) {
  const SimHost host;
  Sample counter(host);
  const std::string token = counter.ask("inc")["token"];
  RawAgent agent(host);
  agent.send(request_for(Operation::lock, counter.target()));
  ASSERT_THAT(agent.receive(), HasSubstr(R"("ending":"ok")"));

  counter.set_knobs("checkpoint=hang\n");
  KnobWatch watch(counter);
  agent.send(request_for(Operation::checkpoint, counter.target()));
  ASSERT_TRUE(watch.wait());
  for (const int signo : {SIGTERM, SIGINT, SIGHUP, SIGQUIT}) {
    ASSERT_TRUE(agent.process().signal(signo).ok());
  }
  agent.close();
  EXPECT_FALSE(agent.process().wait_end(milliseconds(300))) << "an operation is under way";
  counter.set_knobs("");
  EXPECT_EQ(agent.exit_status(), 0);

  GpuAgent next = host.agent();
  const auto states = next.states({counter.target()});
  ASSERT_TRUE(states.ok());
  EXPECT_EQ(states->at(0).state, ProcessState::checkpointed) << "finished, not cut short";
  ASSERT_TRUE(next.restore({counter.target()}).ok());
  ASSERT_TRUE(next.unlock({counter.target()}).ok());
  EXPECT_EQ(counter.ask("get")["token"], token);
}

TEST(AgentProcess, EndsWhenAnOperationHangsOnATargetThatIsKilled) {
  const SimHost host;
  const Sample counter(host);
  counter.set_knobs("lock=hang\n");
  RawAgent agent(host);
  protocol::Request request = request_for(Operation::lock, counter.target());
  std::get<protocol::Action>(request.what).timeout_ms = 50;
  agent.send(request);
  ASSERT_THAT(agent.receive(), HasSubstr("no_answer"));
  agent.close();
  EXPECT_FALSE(agent.process().wait_end(milliseconds(300))) << "it must undo a late lock";
  counter.kill();
  EXPECT_EQ(agent.exit_status(), 0);
}

TEST(AgentProcess, AnswersBytesThatAreNoRequestsWithAnErrorAndEnds) {
  const SimHost host;
  const struct {
    std::string bytes;
    const char* message;
  } cases[] = {
      {"GET / HTTP/1.1\r\n\r\n", "impossible length"},
      {std::string("\0\0\0\0", 4), "impossible length"},
      {protocol::frame("{\"op\":").value(), "not valid JSON"},
      {protocol::frame("[1,2,3]").value(), "not a JSON object"},
      {protocol::frame(R"({"version":99,"id":1,"op":"hello"})").value(),
       "must come from one release"},
      {protocol::frame(R"({"version":1,"id":1,"op":"reboot"})").value(), "no known operation"},
      {protocol::frame(R"({"version":1,"id":1,"op":"lock","targets":[{"pid":-1,"start_time":1}],)"
                       R"("timeout_ms":1})")
           .value(),
       "targets[0].pid"},
  };
  for (const auto& entry : cases) {
    RawAgent agent(host);
    agent.send(entry.bytes);
    const std::string answer = agent.receive();
    EXPECT_THAT(answer, HasSubstr(entry.message));
    EXPECT_THAT(answer, HasSubstr(R"("id":0)"));
    EXPECT_EQ(agent.exit_status(), 1) << entry.message;
  }
}

TEST(AgentProcess, EndsQuietlyWhenItsClientLeaves) {
  const SimHost host;
  RawAgent agent(host);
  agent.send({1, protocol::Query::hello});
  EXPECT_EQ(agent.receive(), R"({"id":1})");
  agent.close();
  EXPECT_EQ(agent.exit_status(), 0);

  RawAgent cut(host);
  cut.send(std::string_view("\x20\0\0\0{", 5));
  cut.close();
  EXPECT_EQ(cut.exit_status(), 1);
}

// The value of a field of /proc/PID/status, as hexadecimal.
std::uint64_t status_field(pid_t pid, const std::string& field) {
  const std::string status = read_file("/proc/" + std::to_string(pid) + "/status", 65536).value();
  const auto at = status.find("\n" + field + ":");
  return at == std::string::npos ? ~0ULL
                                 : std::stoull(status.substr(at + field.size() + 2), nullptr, 16);
}

TEST(AgentProcess, RunsConfinedAndWithNothingOfItsCallersEnvironment) {
  const SimHost host;
  // What would change the driver's behaviour, or every program's, if it got through.
  ::setenv("LD_PRELOAD", "/nowhere/poison.so", 1);
  ::setenv("LD_LIBRARY_PATH", "/nowhere", 1);
  ::setenv("CUDA_VISIBLE_DEVICES", "7", 1);
  GpuAgent agent = host.agent();
  ::unsetenv("LD_PRELOAD");
  ::unsetenv("LD_LIBRARY_PATH");
  ::unsetenv("CUDA_VISIBLE_DEVICES");
  ASSERT_TRUE(agent.init().ok());
  const std::string environment =
      read_file("/proc/" + std::to_string(agent.pid()) + "/environ", 65536).value();
  EXPECT_THAT(environment, HasSubstr("PATH="));
  EXPECT_THAT(environment, Not(HasSubstr("poison")));
  EXPECT_THAT(environment, Not(HasSubstr("CUDA")));
  EXPECT_THAT(environment, Not(HasSubstr("LD_")));

  constexpr std::uint64_t kCapDacOverride = 1ULL << 1;
  constexpr std::uint64_t kCapDacReadSearch = 1ULL << 2;
  constexpr std::uint64_t kCapSysPtrace = 1ULL << 19;
  EXPECT_EQ(
      status_field(agent.pid(), "CapEff") & ~(kCapDacOverride | kCapDacReadSearch | kCapSysPtrace),
      0U);
  EXPECT_EQ(status_field(agent.pid(), "CapInh"), 0U);
  EXPECT_EQ(status_field(agent.pid(), "NoNewPrivs"), 1U);
  EXPECT_EQ(status_field(agent.pid(), "Seccomp"), 2U);
  EXPECT_EQ(::getsid(agent.pid()), agent.pid());
}

Output run_agent(const std::vector<std::string>& arguments) {
  Command command;
  command.argv = {std::string(ICEBOX_BIN_DIR) + "/icebox-gpu"};
  command.argv.insert(command.argv.end(), arguments.begin(), arguments.end());
  RunOptions options;
  options.deadline = kPatience;
  return run(command, options).value();
}

TEST(AgentProbe, PrintsDriverAndGpusOrOneError) {
  const SimHost host("gpus=2\n");
  const Output good =
      run_agent({"--probe", "--libcuda", host.libcuda(), "--nvml", host.path("libnvidia-ml.so.1")});
  EXPECT_EQ(exit_code_of(good.wait_status), 0) << good.err;
  EXPECT_EQ(good.err, "");
  EXPECT_THAT(good.out, HasSubstr(R"("has_checkpoint_api":true)"));
  EXPECT_THAT(good.out, HasSubstr("GPU-1ceb0c5e-0000-4000-8000-000000000001"));
  EXPECT_EQ(std::count(good.out.begin(), good.out.end(), '\n'), 1);

  const Output bad = run_agent({"--probe", "--libcuda", "/nowhere/libcuda.so.1"});
  EXPECT_EQ(exit_code_of(bad.wait_status), 1);
  EXPECT_EQ(bad.out, "");
  EXPECT_THAT(bad.err, HasSubstr("/nowhere/libcuda.so.1"));
  EXPECT_EQ(std::count(bad.err.begin(), bad.err.end(), '\n'), 1);
}

TEST(AgentProbe, RefusesAWrongCommandLine) {
  EXPECT_EQ(exit_code_of(run_agent({}).wait_status), 2) << "no socket";
  EXPECT_EQ(exit_code_of(run_agent({"--caps", "omnipotence", "--probe"}).wait_status), 2);
  const Output unknown = run_agent({"--frobnicate"});
  EXPECT_EQ(exit_code_of(unknown.wait_status), 2);
  EXPECT_THAT(unknown.err, HasSubstr("usage: icebox-gpu"));
}

}  // namespace
}  // namespace icebox::cuda::testing
