// SPDX-License-Identifier: Apache-2.0
//
// Every knob of the simulated driver.
#include <dlfcn.h>
#include <sys/wait.h>

#include <csignal>
#include <future>

#include "tests/component/fakes/harness.h"

namespace icebox::sim::test {
namespace {

using cu::Result;

class KnobsTest : public SimTest {
 protected:
  void SetUp() override {
    SimTest::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    counter_ = std::make_unique<Process>(sample("sample-counter", {"--stdin"}), environment());
    ASSERT_NE(counter_->line_with("ready"), "");
  }

  void TearDown() override {
    counter_.reset();
    SimTest::TearDown();
  }

  pid_t pid() const { return counter_->pid(); }

  /// CUDA calls of the target go through.
  bool works() {
    counter_->write("inc\n");
    return counter_->line(10s).find("counter=") != std::string::npos;
  }

  std::unique_ptr<Process> counter_;
};

bool has_ended(const std::future<Result>& call) {
  return call.wait_for(200ms) == std::future_status::ready;
}

/// The call, in a thread of its own.
template <typename Call>
std::future<Result> start(Call call) {
  return std::async(std::launch::async, call);
}

TEST_F(KnobsTest, LockBusyTimesOutAndLeavesTheTargetRunning) {
  set_knobs("lock=busy\n");
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(lock(pid(), 300), Result::not_ready);
  EXPECT_GE(std::chrono::steady_clock::now() - begin, 300ms);
  EXPECT_TRUE(is_running(pid()));
  EXPECT_TRUE(works());
  set_knobs("");
  EXPECT_EQ(lock(pid(), 300), Result::success);
}

TEST_F(KnobsTest, LockBusyWithoutATimeoutWaitsUntilItDrains) {
  set_knobs("lock=busy\n");
  auto call = start([this] { return lock(pid(), 0); });
  EXPECT_FALSE(has_ended(call));
  set_knobs("");
  EXPECT_EQ(call.get(), Result::success);
  EXPECT_TRUE(is_locked(pid()));
}

TEST_F(KnobsTest, LockHangIgnoresTheTimeout) {
  set_knobs("lock=hang\n");
  auto call = start([this] { return lock(pid(), 50); });
  EXPECT_FALSE(has_ended(call));
  set_knobs("");
  EXPECT_EQ(call.get(), Result::success);  // carried out although its time was over
  EXPECT_TRUE(is_locked(pid()));
}

TEST_F(KnobsTest, LockCrashEndsTheTarget) {
  set_knobs("lock=crash\n");
  EXPECT_EQ(lock(pid()), Result::operating_system);
  const int status = counter_->wait();
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
}

TEST_F(KnobsTest, LockSlowTakesItsTimeAndCountsAgainstTheTimeout) {
  set_knobs("lock=slow:400\n");
  EXPECT_EQ(lock(pid(), 100), Result::not_ready);
  EXPECT_TRUE(works());
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(lock(pid(), 5000), Result::success);
  EXPECT_GE(std::chrono::steady_clock::now() - begin, 400ms);
}

TEST_F(KnobsTest, LockError) {
  set_knobs("lock=801\n");
  EXPECT_EQ(lock(pid()), Result::not_supported);
  EXPECT_TRUE(is_running(pid()));
  EXPECT_TRUE(works());
}

TEST_F(KnobsTest, CheckpointErrorLeavesTheTargetLocked) {
  set_knobs("checkpoint=801\n");
  ASSERT_EQ(lock(pid()), Result::success);
  EXPECT_EQ(checkpoint(pid()), Result::not_supported);
  EXPECT_TRUE(is_locked(pid()));
  EXPECT_EQ(unlock(pid()), Result::success);
  EXPECT_TRUE(works());
}

TEST_F(KnobsTest, CheckpointHangsUntilTheKnobIsTakenAway) {
  set_knobs("checkpoint=hang\n");
  ASSERT_EQ(lock(pid()), Result::success);
  auto call = start([this] { return checkpoint(pid()); });
  EXPECT_FALSE(has_ended(call));
  set_knobs("");
  EXPECT_EQ(call.get(), Result::success);
  resume(pid());
  EXPECT_TRUE(works());
}

TEST_F(KnobsTest, CheckpointDieEndsTheTargetAndTheCall) {
  set_knobs("checkpoint=die\n");
  ASSERT_EQ(lock(pid()), Result::success);
  EXPECT_EQ(checkpoint(pid()), Result::operating_system);
  EXPECT_TRUE(WIFSIGNALED(counter_->wait()));
}

TEST_F(KnobsTest, CheckpointDieHangEndsTheTargetButNotTheCall) {
  set_knobs("checkpoint=die_hang\n");
  ASSERT_EQ(lock(pid()), Result::success);
  Process caller(sim_ctl("checkpoint", pid()), environment());
  EXPECT_TRUE(WIFSIGNALED(counter_->wait()));
  EXPECT_EQ(caller.wait(300ms), -1);
}

TEST_F(KnobsTest, CheckpointThenFailed) {
  set_knobs("checkpoint=then_failed\n");
  ASSERT_EQ(lock(pid()), Result::success);
  EXPECT_EQ(checkpoint(pid()), Result::unknown);
  EXPECT_EQ(state_of(pid()), (State{Result::success, 3}));
  EXPECT_EQ(unlock(pid()), Result::illegal_state);
  EXPECT_EQ(restore(pid()), Result::illegal_state);
  // The application's calls fail from now on.
  counter_->write("inc\n");
  EXPECT_EQ(counter_->line(), "");
  const int status = counter_->wait();
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 2);
}

TEST_F(KnobsTest, CheckpointSlow) {
  set_knobs("checkpoint=slow:300\n");
  ASSERT_EQ(lock(pid()), Result::success);
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(checkpoint(pid()), Result::success);
  EXPECT_GE(std::chrono::steady_clock::now() - begin, 300ms);
}

TEST_F(KnobsTest, LeaveFd) {
  set_knobs("leave_fd=1\n");
  suspend(pid());
  EXPECT_EQ(fds_to(pid(), device()).size(), 1U);
  set_knobs("");
  resume(pid());
  EXPECT_EQ(fds_to(pid(), device()).size(), 1U);
  EXPECT_TRUE(works());
}

TEST_F(KnobsTest, RestoreErrorCanBeTriedAgain) {
  suspend(pid());
  set_knobs("restore=999\n");
  EXPECT_EQ(restore(pid()), Result::unknown);
  EXPECT_TRUE(is_checkpointed(pid()));
  set_knobs("");
  resume(pid());
  EXPECT_TRUE(works());
}

TEST_F(KnobsTest, RestoreOutOfMemoryIsForEver) {
  suspend(pid());
  set_knobs("restore=oom_sticky\n");
  EXPECT_EQ(restore(pid()), Result::out_of_memory);
  set_knobs("");
  EXPECT_EQ(restore(pid()), Result::operating_system);
  EXPECT_EQ(unlock(pid()), Result::illegal_state);
  EXPECT_TRUE(is_checkpointed(pid()));
}

TEST_F(KnobsTest, RestoreHangsUntilTheKnobIsTakenAway) {
  suspend(pid());
  set_knobs("restore=hang\n");
  auto call = start([this] { return restore(pid()); });
  EXPECT_FALSE(has_ended(call));
  set_knobs("");
  EXPECT_EQ(call.get(), Result::success);
}

TEST_F(KnobsTest, RestoreSlow) {
  suspend(pid());
  set_knobs("restore=slow:300\n");
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(restore(pid()), Result::success);
  EXPECT_GE(std::chrono::steady_clock::now() - begin, 300ms);
}

TEST_F(KnobsTest, RestoreDieEndsTheTarget) {
  suspend(pid());
  set_knobs("restore=die\n");
  EXPECT_EQ(restore(pid()), Result::operating_system);
  EXPECT_TRUE(WIFSIGNALED(counter_->wait()));
}

TEST_F(KnobsTest, UnlockErrorLeavesTheTargetLocked) {
  set_knobs("unlock=999\n");
  ASSERT_EQ(lock(pid()), Result::success);
  EXPECT_EQ(unlock(pid()), Result::unknown);
  EXPECT_TRUE(is_locked(pid()));
  set_knobs("");
  EXPECT_EQ(unlock(pid()), Result::success);
  EXPECT_TRUE(works());
}

TEST_F(KnobsTest, StateIsWhatTheKnobSays) {
  set_knobs("state=5\n");
  EXPECT_EQ(state_of(pid()), (State{Result::success, 5}));
  EXPECT_EQ(lock(pid()), Result::success);  // only the answer of GetState is changed
  set_knobs("");
  EXPECT_TRUE(is_locked(pid()));
}

TEST_F(KnobsTest, LogHasALinePerOperationInOrder) {
  suspend(pid());
  EXPECT_EQ(checkpoint(pid()), Result::illegal_state);
  resume(pid());
  const auto lines = log();
  ASSERT_EQ(lines.size(), 5U);
  const char* const expected[][2] = {{"lock", "result=0 state=1"},
                                     {"checkpoint", "result=0 state=2"},
                                     {"checkpoint", "result=401 state=2"},
                                     {"restore", "result=0 state=1"},
                                     {"unlock", "result=0 state=0"}};
  long long last_end = 0;
  for (std::size_t i = 0; i < lines.size(); ++i) {
    char name[32] = "";
    int target = 0;
    long long begin = 0;
    long long end = 0;
    ASSERT_EQ(std::sscanf(lines[i].c_str(), "%31s pid=%d begin_ns=%lld end_ns=%lld", name, &target,
                          &begin, &end),
              4)
        << lines[i];
    EXPECT_STREQ(name, expected[i][0]);
    EXPECT_NE(lines[i].find(expected[i][1]), std::string::npos) << lines[i];
    EXPECT_EQ(target, pid());
    EXPECT_LE(last_end, begin);
    EXPECT_LE(begin, end);
    last_end = end;
  }
}

TEST_F(KnobsTest, ATypingErrorInTheKnobFileEndsTheTarget) {
  set_knobs("lock=bussy\n");
  EXPECT_EQ(lock(pid()), Result::operating_system);
  const int status = counter_->wait();
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
}

TEST(OldDriverTest, HasNoCheckpointApi) {
  void* library = ::dlopen(ICEBOX_BUILD_DIR "/fakes/old/libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  ASSERT_NE(library, nullptr) << ::dlerror();
  EXPECT_EQ(::dlsym(library, "cuCheckpointProcessLock"), nullptr);
  auto* get =
      reinterpret_cast<decltype(&cu::cuGetProcAddress_v2)>(::dlsym(library, "cuGetProcAddress_v2"));
  auto* version =
      reinterpret_cast<decltype(&cu::cuDriverGetVersion)>(::dlsym(library, "cuDriverGetVersion"));
  ASSERT_NE(get, nullptr);
  ASSERT_NE(version, nullptr);
  void* found = nullptr;
  int status = 0;
  EXPECT_EQ(get("cuCheckpointProcessLock", &found, 12080, 0, &status), Result::not_found);
  EXPECT_EQ(status, 1);
  EXPECT_EQ(get("cuInit", &found, 12080, 0, &status), Result::success);
  int cuda = 0;
  EXPECT_EQ(version(&cuda), Result::success);
  EXPECT_LT(cuda, 12080);
  ::dlclose(library);
}

}  // namespace
}  // namespace icebox::sim::test
