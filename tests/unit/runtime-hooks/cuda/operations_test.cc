// SPDX-License-Identifier: Apache-2.0
#include "runtime-hooks/cuda/operations.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <deque>
#include <functional>
#include <mutex>
#include <set>
#include <string>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "oci/base/pid_ref.h"

namespace icebox::cuda {
namespace {

using std::chrono::milliseconds;
using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

constexpr milliseconds kPatience{
    20'000};  // for what must happen; never waited out by a passing test

// A driver made of plain functions, as the API's function pointers have no room for a context.
// Calls run on the threads of Operations.
class FakeDriver {
 public:
  std::map<pid_t, driver::RawState> states;
  std::map<std::pair<std::string, pid_t>, driver::Code> errors;
  std::set<std::pair<std::string, pid_t>> hanging;
  std::function<void(const std::string&, pid_t)> on_call;  // runs unlocked
  std::vector<std::pair<std::string, pid_t>> calls;
  std::vector<unsigned int> lock_timeouts;
  std::vector<driver::GpuPair> pairs;
  bool arguments_clean = true;
  bool freeze_states = false;  // operations succeed without changing the state

  driver::Code enter(const std::string& what, pid_t pid, std::optional<driver::RawState> next) {
    if (on_call) on_call(what, pid);
    std::unique_lock lock(mutex_);
    calls.emplace_back(what, pid);
    ++active_;
    changed_.notify_all();
    changed_.wait(lock, [&] { return hanging.count({what, pid}) == 0; });
    --active_;
    changed_.notify_all();
    const auto error = errors.find({what, pid});
    if (error != errors.end()) return error->second;
    if (next && !freeze_states) states[pid] = *next;
    return driver::kSuccess;
  }

  void hang(const std::string& what, pid_t pid) {
    const std::lock_guard lock(mutex_);
    hanging.emplace(what, pid);
  }
  void release(const std::string& what, pid_t pid) {
    const std::lock_guard lock(mutex_);
    hanging.erase({what, pid});
    changed_.notify_all();
  }
  bool wait_for_call(const std::string& what, pid_t pid) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, kPatience, [&] {
      return std::count(calls.begin(), calls.end(), std::pair(what, pid)) > 0;
    });
  }
  bool called(const std::string& what, pid_t pid) {
    const std::lock_guard lock(mutex_);
    return std::count(calls.begin(), calls.end(), std::pair(what, pid)) > 0;
  }
  driver::RawState state_of(pid_t pid) {
    const std::lock_guard lock(mutex_);
    return states[pid];
  }
  // Lets every hanging call go on and waits until none is left, whoever has stopped waiting for it.
  void release_all() {
    std::unique_lock lock(mutex_);
    hanging.clear();
    changed_.notify_all();
    changed_.wait(lock, [&] { return active_ == 0; });
  }
  template <typename Function>
  void locked(Function function) {
    const std::lock_guard lock(mutex_);
    function();
  }
  template <typename Args>
  void check_zero(const Args& args) {
    const Args zero = {};
    const std::lock_guard lock(mutex_);
    if (std::memcmp(&args, &zero, sizeof args) != 0) arguments_clean = false;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int active_ = 0;
};

FakeDriver* fake = nullptr;

CheckpointApi fake_api() {
  CheckpointApi api;
  api.get_restore_thread_id = [](int pid, int* tid) {
    *tid = pid + 1;
    return fake->enter("restore_thread", pid, std::nullopt);
  };
  api.get_state = [](int pid, driver::RawState* state) {
    const driver::Code code = fake->enter("state", pid, std::nullopt);
    *state = fake->state_of(pid);
    return code;
  };
  api.lock = [](int pid, driver::LockArgs* args) {
    fake->locked([&] { fake->lock_timeouts.push_back(args->timeout_ms); });
    driver::LockArgs rest = *args;
    rest.timeout_ms = 0;
    fake->check_zero(rest);
    return fake->enter("lock", pid, driver::kStateLocked);
  };
  api.checkpoint = [](int pid, driver::CheckpointArgs* args) {
    fake->check_zero(*args);
    return fake->enter("checkpoint", pid, driver::kStateCheckpointed);
  };
  api.restore = [](int pid, driver::RestoreArgs* args) {
    fake->locked([&] {
      for (unsigned int i = 0; i < args->gpu_pairs_count; ++i) {
        fake->pairs.push_back(args->gpu_pairs[i]);
      }
    });
    driver::RestoreArgs rest = *args;
    rest.gpu_pairs = nullptr;
    rest.gpu_pairs_count = 0;
    fake->check_zero(rest);
    return fake->enter("restore", pid, driver::kStateLocked);
  };
  api.unlock = [](int pid, driver::UnlockArgs* args) {
    fake->check_zero(*args);
    return fake->enter("unlock", pid, driver::kStateRunning);
  };
  api.get_error_name = [](driver::Code code, const char** text) {
    if (code != driver::kErrorNotReady) return driver::kErrorInvalidValue;
    *text = "CUDA_ERROR_NOT_READY";
    return driver::kSuccess;
  };
  api.get_error_string = [](driver::Code code, const char** text) {
    if (code != driver::kErrorNotReady) return driver::kErrorInvalidValue;
    *text = "device not ready";
    return driver::kSuccess;
  };
  return api;
}

// A child that only waits, so that there is a real process with a pidfd, a start time and an end.
class Child {
 public:
  Child() : pid_(::fork()) {
    if (pid_ == 0) {
      for (;;) ::pause();
    }
    target_ = {pid_, process_start_time(pid_).value()};
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  ~Child() {
    if (pid_ > 0) end();
  }
  void kill() const { ::kill(pid_, SIGKILL); }
  void end() {
    kill();
    ::waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }
  [[nodiscard]] const Target& target() const { return target_; }
  [[nodiscard]] pid_t pid() const { return target_.pid; }

 private:
  pid_t pid_;
  Target target_;
};

class OperationsTest : public testing::Test {
 protected:
  void SetUp() override { fake = &driver_; }
  void TearDown() override {
    // Threads left behind use the fake: let them all end first. The children live until then, as a
    // dead one would not be waited for.
    driver_.release_all();
    operations_.wait_until_idle();
    fake = nullptr;
  }

