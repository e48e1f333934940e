// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include <gtest/gtest.h>

#include "oci/base/unique_fd.h"
#include "shim/loop/event_loop.h"

namespace icebox::shim::testing {

// A clock that stands still until told otherwise.
class VirtualClock final : public Clock {
 public:
  [[nodiscard]] TimePoint now() const override { return now_; }
  void advance(Duration by) { now_ += by; }

 private:
  TimePoint now_ = TimePoint(std::chrono::hours(1));
};

// Turns the loop until `done` holds; false when that took longer than ten seconds of real time
// (something is stuck).
inline bool turn_until(EventLoop& loop, const std::function<bool()>& done) {
  const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (!done()) {
    if (std::chrono::steady_clock::now() > limit) return false;
    if (!loop.turn(std::chrono::milliseconds(10)).ok()) return false;
  }
  return true;
}

// Runs exactly `times` turns without waiting: to show that nothing happens in them.
inline void turn_times(EventLoop& loop, int times) {
  for (int i = 0; i < times; ++i) ASSERT_TRUE(loop.turn(Duration::zero()).ok());
}

inline std::unique_ptr<EventLoop> make_loop(const Clock& clock = monotonic_clock()) {
  auto loop = EventLoop::create(clock);
  EXPECT_TRUE(loop.ok());
  return std::make_unique<EventLoop>(std::move(loop).value());
}

struct Pipe {
  UniqueFd read;
  UniqueFd write;
};

inline Pipe make_pipe(int flags = O_CLOEXEC) {
  std::array<int, 2> ends{};
  EXPECT_EQ(::pipe2(ends.data(), flags), 0);
  return {UniqueFd(ends[0]), UniqueFd(ends[1])};
}

inline void put(const UniqueFd& fd, std::string_view text) {
  ASSERT_EQ(::write(fd.get(), text.data(), text.size()), static_cast<ssize_t>(text.size()));
}

// Reads once; "" at the end of the file or when there is nothing.
inline std::string get(const UniqueFd& fd, std::size_t max = 65536) {
  std::string text(max, '\0');
  const ssize_t n = ::read(fd.get(), text.data(), text.size());
  text.resize(n > 0 ? static_cast<std::size_t>(n) : 0);
  return text;
}

// A directory of its own for one test.
class TempDir {
 public:
  TempDir() {
    std::string name = "/tmp/icebox-test-XXXXXX";
    EXPECT_NE(::mkdtemp(name.data()), nullptr);
    path_ = name;
  }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  ~TempDir() { EXPECT_EQ(::system(("rm -rf " + path_).c_str()), 0); }
  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

}  // namespace icebox::shim::testing
