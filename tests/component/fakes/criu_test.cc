// SPDX-License-Identifier: Apache-2.0
//
// The simulation against a real CRIU: it refuses a process that is on the GPU, for the reason that
// it gives with a real one, and carries a suspended one.
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>

#include "tests/component/fakes/harness.h"

namespace icebox::sim::test {
namespace {

std::string criu_path() {
  const char* const named = std::getenv("ICEBOX_CRIU");
  if (named != nullptr) return named;
  return std::filesystem::exists("/opt/icebox/criu/bin/criu") ? "/opt/icebox/criu/bin/criu"
                                                              : "criu";
}

class CriuTest : public SimTest {
 protected:
  void SetUp() override {
    SimTest::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    Process version({criu_path(), "--version"});
    if (version.wait() != 0) GTEST_SKIP() << "no CRIU: scripts/setup.sh installs one";
    // Restored processes become children of this one when CRIU ends.
    ::prctl(PR_SET_CHILD_SUBREAPER, 1);
    std::filesystem::create_directory(path("images"));
  }

  /// Runs CRIU to its end; its exit status.
  int criu(const std::string& action, const std::vector<std::string>& arguments) const {
    std::vector<std::string> argv{criu_path(),          action, "-D", path("images"), "-v4", "-o",
                                  path(action + ".log")};
    argv.insert(argv.end(), arguments.begin(), arguments.end());
    Process process(argv);
    return process.wait(60s);
  }

  std::string log_of(const std::string& action) const { return read_file(path(action + ".log")); }

  /// Dumps the tree of `process`, which ends with that, and restores it. Its other processes, in
  /// `descendants`, are reaped as well, so that their pids are free again.
  void dump_and_restore(Process& process, const std::vector<pid_t>& descendants = {}) const {
    const pid_t pid = process.pid();
    ASSERT_EQ(criu("dump", {"-t", std::to_string(pid)}), 0) << log_of("dump");
    ASSERT_TRUE(WIFSIGNALED(process.wait()));
    for (const pid_t descendant : descendants) {
      ASSERT_TRUE(eventually([&] {
        ::waitpid(descendant, nullptr, WNOHANG);
        return ::kill(descendant, 0) != 0;
      }));
    }
    ASSERT_EQ(criu("restore", {"-d"}), 0) << log_of("restore");
    process.adopt(pid);
  }

  /// The last line of the file `name` that a sample writes to; waits for one after `after`.
  std::string line_after(const std::string& name, const std::string& text, std::size_t after) {
    std::string found;
    EXPECT_TRUE(eventually([&] {
      const std::string all = read_file(path(name));
      const auto at = all.find(text, after);
      if (at == std::string::npos || all.find('\n', at) == std::string::npos) return false;
      found = all.substr(at, all.find('\n', at) - at);
      return true;
    })) << read_file(path(name));
    return found;
  }
};

TEST_F(CriuTest, RefusesAProcessOnTheGpuForItsDeviceFd) {
  Process pattern(sample("sample-pattern", {"--mib", "4", "--tick-ms", "5"}), environment(),
                  path("out"));
  line_after("out", "beat 1 ok", 0);
  EXPECT_NE(criu("dump", {"-t", std::to_string(pattern.pid())}), 0);
  EXPECT_NE(log_of("dump").find("Can't dump file"), std::string::npos);
  EXPECT_NE(log_of("dump").find("(chr 10:237)"), std::string::npos) << log_of("dump");
  line_after("out", " ok ", read_file(path("out")).size());
  EXPECT_TRUE(is_running(pattern.pid()));
}

TEST_F(CriuTest, CarriesASuspendedProcess) {
  Process pattern(sample("sample-pattern", {"--mib", "24", "--blocks", "3", "--tick-ms", "5"}),
                  environment(), path("out"));
  const std::string before = line_after("out", "ok bytes=", 0);
  suspend(pattern.pid());
  const std::size_t written = read_file(path("out")).size();
  dump_and_restore(pattern);
  EXPECT_TRUE(is_checkpointed(pattern.pid()));
  int tid = 0;
  EXPECT_EQ(cu::cuCheckpointProcessGetRestoreThreadId(pattern.pid(), &tid), cu::Result::success);
  resume(pattern.pid());
  EXPECT_EQ(fds_to(pattern.pid(), device()).size(), 1U);
  EXPECT_EQ(line_after("out", "ok bytes=", written), before);
  EXPECT_EQ(read_file(path("out")).find("MISMATCH"), std::string::npos);
}

TEST_F(CriuTest, CounterGoesOnAfterARestore) {
  Process counter(sample("sample-counter", {"--port", "0", "--mib", "8"}), environment(),
                  path("out"));
  const std::string ready = line_after("out", "port=", 0);
  const std::string server = "127.0.0.1:" + ready.substr(5, ready.find(' ') - 5);
  Process first(sample("sample-counter", {"--ask", server, "2"}), environment());
  first.line();
  const std::string before = first.line();
  EXPECT_EQ(before.rfind("counter=2 ", 0), 0U) << before;
  suspend(counter.pid());
  dump_and_restore(counter);
  resume(counter.pid());
  Process second(sample("sample-counter", {"--ask", server, "1"}), environment());
  const std::string after = second.line();
  EXPECT_EQ(after.rfind("counter=3 ", 0), 0U) << after;
  EXPECT_EQ(after.substr(after.find("token=")), before.substr(before.find("token=")));
}

TEST_F(CriuTest, CarriesATreeOfCudaProcesses) {
  Process multi(sample("sample-multi", {"--processes", "3", "--mib", "8", "--tick-ms", "5"}),
                environment(), path("out"));
  std::vector<pid_t> children;
  for (const char* name : {"child 0 pid=", "child 1 pid=", "child 2 pid="}) {
    const std::string line = line_after("out", name, 0);
    children.push_back(std::stoi(line.substr(std::string(name).size())));
    line_after("out", line.substr(0, line.find(':')) + ": beat ", 0);
  }
  for (const pid_t child : children) suspend(child);
  const std::size_t written = read_file(path("out")).size();
  dump_and_restore(multi, children);
  if (HasFatalFailure()) return;
  for (const pid_t child : children) {
    EXPECT_TRUE(is_checkpointed(child));
    resume(child);
  }
  for (std::size_t i = 0; i < children.size(); ++i)
    line_after("out",
               "child " + std::to_string(i) + " pid=" + std::to_string(children[i]) + ": beat",
               written);
  EXPECT_EQ(read_file(path("out")).find("MISMATCH"), std::string::npos);
}

}  // namespace
}  // namespace icebox::sim::test
