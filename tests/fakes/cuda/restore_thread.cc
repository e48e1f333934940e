// SPDX-License-Identifier: Apache-2.0
//
// The restore thread: the thread of a CUDA process that does what other processes ask for through
// the mailbox. While it works all other threads may be stopped, so nothing here takes a lock,
// allocates from the heap, or waits for another thread other than by looking at the gate.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <ctime>

#include "tests/fakes/cuda/driver_state.h"
#include "tests/fakes/cuda/knobs.h"
#include "tests/fakes/cuda/restore_plan.h"

namespace icebox::sim {
namespace {

using cu::ProcessState;
using cu::Result;

constexpr std::int64_t kMillisecond = 1'000'000;
constexpr std::int64_t kIdlePoll = kMillisecond;  // between looks at the mailbox
constexpr std::int64_t kBusyPoll = 50'000;        // likewise, shortly after a request
constexpr std::int64_t kBusyTime = 20 * kMillisecond;
constexpr std::size_t kChunk = 2UL << 20;
constexpr std::size_t kGuard = 4096;

std::int64_t now() {
  timespec time{};
  ::clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec * 1'000'000'000LL + time.tv_nsec;
}

void sleep_for(std::int64_t nanoseconds) {
  timespec time{nanoseconds / 1'000'000'000, nanoseconds % 1'000'000'000};
  while (::clock_nanosleep(CLOCK_MONOTONIC, 0, &time, &time) == EINTR) {
  }
}

Knobs current_knobs() { return read_knobs(driver().host.knobs_path); }

using KnobOf = Knob Knobs::*;

/// Waits until the knob no longer says `trouble`.
void wait_until_lifted(KnobOf which, Trouble trouble) {
  while ((current_knobs().*which).trouble == trouble) sleep_for(5 * kMillisecond);
}

/// Ends the process by a fault in this thread, which has all signals blocked, so that no handler of
/// the application runs. A fault ends even the first process of a pid namespace, as SIGKILL from
/// inside would not.
[[noreturn]] void die() {
  for (;;) *static_cast<volatile int*>(nullptr) = 0;  // NOLINT(clang-analyzer-core.NullDereference)
}

/// Whether a tracer holds the process's first thread still.
bool first_thread_is_stopped() {
  const int fd = ::open("/proc/self/status", O_RDONLY | O_CLOEXEC);
  if (fd < 0) return false;
  char text[4096];
  const ssize_t size = ::read(fd, text, sizeof text - 1);
  ::close(fd);
  text[size > 0 ? size : 0] = '\0';
  return std::strstr(text, "\nState:\tt") !=
         nullptr;  // TracerPid is 0 for one outside of the namespace
}

/// The troubles that several operations share. Returns true if `result` is the answer.
bool common_trouble(KnobOf which, const Knob& knob, Result& result) {
  switch (knob.trouble) {
    case Trouble::error: result = static_cast<Result>(knob.value); return true;
    case Trouble::hang: wait_until_lifted(which, Trouble::hang); return false;
    case Trouble::needs_threads:
      while (first_thread_is_stopped()) sleep_for(kMillisecond);
      return false;
    case Trouble::die_hang:
      mailbox().hang_caller = kHangCaller;
      while (mailbox().hang_caller != kCallerHangs) sleep_for(kBusyPoll);
      die();
    case Trouble::die:
    case Trouble::crash: die();
    case Trouble::slow:
      if (which != &Knobs::lock) sleep_for(knob.value * kMillisecond);
      return false;
    default: return false;
  }
}

Result do_lock(const Request& request, const Knobs& knobs) {
  DriverState& self = driver();
  if (self.state() != ProcessState::running) return Result::illegal_state;
  Result result = Result::success;
  const std::int64_t start = now();
  if (knobs.lock.trouble == Trouble::hang) self.gate.close();
  if (common_trouble(&Knobs::lock, knobs.lock, result)) return result;
  self.gate.close();
  const std::int64_t deadline = start + request.timeout_ms * kMillisecond;
  const std::int64_t drained =
      knobs.lock.trouble == Trouble::slow ? start + knobs.lock.value * kMillisecond : start;
  bool busy = knobs.lock.trouble == Trouble::busy;
  while (busy || !self.gate.idle() || now() < drained) {
    if (request.timeout_ms != 0 && knobs.lock.trouble != Trouble::hang && now() >= deadline) {
      self.gate.open();
      return Result::not_ready;
    }
    sleep_for(busy ? kMillisecond : kBusyPoll);
    busy = busy && current_knobs().lock.trouble == Trouble::busy;
  }
  self.set_state(ProcessState::locked);
  return Result::success;
}

/// A private anonymous mapping of its own: pages without access on both sides keep the kernel from
/// joining it with a neighbour.
char* map_region(std::size_t size) {
  void* whole = ::mmap(nullptr, size + 2 * kGuard, PROT_NONE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (whole == MAP_FAILED) return nullptr;
  char* region = static_cast<char*>(whole) + kGuard;
  if (size > 0 && ::mprotect(region, size, PROT_READ | PROT_WRITE) != 0) {
    ::munmap(whole, size + 2 * kGuard);
    return nullptr;
  }
  return region;
}

void unmap_region() {
  DriverState& self = driver();
  ::munmap(self.saved - kGuard, self.saved_size + 2 * kGuard);
  self.saved = nullptr;
  self.saved_size = 0;
}

/// Moves device memory into the region, a chunk at a time, so that the process never holds both in
/// full.
void move_out(const Allocation& from, char* to) {
  char* device = reinterpret_cast<char*>(from.address);
  for (std::size_t done = 0; done < from.size; done += kChunk) {
    const std::size_t size = from.size - done < kChunk ? from.size - done : kChunk;
    std::memcpy(to + done, device + done, size);
    ::madvise(device + done, size, MADV_DONTNEED);
  }
  unmap_device(from.address, from.size);
}

Result do_checkpoint(const Request&, const Knobs& knobs) {
  DriverState& self = driver();
  if (self.state() != ProcessState::locked) return Result::illegal_state;
  if (knobs.checkpoint.trouble == Trouble::error)
    return static_cast<Result>(knobs.checkpoint.value);
  std::size_t total = 0;
  for (const Allocation& each : self.allocations) total += each.size;
  char* region = map_region(total);
  if (region == nullptr) return Result::out_of_memory;
  self.saved = region;
  self.saved_size = total;
  const std::size_t half = self.allocations.size() / 2;
  std::size_t done = 0;
  for (std::size_t i = 0; i <= self.allocations.size(); ++i) {
    Result unused{};  // Trouble::error was dealt with above
    if (i == half) common_trouble(&Knobs::checkpoint, knobs.checkpoint, unused);
    if (i == self.allocations.size()) break;
    move_out(self.allocations[i], region + done);
    done += self.allocations[i].size;
  }
  if (!knobs.leave_fd) close_device();
  if (knobs.checkpoint.trouble == Trouble::then_failed) {
    self.set_state(ProcessState::failed);
    self.gate.break_down();
    return Result::unknown;
  }
  self.set_state(ProcessState::checkpointed);
  return Result::success;
}

/// Brings the device memory back to its addresses. False: no memory; what was brought back is taken
/// away again, the region is still whole.
bool move_in() {
  DriverState& self = driver();
  std::size_t done = 0;
  for (const Allocation& each : self.allocations) {
    if (!map_device(each.address, each.size)) {
      for (const Allocation& undo : self.allocations) unmap_device(undo.address, undo.size);
      return false;
    }
    std::memcpy(reinterpret_cast<void*>(each.address), self.saved + done, each.size);
    done += each.size;
  }
  return true;
}

Result do_restore(const Request& request, const Knobs& knobs) {
  DriverState& self = driver();
  if (self.state() != ProcessState::checkpointed) return Result::illegal_state;
  if (self.restore_is_lost) return Result::operating_system;
  Result result = Result::success;
  if (common_trouble(&Knobs::restore, knobs.restore, result)) return result;
  cu::Uuid target[kMaxGpus];
  result = plan_restore(self.host.gpus, self.host.gpu_count, mailbox().usage, request, target);
  if (knobs.restore.trouble == Trouble::oom_sticky) result = Result::out_of_memory;
  // Seen with 580.95 (NVIDIA/cuda-checkpoint#44): after an out-of-memory Restore every later one
  // answers 304, and the process can only be killed.
  self.restore_is_lost = result == Result::out_of_memory;
  if (result != Result::success) return result;
  if (!open_device()) return Result::operating_system;
  if (!move_in()) {
    close_device();
    self.restore_is_lost = true;
    return Result::out_of_memory;
  }
  unmap_region();
  for (int i = 0; i < self.host.gpu_count; ++i) {
    self.host.gpus[i].uuid = target[i];
    mailbox().usage[i].uuid = target[i];
  }
  self.set_state(ProcessState::locked);
  return Result::success;
}

Result do_unlock(const Request&, const Knobs& knobs) {
  DriverState& self = driver();
  if (self.state() != ProcessState::locked) return Result::illegal_state;
  Result result = Result::success;
  if (common_trouble(&Knobs::unlock, knobs.unlock, result)) return result;
  self.set_state(ProcessState::running);
  self.gate.open();
  return Result::success;
}

struct OperationEntry {
  const char* name;
  Result (*run)(const Request&, const Knobs&);
};

OperationEntry entry_of(Operation operation) {
  switch (operation) {
    case Operation::lock: return {"lock", do_lock};
    case Operation::checkpoint: return {"checkpoint", do_checkpoint};
    case Operation::restore: return {"restore", do_restore};
    case Operation::unlock: return {"unlock", do_unlock};
    case Operation::get_state:
      return {"get-state", [](const Request&, const Knobs&) { return Result::success; }};
    case Operation::none: break;
  }
  return {"none", [](const Request&, const Knobs&) { return Result::invalid_value; }};
}

void append_log(const char* path, const char* operation, std::int64_t begin, const Reply& reply) {
  if (path[0] == '\0') return;
  const int fd = ::open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
  if (fd < 0) return;
  char line[256];
  const int size =
      std::snprintf(line, sizeof line, "%s pid=%d begin_ns=%lld end_ns=%lld result=%d state=%d\n",
                    operation, static_cast<int>(::getpid()), static_cast<long long>(begin),
                    static_cast<long long>(now()), reply.result, reply.state);
  (void)!::write(fd, line, static_cast<std::size_t>(size));
  ::close(fd);
}

void serve(Mailbox& box) {
  const std::int64_t begin = now();
  const Knobs knobs = current_knobs();
  const OperationEntry entry = entry_of(box.request.operation);
  box.reply.result = static_cast<std::int32_t>(entry.run(box.request, knobs));
  box.reply.state = knobs.state >= 0 ? knobs.state : box.state.load();
  if (box.request.operation == Operation::restore) box.restore_granted = 0;
  append_log(knobs.log, entry.name, begin, box.reply);
}

[[noreturn]] void serve_for_ever() {
  Mailbox& box = mailbox();
  std::int64_t last_request = now() - kBusyTime;
  for (;;) {
    const std::uint64_t sequence = box.request_sequence.load(std::memory_order_acquire);
    if (sequence != box.reply_sequence.load(std::memory_order_relaxed)) {
      serve(box);
      box.reply_sequence.store(sequence, std::memory_order_release);
      last_request = now();
    } else {
      sleep_for(now() - last_request < kBusyTime ? kBusyPoll : kIdlePoll);
    }
  }
}

void* restore_thread(void*) {
  const auto tid = static_cast<pid_t>(::syscall(SYS_gettid));
  char name[16];  // real ones are called "cuda" and 11 hex digits too
  std::snprintf(name, sizeof name, "cuda%011x", static_cast<unsigned>(tid));
  ::prctl(PR_SET_NAME, name);
  mailbox().restore_thread = tid;
  mailbox().owner_pid.store(::getpid());
  serve_for_ever();
}

/// The child of a fork has neither the restore thread nor a working CUDA; its mailbox must say so.
/// (A child that was cloned past this handler is found out by its pid.)
void mark_forked_child() { mailbox().owner_pid = 0; }

}  // namespace

bool start_restore_thread() {
  if (::pthread_atfork(nullptr, nullptr, mark_forked_child) != 0) return false;
  sigset_t all;
  sigset_t before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  pthread_t thread{};
  const int error = ::pthread_create(&thread, nullptr, restore_thread, nullptr);
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (error != 0) return false;
  ::pthread_detach(thread);
  while (mailbox().owner_pid.load() == 0) sleep_for(kBusyPoll);
  return true;
}

}  // namespace icebox::sim
