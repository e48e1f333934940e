// SPDX-License-Identifier: Apache-2.0
//
// Drivers, targets and hosts that misbehave, and what the engine is told about them.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "oci/base/file.h"
#include "tests/component/cuda/sim_host.h"

namespace icebox::cuda::testing {
namespace {

using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::HasSubstr;

class AgentFailure : public ::testing::Test {
 protected:
  // The one outcome of an operation on one process.
  Outcome only(Result<std::vector<Outcome>> result) {
    EXPECT_TRUE(result.ok()) << result.error().message;
    return result.ok() && result->size() == 1 ? result->front() : Outcome();
  }
  Outcome lock(const Sample& sample, milliseconds deadline = milliseconds(10'000)) {
    return only(agent_.lock({sample.target()}, deadline));
  }

  SimHost host_;
  GpuAgent agent_ = host_.agent();
};

TEST_F(AgentFailure, WorkThatDoesNotDrainEndsAtTheDeadline) {
  Sample busy(host_);
  Sample idle(host_);
  busy.set_knobs("lock=busy\n");
  const auto begin = std::chrono::steady_clock::now();
  const auto result = agent_.lock({busy.target(), idle.target()}, milliseconds(300));
  const auto time = std::chrono::steady_clock::now() - begin;
  ASSERT_TRUE(result.ok()) << result.error().message;
  EXPECT_GE(time, milliseconds(300));
  EXPECT_LT(time, milliseconds(300) + milliseconds(2'000)) << "no grace was needed";
  const Outcome& failed = result->at(0);
  EXPECT_EQ(failed.ending, Ending::driver_error);
  EXPECT_EQ(failed.name, "CUDA_ERROR_NOT_READY");
  EXPECT_EQ(failed.code, 600);
  EXPECT_EQ(failed.state, ProcessState::running);
  EXPECT_TRUE(result->at(1).ok()) << "the caller decides what to undo";
  EXPECT_THAT(describe_failures(*result), HasSubstr("process " + std::to_string(busy.pid())));
  EXPECT_FALSE(all_ok(*result));

  EXPECT_TRUE(only(agent_.unlock({idle.target()})).ok());
  EXPECT_EQ(busy.ask("inc")["counter"], "1");
  busy.set_knobs("");
  EXPECT_TRUE(lock(busy).ok()) << "nothing is left of the failed lock";
}

TEST_F(AgentFailure, ADriverThatIgnoresItsTimeoutIsReportedAndItsLateLockUndone) {
  Sample counter(host_);
  counter.set_knobs("lock=hang\n");
  const auto begin = std::chrono::steady_clock::now();
  const Outcome outcome = lock(counter, milliseconds(200));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, milliseconds(6'000));
  EXPECT_EQ(outcome.ending, Ending::no_answer);
  EXPECT_THAT(outcome.message, HasSubstr("did not answer"));

  counter.send("inc");
  EXPECT_EQ(counter.read_line(milliseconds(100)), "");
  counter.set_knobs("");
  EXPECT_EQ(words_of(counter.read_line())["counter"], "1") << "unlocked by the agent";
  EXPECT_TRUE(lock(counter).ok()) << "and can be locked again";
}

TEST_F(AgentFailure, TheLateLockIsUndoneEvenIfTheClientIsGone) {
  Sample counter(host_);
  counter.set_knobs("lock=hang\n");
  pid_t agent_pid = 0;
  {
    GpuAgent agent = host_.agent();
    agent_pid = agent.pid();
    ASSERT_EQ(only(agent.lock({counter.target()}, milliseconds(100))).ending, Ending::no_answer);
  }
  ASSERT_TRUE(process_start_time(agent_pid).ok()) << "it still has something to do";
  counter.set_knobs("");
  EXPECT_EQ(counter.ask("inc")["counter"], "1");
  int status = -1;
  EXPECT_EQ(::waitpid(agent_pid, &status, 0), agent_pid);
  EXPECT_EQ(status, 0);
}

TEST_F(AgentFailure, AStoppedProcessNeitherHangsTheAgentNorStaysLocked) {
  // The real driver, too, ignores the timeout then, and the lock takes effect when it goes on.
  Sample counter(host_);
  ::kill(counter.pid(), SIGSTOP);
  siginfo_t stopped = {};
  ASSERT_EQ(::waitid(P_PID, static_cast<id_t>(counter.pid()), &stopped, WSTOPPED), 0);
  EXPECT_TRUE(only(agent_.restore_threads({counter.target()})).ok()) << "answers all the same";
  EXPECT_EQ(lock(counter, milliseconds(100)).ending, Ending::no_answer);
  ::kill(counter.pid(), SIGCONT);
  EXPECT_EQ(counter.ask("inc")["counter"], "1");
}

TEST_F(AgentFailure, OperationsOutOfOrderAreTheDriversErrors) {
  const Sample counter(host_);
  const Outcome checkpoint = only(agent_.checkpoint({counter.target()}));
  EXPECT_EQ(checkpoint.name, "CUDA_ERROR_ILLEGAL_STATE");
  EXPECT_EQ(checkpoint.code, 401);
  EXPECT_EQ(checkpoint.state, ProcessState::running);
  EXPECT_EQ(only(agent_.restore({counter.target()})).code, 401);
  EXPECT_EQ(only(agent_.unlock({counter.target()})).code, 401);
  ASSERT_TRUE(lock(counter).ok());
  EXPECT_EQ(lock(counter).code, 401);
  EXPECT_EQ(lock(counter).state, ProcessState::locked);
}

TEST_F(AgentFailure, AFailedCheckpointLeavesItsStateToBeSeen) {
  const Sample refused(host_);
  const Sample broken(host_);
  refused.set_knobs("checkpoint=801\n");
  broken.set_knobs("checkpoint=then_failed\n");
  ASSERT_TRUE(lock(refused).ok());
  ASSERT_TRUE(lock(broken).ok());
  const auto result = agent_.checkpoint({refused.target(), broken.target()});
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result->at(0).name, "CUDA_ERROR_NOT_SUPPORTED");
  EXPECT_EQ(result->at(0).state, ProcessState::locked);
  EXPECT_EQ(result->at(1).ending, Ending::driver_error);
  EXPECT_EQ(result->at(1).state, ProcessState::failed);
  EXPECT_TRUE(only(agent_.unlock({refused.target()})).ok());
}

TEST_F(AgentFailure, UnknownStatesAreBusy) {
  const Sample counter(host_);
  for (const char* knob : {"state=4\n", "state=5\n"}) {
    counter.set_knobs(knob);
    EXPECT_EQ(only(agent_.states({counter.target()})).state, ProcessState::busy);
  }
}

TEST_F(AgentFailure, RestoreWithoutMemoryNamesTheCause) {
  const Sample counter(host_);
  ASSERT_TRUE(lock(counter).ok());
  ASSERT_TRUE(only(agent_.checkpoint({counter.target()})).ok());
  counter.set_knobs("restore=oom_sticky\n");
  const Outcome outcome = only(agent_.restore({counter.target()}));
  EXPECT_EQ(outcome.name, "CUDA_ERROR_OUT_OF_MEMORY");
  EXPECT_THAT(outcome.message, HasSubstr("not enough free GPU memory"));
  counter.set_knobs("");
  EXPECT_EQ(only(agent_.restore({counter.target()})).code, 304) << "stuck for good";
}

TEST_F(AgentFailure, ATargetThatDiesInsideAnOperationIsGone) {
  const Sample crashes(host_);
  crashes.set_knobs("lock=crash\n");
  EXPECT_EQ(lock(crashes).ending, Ending::gone);

  // Dies and lets its caller hang for ever: the agent gives up by itself.
  for (const char* knob : {"checkpoint=die\n", "checkpoint=die_hang\n"}) {
    const Sample dies(host_);
    ASSERT_TRUE(lock(dies).ok());
    dies.set_knobs(knob);
    const Outcome outcome = only(agent_.checkpoint({dies.target()}));
    EXPECT_EQ(outcome.ending, Ending::gone) << knob;
    EXPECT_THAT(outcome.message, HasSubstr("ended"));
  }
  const Sample next(host_);
  EXPECT_TRUE(lock(next).ok()) << "the agent goes on with others";
}

TEST_F(AgentFailure, WrongTargetsAreRefusedBeforeTheDriverIsAsked) {
  const Sample counter(host_);
  const Outcome thread = only(agent_.restore_threads({counter.target()}));
  const pid_t tid = thread.restore_thread;
  const Outcome by_thread =
      only(agent_.lock({{tid, process_start_time(tid).value()}}, milliseconds(1'000)));
  EXPECT_EQ(by_thread.ending, Ending::refused);
  EXPECT_THAT(by_thread.message,
              HasSubstr("is a thread id of process " + std::to_string(counter.pid())));

  Target reused = counter.target();
  --reused.start_time;
  const Outcome by_age = only(agent_.lock({reused}, milliseconds(1'000)));
  EXPECT_EQ(by_age.ending, Ending::refused);
  EXPECT_THAT(by_age.message, HasSubstr("is another process by now"));

  Target dead;
  {
    const Sample other(host_);
    dead = other.target();
  }
  EXPECT_EQ(only(agent_.lock({dead}, milliseconds(1'000))).ending, Ending::gone);
  EXPECT_EQ(only(agent_.states({counter.target()})).state, ProcessState::running);
}

TEST_F(AgentFailure, ALibraryThatIsMissingIsNamedWithTheWayOut) {
  auto options = host_.options();
  options.libcuda = host_.path("nowhere/libcuda.so.1");
  auto agent = GpuAgent::start(options);
  ASSERT_TRUE(agent.ok()) << "nothing is loaded before it is needed";
  const auto result = agent->init();
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.error().code, Code::failed_precondition);
  EXPECT_THAT(result.error().message, AllOf(HasSubstr(options.libcuda), HasSubstr("on the host"),
                                            HasSubstr("`libcuda` in Icebox's configuration")));

  options = host_.options();
  options.libnvidia_ml = host_.path("nowhere/libnvidia-ml.so.1");
  agent = GpuAgent::start(options);
  ASSERT_TRUE(agent.ok());
  const auto info = agent->info();
  ASSERT_FALSE(info.ok());
  EXPECT_THAT(info.error().message, HasSubstr("`libnvidia_ml`"));
}

TEST_F(AgentFailure, ADriverThatIsTooOldIsNamedWithItsVersion) {
  const Sample counter(host_);
  auto options = host_.options();
  options.libcuda = std::string(ICEBOX_BUILD_DIR) + "/fakes/old/libcuda.so.1";
  auto agent = GpuAgent::start(options);
  ASSERT_TRUE(agent.ok());
  const auto result = agent->lock({counter.target()}, milliseconds(1'000));
  ASSERT_FALSE(result.ok());
  EXPECT_THAT(result.error().message,
              AllOf(HasSubstr("too old"), HasSubstr("CUDA 12.4"), HasSubstr("cuCheckpointProcess"),
                    HasSubstr("570 or newer")));
  const auto info = agent->info();
  ASSERT_TRUE(info.ok()) << info.error().message;
  EXPECT_FALSE(info->has_checkpoint_api);
  EXPECT_FALSE(info->can_remap_gpus);
}

TEST(AgentHost, AHostWithoutGpuSaysThatItIsTheHost) {
  const SimHost host("gpus=0\n");
  GpuAgent agent = host.agent();
  const auto result = agent.init();
  ASSERT_FALSE(result.ok());
  EXPECT_THAT(result.error().message,
              AllOf(HasSubstr("host side"), HasSubstr("not an error of the container"),
                    HasSubstr(host.libcuda()), HasSubstr("CUDA_ERROR_NO_DEVICE (100")));
}

TEST_F(AgentFailure, AnAgentThatDiesIsAnErrorThatSaysWhatWasUnderWay) {
  Sample counter(host_);
  ASSERT_TRUE(lock(counter).ok());
  counter.set_knobs("checkpoint=hang\n");
  const auto result = agent_.checkpoint(
      {counter.target()}, [&](milliseconds) { return ::kill(agent_.pid(), SIGKILL) == 0; });
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.error().code, Code::unavailable);
  EXPECT_THAT(result.error().message, HasSubstr("during checkpoint of 1 process: it was killed by "
                                                "signal 9"));
  const auto next = agent_.states({counter.target()});
  ASSERT_FALSE(next.ok());
  EXPECT_THAT(next.error().message, HasSubstr("lost before"));
}

TEST_F(AgentFailure, AProgramThatIsNoAgentIsNotWaitedFor) {
  auto options = host_.options();
  options.agent_path = "/bin/false";
  const auto agent = GpuAgent::start(options);
  ASSERT_FALSE(agent.ok());
  EXPECT_THAT(agent.error().message, HasSubstr("during hello: it exited with status 1"));
  options.agent_path = host_.path("nowhere/icebox-gpu");
  EXPECT_FALSE(GpuAgent::start(options).ok());
}

TEST_F(AgentFailure, AnAgentThatDoesNotAnswerIsGivenUp) {
  auto options = host_.options();
  options.agent_path = host_.path("silent");
  ASSERT_TRUE(
      write_file_atomic(options.agent_path, "#!/bin/sh\nexec sleep 1000\n", 0755, Durable::no)
          .ok());
  options.start_timeout = milliseconds(200);
  const auto agent = GpuAgent::start(options);
  ASSERT_FALSE(agent.ok());
  EXPECT_EQ(agent.error().code, Code::deadline_exceeded);
}

}  // namespace
}  // namespace icebox::cuda::testing