  // A child that lives until the test has been torn down, unless the test ends it.
  Child& spawn() { return children_.emplace_back(); }

  static protocol::Action action(Operation operation, const std::vector<Target>& targets,
                                 std::uint32_t timeout_ms = 10'000) {
    protocol::Action result;
    result.operation = operation;
    result.targets = targets;
    if (protocol::has_deadline(operation)) result.timeout_ms = timeout_ms;
    return result;
  }
  Outcome run(Operation operation, const Target& target, std::uint32_t timeout_ms = 10'000) {
    return operations_.run(action(operation, {target}, timeout_ms)).at(0);
  }

  FakeDriver driver_;
  std::deque<Child> children_;
  Operations operations_{fake_api(),
                         {.answer_grace = milliseconds(600),
                          .state_grace = milliseconds(1'000),
                          .death_grace = milliseconds(50)}};
};

TEST_F(OperationsTest, GoesThroughTheWholeCycle) {
  const Child& child = spawn();
  const Outcome thread = run(Operation::restore_thread, child.target());
  EXPECT_TRUE(thread.ok()) << thread.message;
  EXPECT_EQ(thread.restore_thread, child.pid() + 1);
  EXPECT_EQ(run(Operation::state, child.target()).state, ProcessState::running);
  EXPECT_EQ(run(Operation::lock, child.target()).state, ProcessState::locked);
  EXPECT_EQ(run(Operation::checkpoint, child.target()).state, ProcessState::checkpointed);
  EXPECT_EQ(run(Operation::restore, child.target()).state, ProcessState::locked);
  EXPECT_EQ(run(Operation::unlock, child.target()).state, ProcessState::running);
  EXPECT_TRUE(driver_.arguments_clean) << "reserved bytes must be zero";
}

TEST_F(OperationsTest, ActsOnAllTargetsAtOnceAndAnswersInTheirOrder) {
  std::vector<Target> targets;
  for (int i = 0; i < 8; ++i) targets.push_back(spawn().target());
  // No lock goes on before all have begun: one after another would never end.
  std::mutex mutex;
  std::condition_variable all;
  std::size_t begun = 0;
  bool complete = true;
  driver_.on_call = [&](const std::string& what, pid_t) {
    if (what != "lock") return;
    std::unique_lock lock(mutex);
    ++begun;
    all.notify_all();
    complete = all.wait_for(lock, kPatience, [&] { return begun == targets.size(); }) && complete;
  };
  const auto outcomes = operations_.run(action(Operation::lock, targets));
  EXPECT_TRUE(complete);
  ASSERT_EQ(outcomes.size(), targets.size());
  for (std::size_t i = 0; i < outcomes.size(); ++i) {
    EXPECT_EQ(outcomes[i].target, targets[i]);
    EXPECT_TRUE(outcomes[i].ok()) << outcomes[i].message;
  }
}

TEST_F(OperationsTest, TheDriverGetsWhatIsLeftOfTheDeadlineAndNeverZero) {
  const Child& child = spawn();
  static_cast<void>(run(Operation::lock, child.target(), 7'000));
  static_cast<void>(run(Operation::unlock, child.target()));
  static_cast<void>(run(Operation::lock, child.target(), 1));
  ASSERT_EQ(driver_.lock_timeouts.size(), 2U);
  EXPECT_LE(driver_.lock_timeouts[0], 7'000U);
  EXPECT_GT(driver_.lock_timeouts[0], 1'000U);
  EXPECT_EQ(driver_.lock_timeouts[1], 1U) << "0 would wait for ever";
}

TEST_F(OperationsTest, DriverErrorsCarryNumberNameAndState) {
  const Child& child = spawn();
  driver_.errors[{"lock", child.pid()}] = driver::kErrorNotReady;
  const Outcome outcome = run(Operation::lock, child.target());
  EXPECT_EQ(outcome.ending, Ending::driver_error);
  EXPECT_EQ(outcome.code, driver::kErrorNotReady);
  EXPECT_EQ(outcome.name, "CUDA_ERROR_NOT_READY");
  EXPECT_EQ(outcome.state, ProcessState::running);
  EXPECT_THAT(outcome.message,
              AllOf(HasSubstr("process " + std::to_string(child.pid())), HasSubstr("600"),
                    HasSubstr("device not ready"), HasSubstr("lock_timeout_ms")));
}

TEST_F(OperationsTest, AnErrorTheDriverCannotNameKeepsItsNumber) {
  const Child& child = spawn();
  driver_.errors[{"checkpoint", child.pid()}] = 4711;
  const Outcome outcome = run(Operation::checkpoint, child.target());
  EXPECT_EQ(outcome.name, "CUDA error 4711");
  EXPECT_EQ(outcome.code, 4711);
}

TEST_F(OperationsTest, SuccessWithAnotherStateIsNoSuccess) {
  const Child& child = spawn();
  driver_.freeze_states = true;
  for (const driver::RawState state : {driver::kStateFailed, driver::kStateRunning, 4, 5}) {
    driver_.states[child.pid()] = state;
    const Outcome outcome = run(Operation::checkpoint, child.target());
    EXPECT_EQ(outcome.ending, Ending::wrong_state) << state;
    EXPECT_EQ(outcome.state, to_process_state(state));
  }
}

TEST_F(OperationsTest, UnknownStatesAreBusy) {
  const Child& child = spawn();
  for (const driver::RawState state : {4, 5, 77, -1}) {
    driver_.states[child.pid()] = state;
    EXPECT_EQ(run(Operation::state, child.target()).state, ProcessState::busy);
  }
}

TEST_F(OperationsTest, AHangingLockIsReportedAndTheOthersAreNotHeldUp) {
  const Child& stuck = spawn();
  const Child& fine = spawn();
  driver_.hang("lock", stuck.pid());
  const auto outcomes =
      operations_.run(action(Operation::lock, {stuck.target(), fine.target()}, 50));
  EXPECT_EQ(outcomes[0].ending, Ending::no_answer);
  EXPECT_THAT(outcomes[0].message, HasSubstr("did not answer"));
  EXPECT_TRUE(outcomes[1].ok()) << outcomes[1].message;
  EXPECT_TRUE(operations_.pending());
}

TEST_F(OperationsTest, ALockThatComesBackTooLateIsUndone) {
  const Child& child = spawn();
  driver_.hang("lock", child.pid());
  ASSERT_EQ(run(Operation::lock, child.target(), 100).ending, Ending::no_answer);
  EXPECT_FALSE(driver_.called("unlock", child.pid()));
  driver_.release("lock", child.pid());
  operations_.wait_until_idle();
  EXPECT_TRUE(driver_.called("unlock", child.pid()));
  EXPECT_EQ(driver_.state_of(child.pid()), driver::kStateRunning);
  EXPECT_FALSE(operations_.pending());
}

TEST_F(OperationsTest, ALateLockOfAProcessThatEndedIsNotUndone) {
  // Its pid may belong to another process by now.
  Child& child = spawn();
  driver_.hang("lock", child.pid());
  ASSERT_EQ(run(Operation::lock, child.target(), 100).ending, Ending::no_answer);
  child.end();
  driver_.release_all();
  EXPECT_FALSE(operations_.pending());
  std::this_thread::sleep_for(milliseconds(50));  // nothing tells of what does not happen
  EXPECT_FALSE(driver_.called("unlock", child.pid()));
}

TEST_F(OperationsTest, ALockThatFailsTooLateNeedsNoUndo) {
  const Child& child = spawn();
  driver_.hang("lock", child.pid());
  driver_.errors[{"lock", child.pid()}] = driver::kErrorNotReady;
  ASSERT_EQ(run(Operation::lock, child.target(), 100).ending, Ending::no_answer);
  driver_.release("lock", child.pid());
  operations_.wait_until_idle();
  EXPECT_FALSE(driver_.called("unlock", child.pid()));
}

TEST_F(OperationsTest, NothingElseIsTriedOnATargetWhoseCallIsStillPending) {
  const Child& child = spawn();
  driver_.hang("lock", child.pid());
  ASSERT_EQ(run(Operation::lock, child.target(), 100).ending, Ending::no_answer);
  for (const Operation operation : {Operation::unlock, Operation::checkpoint}) {
    const Outcome outcome = run(operation, child.target(), 100);
    EXPECT_EQ(outcome.ending, Ending::refused);
    EXPECT_THAT(outcome.message, HasSubstr("earlier call is still in the driver"));
  }
  EXPECT_FALSE(driver_.called("checkpoint", child.pid()));
}

TEST_F(OperationsTest, AnOperationWaitsForAStateQueryOfTheOneBefore) {
  const Child& child = spawn();
  driver_.hang("state", child.pid());
  const Outcome locked = run(Operation::lock, child.target());
  EXPECT_TRUE(locked.ok()) << "the lock itself was answered: " << locked.message;
  EXPECT_FALSE(locked.state.has_value());
  std::thread release([&] { driver_.release("state", child.pid()); });
  const Outcome unlocked = run(Operation::unlock, child.target(), 10'000);
  release.join();
  EXPECT_TRUE(unlocked.ok()) << unlocked.message;
  EXPECT_EQ(unlocked.state, ProcessState::running);
}

TEST_F(OperationsTest, ATargetThatDiesInsideCheckpointIsNotWaitedForForEver) {
  Child& child = spawn();
  driver_.hang("checkpoint", child.pid());
  std::thread killer([&] {
    EXPECT_TRUE(driver_.wait_for_call("checkpoint", child.pid()));
    child.kill();
  });
  const Outcome outcome = run(Operation::checkpoint, child.target());
  killer.join();
  EXPECT_EQ(outcome.ending, Ending::gone);
  EXPECT_THAT(outcome.message, HasSubstr("ended"));
  EXPECT_FALSE(operations_.pending()) << "the agent may end";
}

TEST_F(OperationsTest, ACheckpointOfALivingTargetIsWaitedForHoweverLongItTakes) {
  const Child& child = spawn();
  driver_.hang("checkpoint", child.pid());
  std::thread release([&] {
    EXPECT_TRUE(driver_.wait_for_call("checkpoint", child.pid()));
    // Longer than the graces that end a call with a deadline or of a dead target.
    std::this_thread::sleep_for(milliseconds(1'000));
    driver_.release("checkpoint", child.pid());
  });
  const Outcome outcome = run(Operation::checkpoint, child.target());
  release.join();
  EXPECT_TRUE(outcome.ok()) << outcome.message;
  EXPECT_GE(outcome.elapsed.count(), 900);
}

TEST_F(OperationsTest, ATargetThatDiedIsGoneWhateverTheDriverSays) {
  const Child& child = spawn();
  driver_.errors[{"lock", child.pid()}] = driver::kErrorOperatingSystem;
  driver_.on_call = [&](const std::string& what, pid_t) {
    if (what != "lock") return;
    child.kill();
    siginfo_t info = {};
    ::waitid(P_PID, static_cast<id_t>(child.pid()), &info, WEXITED | WNOWAIT);
  };
  EXPECT_EQ(run(Operation::lock, child.target()).ending, Ending::gone);
}

TEST_F(OperationsTest, ThreadIdsAreRefused) {
  // A thread of this process: its id is as good as a pid in /proc, and the driver takes it for one.
  pid_t tid = 0;
  std::mutex mutex;
  std::condition_variable changed;
  bool stop = false;
  std::thread thread([&] {
    std::unique_lock lock(mutex);
    tid = ::gettid();
    changed.notify_all();
    changed.wait(lock, [&] { return stop; });
  });
  {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return tid != 0; });
  }
  const Outcome outcome = run(Operation::lock, {tid, process_start_time(tid).value()});
  EXPECT_EQ(outcome.ending, Ending::refused);
  EXPECT_THAT(outcome.message,
              HasSubstr("is a thread id of process " + std::to_string(::getpid())));
  EXPECT_TRUE(driver_.calls.empty());
  {
    const std::lock_guard lock(mutex);
    stop = true;
    changed.notify_all();
  }
  thread.join();
}

TEST_F(OperationsTest, AReusedPidIsRefused) {
  const Child& child = spawn();
  Target other = child.target();
  ++other.start_time;
  const Outcome before = run(Operation::lock, other);
  EXPECT_EQ(before.ending, Ending::refused);
  EXPECT_THAT(before.message, HasSubstr("is another process by now"));
  ASSERT_TRUE(run(Operation::lock, child.target()).ok());
  EXPECT_EQ(run(Operation::unlock, other).ending, Ending::refused) << "also once it is held";
  EXPECT_FALSE(driver_.called("unlock", child.pid()));
}

TEST_F(OperationsTest, TargetsThatEndedAreGone) {
  Child& reaped = spawn();
  const Target dead = reaped.target();
  reaped.end();
  EXPECT_EQ(run(Operation::lock, dead).ending, Ending::gone);

  const Child& zombie = spawn();
  zombie.kill();
  siginfo_t info = {};
  ::waitid(P_PID, static_cast<id_t>(zombie.pid()), &info, WEXITED | WNOWAIT);
  EXPECT_EQ(run(Operation::lock, zombie.target()).ending, Ending::gone);

  Child& held = spawn();
  ASSERT_TRUE(run(Operation::lock, held.target()).ok());
  held.end();
  EXPECT_EQ(run(Operation::unlock, held.target()).ending, Ending::gone);
  EXPECT_THAT(driver_.calls, Not(Contains(std::pair(std::string("lock"), dead.pid))));
}

TEST_F(OperationsTest, TheGpuMapReachesTheDriverAsBytes) {
  const Child& child = spawn();
  protocol::Action restore = action(Operation::restore, {child.target()});
  restore.gpu_map = {
      {"GPU-00112233-4455-6677-8899-aabbccddeeff", "GPU-ffeeddcc-bbaa-9988-7766-554433221100"}};
  ASSERT_TRUE(operations_.run(restore).at(0).ok());
  ASSERT_EQ(driver_.pairs.size(), 1U);
  EXPECT_EQ(driver_.pairs[0].old_uuid.bytes[1], 0x11);
  EXPECT_EQ(driver_.pairs[0].new_uuid.bytes[0], 0xff);
  EXPECT_TRUE(driver_.arguments_clean);
}

}  // namespace
}  // namespace icebox::cuda
