// SPDX-License-Identifier: Apache-2.0
#include "shim/loop/signals.h"

#include <signal.h>

#include <cerrno>
#include <optional>
#include <vector>

#include <gtest/gtest.h>

#include "tests/unit/shim/loop/testing.h"

namespace icebox::shim {
namespace {

bool blocked(int signo) {
  sigset_t mask;
  EXPECT_EQ(::sigprocmask(SIG_BLOCK, nullptr, &mask), 0);
  return ::sigismember(&mask, signo) == 1;
}

TEST(Signals, ArriveAsEventsAndTheMaskComesBack) {
  auto loop = testing::make_loop();
  ASSERT_FALSE(blocked(SIGUSR1));
  std::vector<int> seen;
  {
    auto watch =
        SignalWatch::create(*loop, {SIGUSR1, SIGTERM}, [&](int signo) { seen.push_back(signo); });
    ASSERT_TRUE(watch.ok()) << watch.error().message;
    EXPECT_TRUE(blocked(SIGUSR1));
    ASSERT_EQ(::raise(SIGUSR1), 0);
    ASSERT_EQ(::raise(SIGTERM), 0);
    ASSERT_TRUE(testing::turn_until(*loop, [&] { return seen.size() == 2; }));
  }
  EXPECT_FALSE(blocked(SIGUSR1));
  EXPECT_EQ(seen, (std::vector<int>{SIGUSR1, SIGTERM}));
}

TEST(Signals, MayEndTheirOwnWatch) {
  auto loop = testing::make_loop();
  std::optional<SignalWatch> watch;
  int calls = 0;
  auto created = SignalWatch::create(*loop, {SIGUSR1, SIGUSR2}, [&](int) {
    ++calls;
    watch.reset();
  });
  ASSERT_TRUE(created.ok());
  watch.emplace(std::move(created).value());
  ASSERT_EQ(::raise(SIGUSR1), 0);
  ASSERT_TRUE(testing::turn_until(*loop, [&] { return calls > 0; }));
  EXPECT_EQ(calls, 1);
}

TEST(Signals, IgnoredSigpipeIsAnError) {
  ignore_sigpipe();
  auto pipe = testing::make_pipe();
  pipe.read.reset();
  EXPECT_EQ(::write(pipe.write.get(), "x", 1), -1);
  EXPECT_EQ(errno, EPIPE);
  ::signal(SIGPIPE, SIG_DFL);
}

}  // namespace
}  // namespace icebox::shim
