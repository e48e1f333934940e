// SPDX-License-Identifier: Apache-2.0
#include "shim/task/managed_process.h"

#include <utility>

namespace icebox::shim {
namespace {

constexpr unsigned kUnknownExitStatus = 255;

}  // namespace

ManagedProcess::~ManagedProcess() {
  ExitInfo unknown;
  unknown.pid = pid_;
  unknown.status = kUnknownExitStatus;
  unknown.at = std::chrono::system_clock::now();
  for (const Waiter& waiter : waiters_) waiter(unknown);
}

bool ManagedProcess::apply(ProcessEvent event) {
  const std::optional<ProcessState> next = next_state(state_, event);
  if (!next) return false;
  state_ = *next;
  return true;
}

void ManagedProcess::finish(const ExitInfo& exit) {
  if (!apply(ProcessEvent::exited)) return;
  exit_ = exit;
  const std::vector<Waiter> waiters = std::exchange(waiters_, {});
  for (const Waiter& waiter : waiters) waiter(exit);
}

void ManagedProcess::wait(Waiter waiter) {
  if (exit_) {
    waiter(*exit_);
  } else {
    waiters_.push_back(std::move(waiter));
  }
}

void ManagedProcess::close_stdin() {
  stdin_closed_ = true;
  if (io) io->close_stdin();
}

void ManagedProcess::set_io(std::unique_ptr<ProcessIo> stdio) {
  io = std::move(stdio);
  if (stdin_closed_) io->close_stdin();
}

}  // namespace icebox::shim
