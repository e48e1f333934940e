// SPDX-License-Identifier: Apache-2.0
#include "oci/base/log.h"

#include <fcntl.h>
#include <unistd.h>

#include <string>

#include <gtest/gtest.h>

namespace icebox {
namespace {

// Sends the log into a pipe and gives back what was written.
class LogTest : public testing::Test {
 protected:
  void SetUp() override { ASSERT_EQ(::pipe2(ends_, O_CLOEXEC | O_NONBLOCK), 0); }
  void TearDown() override {
    log::set_sink(2, log::Format::text);
    log::set_level(log::Level::info);
    ::close(ends_[0]);
    ::close(ends_[1]);
  }
  std::string drain() const {
    std::string text(1 << 20, '\0');
    const ssize_t n = ::read(ends_[0], text.data(), text.size());
    text.resize(n > 0 ? static_cast<std::size_t>(n) : 0);
    return text;
  }
  int ends_[2] = {-1, -1};
};

TEST_F(LogTest, JsonLinesAreWhatRuncWrites) {
  log::set_sink(ends_[1], log::Format::json);
  log::error("it \"broke\"\n", {{"id", "c1"}});
  const auto line = drain();
  EXPECT_NE(line.find(R"("level":"error","msg":"it \"broke\"\n","time":")"), std::string::npos)
      << line;
  EXPECT_NE(line.find(R"("id":"c1"})"), std::string::npos) << line;
}

TEST_F(LogTest, LevelsBelowTheThresholdAreLeftOut) {
  log::set_sink(ends_[1], log::Format::text);
  log::debug("quiet");
  EXPECT_EQ(drain(), "");
}

TEST_F(LogTest, AFullPipeDropsLinesAndSaysSo) {
  log::set_sink(ends_[1], log::Format::text);
  for (int i = 0; i < 2000; ++i) log::info(std::string(100, 'x'));
  drain();
  log::info("after");
  const auto text = drain();
  EXPECT_NE(text.find("log lines were dropped"), std::string::npos);
  EXPECT_NE(text.find("after"), std::string::npos);
}

TEST(JsonQuote, ReplacesInvalidUtf8) {
  EXPECT_EQ(log::json_quote("a\xff\x62"), "\"a\xEF\xBF\xBD\x62\"");
  EXPECT_EQ(log::json_quote("\xed\xa0\x80"), "\"\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\"")
      << "a surrogate is not UTF-8";
  EXPECT_EQ(log::json_quote("\x01\t\\"), "\"\\u0001\\t\\\\\"");
}

}  // namespace
}  // namespace icebox
