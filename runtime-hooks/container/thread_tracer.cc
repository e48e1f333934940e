// SPDX-License-Identifier: Apache-2.0
#include "runtime-hooks/container/thread_tracer.h"

#include <limits.h>
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <ctime>
#include <mutex>
#include <string>
#include <utility>

#include "runtime-hooks/container/process.h"
#include "runtime-hooks/container/task_state.h"

namespace icebox::container {
namespace {

constexpr std::size_t kStackSize = 256 * 1024;
constexpr long kReleasePauseNs = 20 * 1000;

// Who traces a thread that could not be seized, or why it cannot be.
Error not_seized(pid_t process, pid_t tid, int err) {
  const auto task = read_task_state(process, tid);
  const std::string name = task.ok() ? task->describe() : "thread " + std::to_string(tid);
  if (task.ok() && task->tracer != 0) {
    const auto tracer = read_process(task->tracer);
    return make_error(Code::failed_precondition,
                      name + " is traced by " + std::to_string(task->tracer) +
                          (tracer.ok() ? " (" + tracer->command_line + ")" : "") +
                          ": detach that debugger first");
  }
  Error error = errno_error("ptrace of " + name, err);
  if (err == EPERM) {
    error.code = Code::failed_precondition;
    error.message += " (needs CAP_SYS_PTRACE, and kernel.yama.ptrace_scope below 3)";
  }
  return error;
}

}  // namespace

struct TracerThread::Shared {
  mutable std::mutex mutex;
  std::condition_variable changed;
  std::function<void()> task;
  bool busy = false;
  bool quit = false;
  pid_t tid = -1;
};

void* TracerThread::main(void* argument) {
  const std::unique_ptr<std::shared_ptr<Shared>> owned(
      static_cast<std::shared_ptr<Shared>*>(argument));
  const std::shared_ptr<Shared> shared = *owned;
  std::unique_lock lock(shared->mutex);
  shared->tid = static_cast<pid_t>(::syscall(SYS_gettid));
  shared->changed.notify_all();
  for (;;) {
    shared->changed.wait(lock, [&] { return shared->busy || shared->quit; });
    if (!shared->busy) return nullptr;
    const std::function<void()> task = std::exchange(shared->task, nullptr);
    lock.unlock();
    task();
    lock.lock();
    shared->busy = false;
    shared->changed.notify_all();
  }
}

Result<TracerThread> TracerThread::start() {
  TracerThread tracer(std::make_shared<Shared>());
  auto argument = std::make_unique<std::shared_ptr<Shared>>(tracer.shared_);
  pthread_attr_t attributes;
  ::pthread_attr_init(&attributes);
  ::pthread_attr_setstacksize(&attributes,
                              std::max(kStackSize, static_cast<std::size_t>(PTHREAD_STACK_MIN)));
  // Handlers of the program must not run on a thread that nobody expects; the new thread inherits
  // the mask.
  sigset_t all;
  sigset_t before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  const int err =
      ::pthread_create(&tracer.thread_, &attributes, &TracerThread::main, argument.get());
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  ::pthread_attr_destroy(&attributes);
  if (err != 0) {
    tracer.shared_.reset();
    return errno_error("start a tracer thread", err);
  }
  static_cast<void>(argument.release());  // the thread owns it now
  std::unique_lock lock(tracer.shared_->mutex);
  tracer.shared_->changed.wait(lock, [&] { return tracer.shared_->tid > 0; });
  lock.unlock();
  return tracer;
}

TracerThread::~TracerThread() { finish(); }

pid_t TracerThread::tid() const { return shared_->tid; }

void TracerThread::post(std::function<void()> task) {
  const std::lock_guard lock(shared_->mutex);
  shared_->task = std::move(task);
  shared_->busy = true;
  shared_->changed.notify_all();
}

void TracerThread::wait_idle() {
  std::unique_lock lock(shared_->mutex);
  shared_->changed.wait(lock, [&] { return !shared_->busy; });
}

void TracerThread::call(const std::function<void()>& task) {
  post(task);
  wait_idle();
}

bool TracerThread::idle() const {
  const std::lock_guard lock(shared_->mutex);
  return !shared_->busy;
}

void TracerThread::finish() {
  if (!shared_) return;
  const std::shared_ptr<Shared> shared = std::exchange(shared_, nullptr);
  bool busy = false;
  {
    const std::lock_guard lock(shared->mutex);
    shared->quit = true;
    busy = shared->busy;
    shared->changed.notify_all();
  }
  if (busy) {
    ::pthread_detach(thread_);
    return;
  }
  ::pthread_join(thread_, nullptr);
  // The join returns when the thread lets go of its memory, a moment before it lets go of its
  // tracees; once its id is gone it has done both.
  while (::syscall(SYS_tgkill, ::getpid(), shared->tid, 0) == 0) {
    const struct timespec pause = {0, kReleasePauseNs};
    ::nanosleep(&pause, nullptr);
  }
}

Result<Seized> seize(pid_t process, pid_t tid) {
  if (::ptrace(PTRACE_SEIZE, tid, nullptr, nullptr) != 0) {
    const int err = errno;
    if (err == ESRCH) return Seized::gone;
    const auto task = read_task_state(process, tid);
    if (task.ok() ? task->ended() : task.error().code == Code::not_found) return Seized::gone;
    return not_seized(process, tid, err);
  }
  // Fails only when the thread has been killed since, which the next wait tells.
  ::ptrace(PTRACE_INTERRUPT, tid, nullptr, nullptr);
  return Seized::yes;
}

int held_back_signal(int wait_status) {
  // PTRACE_EVENT_STOP carries SIGTRAP for an interrupt and the stopping signal for a group stop
  // (ptrace(2)): the first is nobody's signal and the second has already taken effect.
  const bool event = (wait_status >> 16) != 0;
  return WIFSTOPPED(wait_status) && !event ? WSTOPSIG(wait_status) : 0;
}

void poll_tracee(Tracee& tracee) {
  if (tracee.gone) return;
  int status = 0;
  const pid_t waited = ::waitpid(tracee.tid, &status, __WALL | WNOHANG);
  if (waited == 0 || (waited < 0 && errno == EINTR)) return;
  if (waited < 0 || !WIFSTOPPED(status)) {
    tracee.gone = true;
    return;
  }
  tracee.stopped = true;
  tracee.signal = held_back_signal(status);
}

Result<void> run_driver(Tracee& tracee) {
  std::uint64_t mask = 0;
  std::uint64_t all = ~std::uint64_t{0};
  const auto size = static_cast<long>(sizeof mask);  // of the kernel's signal set
  if (::ptrace(PTRACE_GETSIGMASK, tracee.tid, size, &mask) != 0 ||
      ::ptrace(PTRACE_SETSIGMASK, tracee.tid, size, &all) != 0) {
    return not_seized(tracee.process, tracee.tid, errno);
  }
  tracee.mask = mask;
  if (::ptrace(PTRACE_CONT, tracee.tid, nullptr,
               static_cast<long>(std::exchange(tracee.signal, 0))) != 0) {
    return not_seized(tracee.process, tracee.tid, errno);
  }
  tracee.stopped = false;
  return {};
}

void keep_running(Tracee& tracee) {
  // Looked at even if it could not be sent on before: it may have been killed at its stop.
  poll_tracee(tracee);
  if (tracee.gone || !tracee.stopped) return;
  int signal = std::exchange(tracee.signal, 0);
  // All signals are blocked: one of these is a fault of the thread's own. It ends the process,
  // unless that is the first of its pid namespace: the kernel lets no such signal end a traced one
  // (kernel/signal.c, SIGNAL_UNKILLABLE), which would fault again for ever, with the driver's
  // caller waiting for it.
  if (signal == SIGSEGV || signal == SIGBUS || signal == SIGILL || signal == SIGFPE) {
    if (std::exchange(tracee.faulted, true)) ::kill(tracee.process, SIGKILL);
  }
  if (signal == SIGSTOP) {
    tracee.stop_held_back = true;
    signal = 0;
  }
  if (::ptrace(PTRACE_CONT, tracee.tid, nullptr, static_cast<long>(signal)) == 0)
    tracee.stopped = false;
}

void interrupt(Tracee& tracee) {
  if (!tracee.stopped && !tracee.gone) ::ptrace(PTRACE_INTERRUPT, tracee.tid, nullptr, nullptr);
}

Result<void> restore_mask(Tracee& tracee) {
  if (!tracee.mask || tracee.gone) return {};
  if (::ptrace(PTRACE_SETSIGMASK, tracee.tid, static_cast<long>(sizeof *tracee.mask),
               &*tracee.mask) != 0) {
    if (errno == ESRCH) return {};  // killed meanwhile
    return not_seized(tracee.process, tracee.tid, errno);
  }
  tracee.mask.reset();
  return {};
}

void detach(Tracee& tracee) {
  poll_tracee(tracee);
  if (tracee.gone) return;
  if (tracee.stop_held_back) ::syscall(SYS_tgkill, tracee.process, tracee.tid, SIGSTOP);
  if (::ptrace(PTRACE_DETACH, tracee.tid, nullptr, static_cast<long>(tracee.signal)) == 0)
    tracee.gone = true;
}

}  // namespace icebox::container
