// SPDX-License-Identifier: Apache-2.0
#include "shim/process/logger.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <optional>
#include <utility>

#include "oci/base/log.h"
#include "oci/base/subprocess.h"

namespace icebox::shim {
namespace {

// The times of containerd's own shim (pkg/process/io.go).
constexpr Duration kReadyTimeout = std::chrono::seconds(10);
constexpr Duration kTermGrace = std::chrono::seconds(12);

}  // namespace

struct Logger::State {
  EventLoop* loop = nullptr;
  Supervisor* supervisor = nullptr;
  StdioTarget target;
  pid_t pid = 0;
  UniqueFd ready_pipe;
  Watch ready_watch;
  Timer ready_timer;
  Timer kill_timer;
  std::optional<Result<void>> outcome;
  UniqueFunction<void(Result<void>)> on_ready;

  [[nodiscard]] Error failure(std::string_view what) const {
    return make_error(Code::unavailable, "logger " + target.path + " " + std::string(what));
  }

  // May destroy the owner of this state: the last thing a caller does.
  void settle(Result<void> result) {
    ready_watch.reset();
    ready_timer.reset();
    ready_pipe.reset();
    if (outcome) return;
    outcome = std::move(result);
    if (on_ready) std::exchange(on_ready, nullptr)(*outcome);
  }

  void read_ready() {
    char byte = 0;
    const ssize_t n = ::read(ready_pipe.get(), &byte, 1);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (n == 1 || target.kind == StdioTarget::Kind::binary) {
      settle({});
    } else {
      settle(failure("closed its ready pipe without a byte"));
    }
  }

  void exited(const ProcessExit& exit) {
    kill_timer.reset();
    log::debug("logger ended",
               {{"logger", target.path}, {"exit_code", std::to_string(exit.exit_code)}});
    // What it wrote before it ended still counts.
    if (!outcome && ready_pipe) read_ready();
    if (!outcome) settle(failure("ended before it was ready"));
  }
};

Result<std::unique_ptr<Logger>> Logger::start(EventLoop& loop, Supervisor& supervisor,
                                              Config config) {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) return errno_error("pipe");
  auto state = std::make_shared<State>();
  state->loop = &loop;
  state->supervisor = &supervisor;
  state->target = std::move(config.target);
  state->ready_pipe.reset(ends[0]);
  const UniqueFd write_end(ends[1]);
  if (::fcntl(ends[0], F_SETFL, O_NONBLOCK) != 0) return errno_error("fcntl");

  Command command;
  command.argv.push_back(state->target.path);
  for (const auto& [key, value] : state->target.parameters) {
    command.argv.push_back(key);
    command.argv.push_back(value);
  }
  command.env = {"CONTAINER_ID=" + config.process_id, "CONTAINER_NAMESPACE=" + config.name_space};
  command.fds = {{config.out.get(), 3}, {config.err.get(), 4}, {write_end.get(), 5}};
  command.new_session = true;

  State* raw = state.get();
  state->ready_watch = ICEBOX_TRY(
      loop.watch(ends[0], EPOLLIN, "logger", [raw](std::uint32_t) { raw->read_ready(); }));
  Child child = ICEBOX_TRY(spawn(command).context("logger"));
  const pid_t pid = child.process.pid();
  state->pid = pid;
  auto watched = supervisor.watch(std::move(child.process),
                                  [state](const ProcessExit& exit) { state->exited(exit); });
  if (!watched.ok()) {
    ::kill(pid, SIGKILL);  // ours and not reaped: still the same process
    return std::move(watched).error().context("logger " + state->target.path);
  }
  state->ready_timer = loop.after(kReadyTimeout, "logger ready", [raw] {
    raw->settle(raw->failure("did not say that it is ready within 10 s"));
  });
  return std::unique_ptr<Logger>(new Logger(std::move(state)));
}

Logger::~Logger() {
  State& state = *state_;
  state.on_ready = nullptr;
  state.settle({});
  Supervisor* supervisor = state.supervisor;
  const pid_t pid = state.pid;
  if (!supervisor->signal(pid, SIGTERM).ok()) return;  // it has ended
  state.kill_timer = state.loop->after(kTermGrace, "logger kill", [supervisor, pid] {
    static_cast<void>(supervisor->signal(pid, SIGKILL).ok());
  });
}

void Logger::when_ready(UniqueFunction<void(Result<void>)> ready) {
  state_->on_ready = std::move(ready);
  if (!state_->outcome) return;
  state_->loop->post("logger ready", [state = std::weak_ptr<State>(state_)] {
    const auto alive = state.lock();
    if (alive && alive->on_ready) std::exchange(alive->on_ready, nullptr)(*alive->outcome);
  });
}

}  // namespace icebox::shim
