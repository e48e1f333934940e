// SPDX-License-Identifier: Apache-2.0
#include "runtime-hooks/cuda/confine.h"

#include <sys/prctl.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <memory>
#include <string>

#include <seccomp.h>

#include "oci/base/strings.h"

namespace icebox::cuda {
namespace {

constexpr std::array<KeptCapability, 3> kKept = {{
    {CAP_SYS_PTRACE,
     "the driver reaches its restore thread in another process through /proc/PID and "
     "process_vm_readv, whatever user or user namespace that runs in"},
    {CAP_DAC_READ_SEARCH, "reading /proc/PID of processes of other users"},
    {CAP_DAC_OVERRIDE,
     "opening /dev/nvidia* and the driver's channel files where their mode names another user"},
}};

// A deny list, because what the driver's libraries call is not documented. On it stands what would
// let a flaw in them leave this process: running programs, tracing, mounts, namespaces, modules and
// other parts of the kernel's configuration.
constexpr std::array<std::string_view, 46> kDenied = {
    "execve",
    "execveat",
    "ptrace",
    "mount",
    "umount2",
    "move_mount",
    "open_tree",
    "fsopen",
    "fsmount",
    "fsconfig",
    "fspick",
    "mount_setattr",
    "pivot_root",
    "chroot",
    "unshare",
    "setns",
    "init_module",
    "finit_module",
    "delete_module",
    "kexec_load",
    "kexec_file_load",
    "bpf",
    "perf_event_open",
    "keyctl",
    "add_key",
    "request_key",
    "open_by_handle_at",
    "name_to_handle_at",
    "reboot",
    "swapon",
    "swapoff",
    "acct",
    "quotactl",
    "sethostname",
    "setdomainname",
    "settimeofday",
    "clock_settime",
    "clock_adjtime",
    "adjtimex",
    "iopl",
    "ioperm",
    "syslog",
    "vhangup",
    "lookup_dcookie",
    "io_uring_setup",
    "io_uring_register",
};

struct CapFree {
  void operator()(cap_t caps) const { ::cap_free(caps); }
};
using UniqueCaps = std::unique_ptr<_cap_struct, CapFree>;

struct FilterRelease {
  void operator()(void* filter) const { ::seccomp_release(filter); }
};
using UniqueFilter = std::unique_ptr<void, FilterRelease>;

bool contains(const std::vector<cap_value_t>& list, cap_value_t value) {
  return std::find(list.begin(), list.end(), value) != list.end();
}

// The bounding and ambient sets: what a program run from here could get. Needs CAP_SETPCAP, so it
// comes before the other sets shrink; without it there is nothing to gain either (no_new_privs).
void shrink_outer_sets(const std::vector<cap_value_t>& keep) {
  ::cap_reset_ambient();
  for (cap_value_t value = 0; value < ::cap_max_bits(); ++value) {
    if (!contains(keep, value)) ::cap_drop_bound(value);
  }
}

Result<void> shrink_own_sets(const std::vector<cap_value_t>& keep) {
  const UniqueCaps current(::cap_get_proc());
  const UniqueCaps wanted(::cap_init());
  if (!current || !wanted) return errno_error("reading the agent's capabilities");
  for (const cap_value_t value : keep) {
    cap_flag_value_t held = CAP_CLEAR;
    ::cap_get_flag(current.get(), value, CAP_PERMITTED, &held);
    if (held != CAP_SET) continue;
    ::cap_set_flag(wanted.get(), CAP_PERMITTED, 1, &value, CAP_SET);
    ::cap_set_flag(wanted.get(), CAP_EFFECTIVE, 1, &value, CAP_SET);
  }
  if (::cap_set_proc(wanted.get()) != 0) return errno_error("dropping the agent's capabilities");
  return {};
}

Result<void> install_filter() {
  const UniqueFilter filter(::seccomp_init(SCMP_ACT_ALLOW));
  if (!filter) return make_error(Code::unknown, "cannot prepare the agent's system call filter");
  for (const std::string_view name : kDenied) {
    const int number = ::seccomp_syscall_resolve_name(std::string(name).c_str());
    if (number == __NR_SCMP_ERROR) continue;  // unknown to this libseccomp: newer than its tables
    const int error = ::seccomp_rule_add(filter.get(), SCMP_ACT_ERRNO(EPERM), number, 0);
    // A call that this architecture does not have needs no rule.
    if (error != 0 && error != -EDOM && error != -EINVAL) {
      return errno_error("adding " + std::string(name) + " to the agent's filter", -error);
    }
  }
  const int error = ::seccomp_load(filter.get());
  if (error != 0) return errno_error("installing the agent's system call filter", -error);
  return {};
}

}  // namespace

std::span<const KeptCapability> kept_capabilities() { return kKept; }

std::span<const std::string_view> denied_system_calls() { return kDenied; }

Result<std::vector<cap_value_t>> parse_capabilities(std::string_view list) {
  std::vector<cap_value_t> values;
  for (const std::string_view name : split(list, ',', SplitEmpty::drop)) {
    std::string full(trim(name));
    if (!full.starts_with("cap_")) full.insert(0, "cap_");
    cap_value_t value = 0;
    if (::cap_from_name(full.c_str(), &value) != 0) {
      return make_error(Code::invalid_argument, "unknown capability " + std::string(trim(name)));
    }
    values.push_back(value);
  }
  return values;
}

Result<void> confine(const std::vector<cap_value_t>& capabilities) {
  shrink_outer_sets(capabilities);
  ICEBOX_TRY(shrink_own_sets(capabilities));
  if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) return errno_error("setting no_new_privs");
  return install_filter();
}

}  // namespace icebox::cuda
