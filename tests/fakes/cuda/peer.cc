// SPDX-License-Identifier: Apache-2.0
#include "tests/fakes/cuda/peer.h"

#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

namespace icebox::sim {
namespace {

struct FileCloser {
  FILE* file;
  ~FileCloser() {
    if (file != nullptr) std::fclose(file);
  }
};

struct DirCloser {
  DIR* dir;
  ~DirCloser() {
    if (dir != nullptr) ::closedir(dir);
  }
};

/// Numeric entry names of a folder, e.g. the pids of /proc. Entries may be gone when they are used.
std::vector<pid_t> numeric_entries(const char* path) {
  std::vector<pid_t> numbers;
  const DirCloser dir{::opendir(path)};
  if (dir.dir == nullptr) return numbers;
  while (const dirent* entry = ::readdir(dir.dir)) {
    char* end = nullptr;
    const long number = std::strtol(entry->d_name, &end, 10);
    if (number > 0 && *end == '\0') numbers.push_back(static_cast<pid_t>(number));
  }
  return numbers;
}

/// The last number of the line that starts with `field` in a status file; 0 if there is none. For
/// NSpid and NStgid that is the id in the innermost pid namespace, the one the process itself sees.
pid_t last_number(const char* status_path, const char* field) {
  const FileCloser status{std::fopen(status_path, "re")};
  if (status.file == nullptr) return 0;
  char line[512];
  while (std::fgets(line, sizeof line, status.file) != nullptr) {
    if (std::strncmp(line, field, std::strlen(field)) != 0) continue;
    const char* last = std::strpbrk(line + std::strlen(field), "0123456789");
    for (const char* next = last; next != nullptr;) {
      last = next;
      next = std::strpbrk(next + std::strspn(next, "0123456789"), "0123456789");
    }
    return last == nullptr ? 0 : static_cast<pid_t>(std::atoi(last));
  }
  return 0;
}

/// Address of the mailbox in the process whose /proc/PID/mem is `memory`; 0 if it has none.
std::uint64_t find_mailbox(pid_t pid, int memory) {
  char path[64];
  std::snprintf(path, sizeof path, "/proc/%d/maps", pid);
  const FileCloser maps{std::fopen(path, "re")};
  if (maps.file == nullptr) return 0;
  char line[4096 + 128];
  while (std::fgets(line, sizeof line, maps.file) != nullptr) {
    unsigned long long start = 0;
    unsigned long long end = 0;
    char access[5] = "";
    if (std::sscanf(line, "%llx-%llx %4s", &start, &end, access) != 3) continue;
    if (access[1] != 'w' || std::strstr(line, "/libcuda.so") == nullptr) continue;
    for (std::uint64_t at = start; at + sizeof(Mailbox) <= end; at += kMailboxAlignment) {
      char magic[sizeof kMagic];
      if (::pread(memory, magic, sizeof magic, static_cast<off_t>(at)) == sizeof magic &&
          std::memcmp(magic, kMagic, sizeof magic) == 0) {
        return at;
      }
    }
  }
  return 0;
}

}  // namespace

Peer::Found Peer::open(pid_t pid, Peer& peer) {
  char path[64];
  std::snprintf(path, sizeof path, "/proc/%d/mem", pid);
  peer.pid_ = pid;
  peer.memory_ = UniqueFd(::open(path, O_RDWR | O_CLOEXEC));
  if (!peer.memory_) {
    return errno == EACCES || errno == EPERM ? Found::not_permitted : Found::no_driver;
  }
  peer.address_ = find_mailbox(pid, peer.memory_.get());
  if (peer.address_ == 0) return Found::no_driver;
  std::uint32_t version = 0;
  std::int32_t owner = 0;
  if (!peer.read(offsetof(Mailbox, version), &version, sizeof version)) return Found::no_driver;
  if (version != kMailboxVersion) return Found::other_version;
  if (!peer.read(offsetof(Mailbox, owner_pid), &owner, sizeof owner) || owner == 0)
    return Found::no_driver;
  std::snprintf(path, sizeof path, "/proc/%d/status", pid);
  return last_number(path, "NStgid:") == owner ? Found::yes : Found::not_the_owner;
}

bool Peer::read(std::size_t offset, void* to, std::size_t size) const {
  return ::pread(memory_.get(), to, size, static_cast<off_t>(address_ + offset)) ==
         static_cast<ssize_t>(size);
}

bool Peer::write(std::size_t offset, const void* from, std::size_t size) const {
  return ::pwrite(memory_.get(), from, size, static_cast<off_t>(address_ + offset)) ==
         static_cast<ssize_t>(size);
}

std::vector<PeerUsage> all_usage() {
  std::vector<PeerUsage> all;
  for (const pid_t pid : numeric_entries("/proc")) {
    Peer peer;
    if (Peer::open(pid, peer) != Peer::Found::yes) continue;
    PeerUsage one{};
    std::int32_t state = 0;
    std::uint32_t granted = 0;
    one.pid = pid;
    if (!peer.read(offsetof(Mailbox, state), &state, sizeof state) ||
        !peer.read(offsetof(Mailbox, restore_granted), &granted, sizeof granted) ||
        !peer.read(offsetof(Mailbox, context_count), &one.context_count,
                   sizeof one.context_count) ||
        !peer.read(offsetof(Mailbox, usage_count), &one.usage_count, sizeof one.usage_count) ||
        !peer.read(offsetof(Mailbox, usage), one.usage, sizeof one.usage)) {
      continue;
    }
    one.on_gpu =
        static_cast<cu::ProcessState>(state) != cu::ProcessState::checkpointed || granted != 0;
    all.push_back(one);
  }
  return all;
}

std::uint64_t used_bytes(const std::vector<PeerUsage>& all, const cu::Uuid& uuid, pid_t except) {
  std::uint64_t bytes = 0;
  for (const PeerUsage& one : all) {
    if (!one.on_gpu || one.pid == except) continue;
    for (std::uint32_t i = 0; i < one.usage_count && i < kMaxGpus; ++i)
      if (one.usage[i].uuid == uuid) bytes += one.usage[i].bytes;
  }
  return bytes;
}

pid_t outer_thread_id(pid_t pid, pid_t inner_tid) {
  char path[96];
  std::snprintf(path, sizeof path, "/proc/%d/task", pid);
  for (const pid_t tid : numeric_entries(path)) {
    std::snprintf(path, sizeof path, "/proc/%d/task/%d/status", pid, tid);
    if (last_number(path, "NSpid:") == inner_tid) return tid;
  }
  return 0;
}

pid_t process_of(pid_t tid) {
  char path[64];
  std::snprintf(path, sizeof path, "/proc/%d/status", tid);
  return last_number(path, "Tgid:");
}

}  // namespace icebox::sim
