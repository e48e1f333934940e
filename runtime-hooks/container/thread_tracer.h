// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pthread.h>
#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "oci/base/result.h"

namespace icebox::container {

// A thread that only traces. ptrace(2) belongs to the thread that attached, and a thread that ends
// releases everything it traces, stopped or not. The second is what makes it worth a thread: a
// tracee that has not stopped (a frozen one on cgroup v1, one that waits in vfork) cannot be
// detached in any other way.
class TracerThread {
 public:
  // Starts the thread, all signals blocked. Fails when the process may have no more threads.
  static Result<TracerThread> start();

  TracerThread(TracerThread&&) = default;
  TracerThread& operator=(TracerThread&&) = delete;
  TracerThread(const TracerThread&) = delete;
  TracerThread& operator=(const TracerThread&) = delete;
  ~TracerThread();  // finish()

  // Thread id: what TracerPid in /proc/TID/status of a tracee shows.
  [[nodiscard]] pid_t tid() const;

  // Runs `task` on the thread and waits for it. One at a time.
  void call(const std::function<void()>& task);

  // Starts `task` on the thread without waiting; it must not refer to what may be gone by then. One
  // at a time.
  void post(std::function<void()> task);

  // Whether what was posted has ended. Does not block.
  [[nodiscard]] bool idle() const;

  // Blocks until what was posted has ended.
  void wait_idle();

  // Ends the thread and waits until the kernel has released what it traced. A thread that is still
  // busy (PTRACE_SEIZE of a frozen, group-stopped task) is left behind: it ends, and releases, when
  // that call returns.
  void finish();

 private:
  struct Shared;
  explicit TracerThread(std::shared_ptr<Shared> shared) : shared_(std::move(shared)) {}
  static void* main(void* argument);

  std::shared_ptr<Shared> shared_;
  pthread_t thread_ = {};
};

// A seized thread.
struct Tracee {
  pid_t process = -1;
  pid_t tid = -1;
  bool driver = false;                // may run during the hold
  bool stopped = false;               // a ptrace stop was seen and it was not resumed
  bool gone = false;                  // ended, or detached
  int signal = 0;                     // held back in a signal-delivery-stop; handed on at detach
  bool stop_held_back = false;        // a SIGSTOP was kept from a running driver thread
  bool faulted = false;               // a driver thread was sent on with a fault of its own once
  std::optional<std::uint64_t> mask;  // its own blocked signals while all are blocked
};

enum class Seized { yes, gone };

// The functions below are called on the tracer thread that seized (is to seize) the tracee. None
// but seize() blocks.

// PTRACE_SEIZE (no options) and PTRACE_INTERRUPT. `gone` for a thread that has ended.
// failed_precondition when another process traces it (named) or the kernel forbids it. Blocks,
// uninterruptibly, when the thread is group-stopped and frozen by cgroup v1, until it is thawed.
Result<Seized> seize(pid_t process, pid_t tid);

// Takes note of a stop or an end, if there is one. May be called on any thread of the program.
void poll_tracee(Tracee& tracee);

// Lets a stopped driver thread run with all signals blocked: while every other thread is stopped,
// the kernel would give it every signal of its process, and run the program's handlers on it. Also
// runs when its process is group-stopped.
Result<void> run_driver(Tracee& tracee);

// Keeps a running driver thread running: a SIGSTOP, which cannot be blocked, is held back until
// detach; any other signal that gets through is its own (a fault, or one that it waits for itself)
// and is handed on.
void keep_running(Tracee& tracee);

// Asks a running driver thread to stop (PTRACE_INTERRUPT); poll_tracee tells when it has.
void interrupt(Tracee& tracee);

// Gives a stopped driver thread its own signal mask back.
Result<void> restore_mask(Tracee& tracee);

// Detaches, with the signals that were held back. A tracee that has not stopped stays: only the end
// of its tracer thread releases it.
void detach(Tracee& tracee);

// The signal that a wait status of a seized thread holds back; 0 for a stop that is none
// (interrupt, group stop).
int held_back_signal(int wait_status);

}  // namespace icebox::container
