// SPDX-License-Identifier: Apache-2.0
#include "runtime-hooks/cuda/confine.h"

#include <sched.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <set>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <seccomp.h>

namespace icebox::cuda {
namespace {

std::vector<cap_value_t> kept() {
  std::vector<cap_value_t> values;
  for (const KeptCapability& capability : kept_capabilities()) values.push_back(capability.value);
  return values;
}

// Runs `check` in a confined child and returns what it returns: confinement is for good.
template <typename Check>
int in_confined_child(Check check) {
  const pid_t child = ::fork();
  if (child == 0) {
    const auto confined = confine(kept());
    if (!confined.ok()) {
      std::fprintf(stderr, "%s\n", confined.error().message.c_str());
      ::_exit(101);
    }
    ::_exit(check());
  }
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

TEST(Confine, KeepsOnlyTheTable) {
  EXPECT_EQ(in_confined_child([] {
              cap_t caps = ::cap_get_proc();
              const auto wanted = kept();
              for (cap_value_t value = 0; value < ::cap_max_bits(); ++value) {
                cap_flag_value_t held = CAP_CLEAR;
                ::cap_get_flag(caps, value, CAP_PERMITTED, &held);
                const bool in_table =
                    std::find(wanted.begin(), wanted.end(), value) != wanted.end();
                if (held == CAP_SET && !in_table) return 1;
              }
              ::cap_free(caps);
              return ::prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) == 1 ? 0 : 2;
            }),
            0);
}

TEST(Confine, DeniesProgramsTracingMountsAndNamespaces) {
  EXPECT_EQ(in_confined_child([] {
              char* const arguments[] = {nullptr};
              if (::execve("/bin/true", arguments, arguments) == 0 || errno != EPERM) return 1;
              if (::ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) == 0 || errno != EPERM) return 2;
              if (::mount("none", "/tmp", "tmpfs", 0, nullptr) == 0 || errno != EPERM) return 3;
              if (::unshare(CLONE_NEWUSER) == 0 || errno != EPERM) return 4;
              return 0;
            }),
            0);
}

TEST(Confine, HoldsForThreadsAndLetsThemStart) {
  EXPECT_EQ(in_confined_child([] {
              int result = 1;
              std::thread([&result] {
                char* const arguments[] = {nullptr};
                result = ::execve("/bin/true", arguments, arguments) != 0 && errno == EPERM ? 0 : 2;
              }).join();
              return result;
            }),
            0);
}

TEST(Confine, EveryDeniedNameIsASystemCall) {
  // Those that this libseccomp may be too old to know are none of ours: all are older than 5.13.
  std::set<std::string_view> seen;
  for (const std::string_view name : denied_system_calls()) {
    EXPECT_NE(::seccomp_syscall_resolve_name(std::string(name).c_str()), __NR_SCMP_ERROR) << name;
    EXPECT_TRUE(seen.insert(name).second) << name << " twice";
  }
  EXPECT_EQ(seen.count("process_vm_readv"), 0U) << "the driver's channel to its targets";
}

TEST(Confine, EveryKeptCapabilityHasAReason) {
  for (const KeptCapability& capability : kept_capabilities()) {
    EXPECT_GT(capability.reason.size(), 20U);
  }
}

TEST(ParseCapabilities, TakesNamesWithAndWithoutPrefix) {
  const auto values = parse_capabilities("sys_ptrace,cap_sys_admin");
  ASSERT_TRUE(values.ok());
  EXPECT_THAT(*values, testing::ElementsAre(CAP_SYS_PTRACE, CAP_SYS_ADMIN));
  EXPECT_FALSE(parse_capabilities("sys_ptrace,omnipotence").ok());
}

}  // namespace
}  // namespace icebox::cuda
