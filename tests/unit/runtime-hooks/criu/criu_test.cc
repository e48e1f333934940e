// SPDX-License-Identifier: Apache-2.0
#include "runtime-hooks/criu/criu.h"

#include <stdlib.h>
#include <sys/stat.h>

#include <algorithm>
#include <string>

#include <gtest/gtest.h>

#include "oci/base/file.h"

namespace icebox::criu {
namespace {

TEST(Version, IsReadInEveryFormCriuPrints) {
  EXPECT_EQ(*parse_version("Version: 4.1.1\nGitID: v4.1.1\n"), (Version{4, 1, 1}));
  EXPECT_EQ(*parse_version("Version: 4.2\n"), (Version{4, 2, 0}));
  EXPECT_EQ(*parse_version("4.1-rc1"), (Version{4, 1, 0}));
  for (const char* text : {"", "Version: \n", "4", "a.b", "1.2.3.4", "4..1", "99999999999.1"}) {
    EXPECT_FALSE(parse_version(text).ok()) << text;
  }
}

TEST(Version, OrdersByNumberNotByText) {
  EXPECT_LT(*parse_version("4.9"), *parse_version("4.10"));
  EXPECT_LT(*parse_version("3.17.1"), kMinimum);
}

class FindCriuTest : public testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/icebox-criu-XXXXXX";
    ASSERT_NE(::mkdtemp(name), nullptr);
    directory_ = name;
  }
  void TearDown() override { EXPECT_TRUE(remove_tree(directory_).ok()); }
  // A program that behaves as `script` says.
  std::string program(const std::string& name, const std::string& script) const {
    const std::string path = directory_ + "/" + name;
    EXPECT_TRUE(write_file_atomic(path, "#!/bin/sh\n" + script, 0755, Durable::no).ok());
    return path;
  }
  std::string directory_;
};

TEST_F(FindCriuTest, TakesTheConfiguredOne) {
  const auto criu = find_criu(program("criu", "echo 'Version: 4.2'"));
  ASSERT_TRUE(criu.ok()) << criu.error().message;
  EXPECT_EQ(criu->version, (Version{4, 2, 0}));
}

TEST_F(FindCriuTest, SaysWhatIsMissingTooOldOrBroken) {
  const auto expect = [](const Result<Criu>& criu, const char* part) {
    ASSERT_FALSE(criu.ok());
    EXPECT_NE(criu.error().message.find(part), std::string::npos) << criu.error().message;
    EXPECT_NE(criu.error().message.find("scripts/setup.sh"), std::string::npos)
        << "the way out is missing";
  };
  expect(find_criu(directory_ + "/none/criu"), "is missing");
  expect(find_criu(program("criu", "echo 'Version: 3.17.1'")), "CRIU 3.17.1");
  expect(find_criu(program("criu", "echo boom >&2; exit 1")), "boom");
  expect(find_criu(program("criu", "echo hello")), "not a CRIU version");
}

TEST_F(FindCriuTest, RefusesANameThatTheRuntimeWouldNotFind) {
  const auto criu = find_criu(program("criu-4.2", "echo 'Version: 4.2'"));
  ASSERT_FALSE(criu.ok());
  EXPECT_NE(criu.error().message.find("/criu"), std::string::npos);
}

TEST(RuntimeEnvironment, PutsThisCriuFirstAndPluginsNowhere) {
  ::setenv("CRIU_LIBS_DIR", "/usr/lib/criu", 1);
  ::setenv("CRIU_CONFIG_FILE", "/etc/other", 1);
  const auto environment = runtime_environment({"/opt/x/criu", {4, 2, 0}}, "/empty", "/conf");
  ::unsetenv("CRIU_LIBS_DIR");
  ::unsetenv("CRIU_CONFIG_FILE");
  const auto count = [&](const std::string& start) {
    return std::count_if(environment.begin(), environment.end(),
                         [&](const auto& e) { return e.starts_with(start); });
  };
  EXPECT_EQ(count("CRIU_LIBS_DIR="), 1);
  EXPECT_EQ(count("CRIU_LIBS_DIR=/empty"), 1);
  EXPECT_EQ(count("CRIU_CONFIG_FILE="), 1);
  EXPECT_EQ(count("CRIU_CONFIG_FILE=/conf"), 1);
  EXPECT_EQ(count("PATH=/opt/x:"), 1);
}

TEST(LastError, IsTheCauseAndNotItsConsequences) {
  EXPECT_EQ(
      last_error_in("(00.1) Error (criu/util.c:1): rlimit: Can't setup RLIMIT_NOFILE for self\n"
                    "(00.2) Error (criu/files-ext.c:98): Can't dump file 5 of that type [20666] "
                    "(chr 10:237)\n"
                    "(00.3) Error (criu/cr-dump.c:1): Dump files (pid: 22210) failed with -1\n"
                    "(00.4) Error (criu/cr-dump.c:2111): Dumping FAILED.\n"),
      "Can't dump file 5 of that type [20666] (chr 10:237)");
  EXPECT_EQ(last_error_in("(00.4) Error (criu/cr-dump.c:2111): Dumping FAILED.\n"),
            "Dumping FAILED.");
  EXPECT_EQ(last_error_in(
                "Error (criu/util.c:642): execvp(\"iptables-restore\", ...) failed: No such file\n"
                "(00.1) Error (criu/util.c:657): exited, status=1\n"
                "(00.2) Error (criu/net.c:3436): net: Locking network failed: iptables-restore "
                "returned -1\n"
                "(00.3) Error (criu/util.c:657): exited, status=1\n"
                "(00.4) Error (criu/cr-dump.c:1975): Dumping FAILED.\n"),
            "net: Locking network failed: iptables-restore returned -1");
  EXPECT_EQ(last_error_in("nothing wrong\n"), "");
  // All that a CRIU has said that was killed in the middle.
  EXPECT_EQ(last_error_in("(00.1) Error (criu/util.c:1): rlimit: Can't setup RLIMIT_NOFILE for "
                          "self: Operation not permitted\n"),
            "");
}

}  // namespace
}  // namespace icebox::criu
