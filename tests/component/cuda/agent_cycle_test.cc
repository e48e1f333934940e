// SPDX-License-Identifier: Apache-2.0
//
// What the agent does when all goes well: whole cycles on the simulated driver, with device memory
// proving that it was really gone and really came back.
#include <signal.h>
#include <unistd.h>

#include <memory>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/component/cuda/sim_host.h"

namespace icebox::cuda::testing {
namespace {

using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::SizeIs;

constexpr milliseconds kLockTime{10'000};
// Fixed by the simulated driver for GPU 0 and 1.
constexpr const char* kGpu0 = "GPU-1ceb0c5e-0000-4000-8000-000000000000";
constexpr const char* kGpu1 = "GPU-1ceb0c5e-0000-4000-8000-000000000001";

template <typename T>
T value_of(Result<T> result) {
  EXPECT_TRUE(result.ok()) << result.error().message;
  return result.ok() ? std::move(result).value() : T();
}

void expect_state(const Result<std::vector<Outcome>>& result, ProcessState state) {
  ASSERT_TRUE(result.ok()) << result.error().message;
  for (const Outcome& outcome : *result) {
    EXPECT_TRUE(outcome.ok()) << outcome.message;
    EXPECT_EQ(outcome.state, state) << outcome.target.pid;
  }
}

TEST(AgentCycle, DeviceMemoryComesBackAndTheProcessGoesOn) {
  const SimHost host;
  Sample counter(host);
  auto before = counter.ask("inc");
  ASSERT_EQ(before["counter"], "1");
  GpuAgent agent = host.agent();
  const std::vector<Target> targets = {counter.target()};

  const auto threads = value_of(agent.restore_threads(targets));
  ASSERT_THAT(threads, SizeIs(1));
  EXPECT_EQ(restore_thread_answer(threads[0]), RestoreThread::found);
  EXPECT_NE(threads[0].restore_thread, counter.pid());
  EXPECT_EQ(classify(counter.use(), RestoreThread::found).treatment, Treatment::suspend);
  EXPECT_TRUE(counter.use().holds_device());

  expect_state(agent.lock(targets, kLockTime), ProcessState::locked);
  counter.send("inc");
  EXPECT_EQ(counter.read_line(milliseconds(100)), "") << "a locked process must wait in its call";
  expect_state(agent.checkpoint(targets), ProcessState::checkpointed);
  EXPECT_FALSE(counter.use().holds_device());
  EXPECT_TRUE(counter.use().uses_gpu()) << "still a CUDA process";
  expect_state(agent.states(targets), ProcessState::checkpointed);
  expect_state(agent.restore(targets), ProcessState::locked);
  EXPECT_TRUE(counter.use().holds_device());
  expect_state(agent.unlock(targets), ProcessState::running);

  auto after = words_of(counter.read_line());
  EXPECT_EQ(after["counter"], "2") << "the call that waited";
  EXPECT_EQ(after["token"], before["token"]) << "from device memory";
}

TEST(AgentCycle, EightProcessesMoveAtOnce) {
  constexpr int kProcesses = 8;
  constexpr milliseconds kEach{600};
  const SimHost host;
  std::vector<std::unique_ptr<Sample>> counters;
  std::vector<Target> targets;
  std::vector<std::string> tokens;
  for (int i = 0; i < kProcesses; ++i) {
    counters.push_back(std::make_unique<Sample>(host));
    counters.back()->set_knobs("checkpoint=slow:600\nrestore=slow:600\n");
    targets.push_back(counters.back()->target());
    tokens.push_back(counters.back()->ask("inc")["token"]);
  }
  GpuAgent agent = host.agent();
  const auto timed = [](auto operation) {
    const auto begin = std::chrono::steady_clock::now();
    operation();
    return std::chrono::steady_clock::now() - begin;
  };
  expect_state(agent.lock(targets, kLockTime), ProcessState::locked);
  const auto checkpoint =
      timed([&] { expect_state(agent.checkpoint(targets), ProcessState::checkpointed); });
  const auto restore = timed([&] { expect_state(agent.restore(targets), ProcessState::locked); });
  expect_state(agent.unlock(targets), ProcessState::running);
  // One after another would be eight times as long.
  for (const auto& time : {checkpoint, restore}) {
    EXPECT_GE(time, kEach);
    EXPECT_LT(time, kEach * kProcesses / 2);
  }
  for (int i = 0; i < kProcesses; ++i) {
    auto answer = counters[static_cast<std::size_t>(i)]->ask("inc");
    EXPECT_EQ(answer["counter"], "2");
    EXPECT_EQ(answer["token"], tokens[static_cast<std::size_t>(i)]);
  }
}

TEST(AgentCycle, LockAndUnlockMayComeFromDifferentAgents) {
  const SimHost host;
  Sample counter(host);
  counter.ask("inc");
  const std::vector<Target> targets = {counter.target()};
  {
    GpuAgent first = host.agent();
    expect_state(first.lock(targets, kLockTime), ProcessState::locked);
  }
  counter.send("inc");
  EXPECT_EQ(counter.read_line(milliseconds(100)), "") << "the lock outlives its agent";
  GpuAgent second = host.agent();
  expect_state(second.unlock(targets), ProcessState::running);
  EXPECT_EQ(words_of(counter.read_line())["counter"], "2");
}

TEST(AgentCycle, RestoresOntoTheOtherGpu) {
  const SimHost host("gpus=2\n");
  Sample counter(host);
  auto before = counter.ask("inc");
  ASSERT_EQ(before["gpu"], kGpu0);
  GpuAgent agent = host.agent();
  const std::vector<Target> targets = {counter.target()};
  expect_state(agent.lock(targets, kLockTime), ProcessState::locked);
  expect_state(agent.checkpoint(targets), ProcessState::checkpointed);

  const auto partial = value_of(agent.restore(targets, {{kGpu0, kGpu1}}));
  ASSERT_THAT(partial, SizeIs(1));
  EXPECT_EQ(partial[0].name, "CUDA_ERROR_INVALID_VALUE");
  EXPECT_EQ(partial[0].state, ProcessState::checkpointed);
  EXPECT_THAT(partial[0].message, HasSubstr("every GPU"));

  expect_state(agent.restore(targets, {{kGpu0, kGpu1}, {kGpu1, kGpu0}}), ProcessState::locked);
  expect_state(agent.unlock(targets), ProcessState::running);
  auto after = counter.ask("inc");
  EXPECT_EQ(after["gpu"], kGpu1);
  EXPECT_EQ(after["token"], before["token"]);
}

TEST(AgentCycle, RestoreWorksWithoutPersistenceMode) {
  // Then the driver wants a cuInit of the caller, which nothing before a restore asks for.
  const SimHost host("gpu.0.persistence=0\n");
  Sample counter(host);
  const std::string token = counter.ask("inc")["token"];
  const std::vector<Target> targets = {counter.target()};
  {
    GpuAgent agent = host.agent();
    expect_state(agent.lock(targets, kLockTime), ProcessState::locked);
    expect_state(agent.checkpoint(targets), ProcessState::checkpointed);
  }
  GpuAgent agent = host.agent();
  expect_state(agent.restore(targets), ProcessState::locked);
  expect_state(agent.unlock(targets), ProcessState::running);
  EXPECT_EQ(counter.ask("inc")["token"], token);
}

TEST(AgentCycle, ProgressIsReportedWhileACheckpointRuns) {
  const SimHost host;
  Sample counter(host);
  counter.set_knobs("checkpoint=slow:2300\n");
  GpuAgent agent = host.agent();
  const std::vector<Target> targets = {counter.target()};
  expect_state(agent.lock(targets, kLockTime), ProcessState::locked);
  std::vector<milliseconds> times;
  expect_state(agent.checkpoint(targets,
                                [&](milliseconds time) {
                                  times.push_back(time);
                                  return true;
                                }),
               ProcessState::checkpointed);
  ASSERT_GE(times.size(), 2U);
  EXPECT_GE(times[0].count(), 900);
  EXPECT_GT(times[1], times[0]);
}

TEST(AgentCycle, ACheckpointIsGivenUpWhenItsProgressSaysSo) {
  const SimHost host;
  Sample counter(host);
  const std::string token = counter.ask("inc")["token"];
  const std::vector<Target> targets = {counter.target()};
  {
    GpuAgent agent = host.agent();
    expect_state(agent.lock(targets, kLockTime), ProcessState::locked);
    counter.set_knobs("checkpoint=hang\n");
    const auto given_up = agent.checkpoint(targets, [](milliseconds) { return false; });
    ASSERT_FALSE(given_up.ok());
    EXPECT_EQ(given_up.error().code, Code::deadline_exceeded);
    EXPECT_THAT(given_up.error().message, HasSubstr("given up"));
    EXPECT_FALSE(agent.states(targets).ok()) << "it is of no more use";
  }
  // That agent lives until the driver is done, which is not cut short.
  counter.set_knobs("");
  GpuAgent agent = host.agent();
  expect_state(agent.states(targets), ProcessState::checkpointed);
  expect_state(agent.restore(targets), ProcessState::locked);
  expect_state(agent.unlock(targets), ProcessState::running);
  EXPECT_EQ(counter.ask("inc")["token"], token);
}

TEST(AgentCycle, DescribesDriverAndGpus) {
  const SimHost host("gpus=2\ngpu.1.name=Odd GPU\ngpu.1.persistence=0\ngpu.1.compute=8.6\n");
  GpuAgent agent = host.agent();
  const DriverInfo info = value_of(agent.info());
  EXPECT_EQ(info.driver_version, "580.0-sim");
  EXPECT_EQ(info.cuda_version, 13000);
  EXPECT_TRUE(info.has_checkpoint_api);
  EXPECT_TRUE(info.can_remap_gpus);
  EXPECT_EQ(info.libcuda, host.libcuda());
  ASSERT_THAT(info.gpus, SizeIs(2));
  EXPECT_EQ(info.gpus[0].uuid, kGpu0);
  EXPECT_TRUE(info.gpus[0].persistence_mode);
  EXPECT_GT(info.gpus[0].total_bytes, 0U);
  EXPECT_LE(info.gpus[0].free_bytes, info.gpus[0].total_bytes);
  EXPECT_EQ(info.gpus[1].name, "Odd GPU");
  EXPECT_EQ(info.gpus[1].compute_major, 8);
  EXPECT_EQ(info.gpus[1].compute_minor, 6);
  EXPECT_FALSE(info.gpus[1].persistence_mode);
  EXPECT_FALSE(info.gpus[1].mig_enabled);
}

TEST(AgentCycle, ListsWhatProcessesUseWhileTheyAreOnTheGpu) {
  const SimHost host;
  Sample counter(host, {"sample-counter", "--stdin", "--mib", "64"});
  GpuAgent agent = host.agent();
  const auto used = [&]() -> std::uint64_t {
    const auto processes = agent.processes();
    EXPECT_TRUE(processes.ok());
    if (!processes.ok()) return 0;
    for (const GpuProcess& process : *processes) {
      if (process.pid == counter.pid()) return process.used_bytes.value_or(0);
    }
    return 0;
  };
  EXPECT_GE(used(), 64ULL << 20);
  const std::vector<Target> targets = {counter.target()};
  expect_state(agent.lock(targets, kLockTime), ProcessState::locked);
  expect_state(agent.checkpoint(targets), ProcessState::checkpointed);
  EXPECT_EQ(used(), 0U);
}

TEST(AgentCycle, ToldApartFromOrdinaryProcessesAndForkedChildren) {
  const SimHost host;
  const Sample parent(host, {"sample-fork"});
  const auto child = static_cast<pid_t>(std::stol(words_of(parent.ready_line())["child"]));
  GpuAgent agent = host.agent();
  const NvidiaMajors majors = value_of(read_nvidia_majors());
  const GpuUse child_use = value_of(inspect_process(child, majors));
  const GpuUse own_use = value_of(inspect_process(::getpid(), majors));
  EXPECT_FALSE(own_use.uses_gpu());

  const auto answers =
      value_of(agent.restore_threads({parent.target(), child_use.process, own_use.process}));
  ASSERT_THAT(answers, SizeIs(3));
  EXPECT_EQ(restore_thread_answer(answers[0]), RestoreThread::found);
  EXPECT_EQ(restore_thread_answer(answers[1]), RestoreThread::absent);
  EXPECT_EQ(restore_thread_answer(answers[2]), RestoreThread::absent);
  const Classification verdict = classify(child_use, RestoreThread::absent);
  EXPECT_EQ(verdict.treatment, Treatment::refuse);
  EXPECT_THAT(verdict.reason,
              AllOf(HasSubstr("process " + std::to_string(child)), HasSubstr("nvidia0"),
                    HasSubstr(std::to_string(parent.pid())), HasSubstr("spawn")));
}

}  // namespace
}  // namespace icebox::cuda::testing
