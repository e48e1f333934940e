// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pthread.h>
#include <sys/types.h>

#include <chrono>
#include <functional>
#include <memory>
#include <vector>

#include "oci/base/result.h"

namespace icebox::container {

// A thread that only traces. ptrace(2) belongs to the thread that attached, and a thread that ends releases everything it
// traces, stopped or not. The second is what makes it worth a thread: a tracee that has not stopped (a frozen one on
// cgroup v1, one that waits in vfork) cannot be detached in any other way.
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

  // Starts `task` on the thread without waiting; it must not refer to what may be gone by then. One at a time.
  void post(std::function<void()> task);

  // Whether what was posted has ended. Does not block.
  [[nodiscard]] bool idle() const;

  // Ends the thread and waits until the kernel has released what it traced. A thread that is still busy (PTRACE_SEIZE
  // of a frozen, group-stopped task) is left behind: it ends, and releases, when that call returns.
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
  bool stopped = false;
  bool gone = false;  // ended and waited for
  int signal = 0;     // held back in a signal-delivery-stop; handed on at detach
};

enum class Seized { yes, gone };

// PTRACE_SEIZE (no options) and PTRACE_INTERRUPT. Called on a tracer thread. `gone` for a thread that has ended.
// failed_precondition when another process traces it (named) or the kernel forbids it. Blocks, uninterruptibly, when
// the thread is group-stopped and frozen by cgroup v1, until it is thawed.
Result<Seized> seize(pid_t process, pid_t tid);

// Takes note of a stop or an end, if there is one. Called on the thread that seized. Does not block.
void poll_tracee(Tracee& tracee);

// Detaches, with the signal that was held back. A tracee that has not stopped stays: only the end of its tracer thread
// releases it. Called on the thread that seized.
void detach(Tracee& tracee);

// The signal that a wait status of a seized thread holds back; 0 for a stop that is none (interrupt, group stop).
int held_back_signal(int wait_status);

}  // namespace icebox::container
