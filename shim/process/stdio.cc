// SPDX-License-Identifier: Apache-2.0
#include "shim/process/stdio.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <limits>
#include <optional>

#include "oci/base/file.h"
#include "oci/base/log.h"
#include "shim/process/console.h"
#include "shim/process/logger.h"
#include "shim/process/stream.h"

namespace icebox::shim {
namespace {

struct Pipe {
  UniqueFd read;
  UniqueFd write;
};

Result<Pipe> make_pipe() {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) return errno_error("pipe");
  return Pipe{UniqueFd(ends[0]), UniqueFd(ends[1])};
}

Result<mode_t> type_of(const std::string& path) {
  struct stat info = {};
  if (::stat(path.c_str(), &info) != 0) return errno_error("stdio " + path);
  return info.st_mode & S_IFMT;
}

// A client's output FIFO, both ends in one fd: without a reader of our own, a client that leaves
// would turn the container's next write into EPIPE, and with O_WRONLY the open would wait for the
// client. fifo(7) allows O_RDWR.
Result<UniqueFd> open_output_path(const std::string& path) {
  const mode_t type = ICEBOX_TRY(type_of(path));
  if (type == S_IFIFO) return open_file(path, O_RDWR | O_NONBLOCK);
  return open_file(path, O_WRONLY | O_APPEND | O_NONBLOCK | O_NOCTTY);
}

Result<UniqueFd> open_log_file(const std::string& path) {
  const std::string parent = path.substr(0, path.rfind('/'));
  if (!parent.empty()) ICEBOX_TRY(make_directories(parent, 0755));
  return open_file(path, O_WRONLY | O_CREAT | O_APPEND, 0644);
}

struct InputFifo {
  UniqueFd read;
  UniqueFd held;  // a writer of our own, so that a client that leaves is not the end of the input
};

Result<InputFifo> open_input(const std::string& path) {
  if (ICEBOX_TRY(type_of(path)) != S_IFIFO) {
    return make_error(Code::invalid_argument, "stdin " + path + " is not a FIFO");
  }
  InputFifo fifo;
  fifo.read = ICEBOX_TRY(open_file(path, O_RDONLY | O_NONBLOCK));
  fifo.held = ICEBOX_TRY(open_file(path, O_WRONLY | O_NONBLOCK));
  return fifo;
}

Result<UniqueFd> duplicate(const UniqueFd& fd) {
  UniqueFd copy(::fcntl(fd.get(), F_DUPFD_CLOEXEC, 0));
  if (!copy) return errno_error("dup");
  return copy;
}

using Outcome = UniqueFunction<void(Result<void>)>;

}  // namespace

struct ProcessIo::State : std::enable_shared_from_this<ProcessIo::State> {
  EventLoop* loop = nullptr;
  Supervisor* supervisor = nullptr;
  StdioSpec spec;

  UniqueFd null;                         // /dev/null, for the streams that go nowhere
  std::array<UniqueFd, 3> process_ends;  // what the process gets as 0, 1, 2
  std::unique_ptr<Logger> logger;
  std::unique_ptr<ConsoleSocket> console;
  UniqueFd master;
  // Client ends of a terminal until its master arrives.
  InputFifo terminal_in;
  UniqueFd terminal_out;
  std::optional<Result<void>> console_outcome;
  Outcome on_console;
  Timer console_timer;
  bool exited = false;

  std::unique_ptr<Stream> in;
  std::array<std::unique_ptr<Stream>, 2> outputs;  // stdout, stderr
  UniqueFunction<void()> on_drained;
  Timer drain_timer;

  Result<void> open();
  Result<void> open_terminal(const StdioTarget& target);
  Result<void> open_input_pipe();
  Result<void> open_output_pipe(std::size_t index, Result<UniqueFd> client);
  Result<void> start_logger(const StdioTarget& target, UniqueFd out, UniqueFd err);
  Result<void> give(std::size_t index, UniqueFd end);
  Result<std::unique_ptr<Stream>> start_output(const char* name, UniqueFd source, UniqueFd sink);
  Result<void> start_input(UniqueFd source, UniqueFd held, UniqueFd sink);
  void console_arrived(Result<UniqueFd> result);
  Result<void> connect_terminal(UniqueFd arrived);
  void settle_console(Result<void> result);
  [[nodiscard]] bool drained() const;
  void check_drained();
  void close_outputs();
};

Result<void> ProcessIo::State::open() {
  null = ICEBOX_TRY(open_file("/dev/null", O_RDWR));
  const StdioTarget out = ICEBOX_TRY(parse_stdio(spec.out));
  if (spec.terminal) return open_terminal(out);
  switch (out.kind) {
    case StdioTarget::Kind::binary:
    case StdioTarget::Kind::binary_v2: {
      Pipe out_pipe = ICEBOX_TRY(make_pipe());
      Pipe err_pipe = ICEBOX_TRY(make_pipe());
      ICEBOX_TRY(give(1, std::move(out_pipe.write)));
      ICEBOX_TRY(give(2, std::move(err_pipe.write)));
      return start_logger(out, std::move(out_pipe.read), std::move(err_pipe.read));
    }
    case StdioTarget::Kind::file:
      ICEBOX_TRY(open_input_pipe());
      ICEBOX_TRY(open_output_pipe(0, open_log_file(out.path)));
      return open_output_pipe(1, open_log_file(out.path));
    case StdioTarget::Kind::null:
    case StdioTarget::Kind::path: break;
  }
  ICEBOX_TRY(open_input_pipe());
  if (out.kind == StdioTarget::Kind::path) {
    ICEBOX_TRY(open_output_pipe(0, open_output_path(out.path)));
  }
  const StdioTarget err = ICEBOX_TRY(parse_stdio(spec.err));
  switch (err.kind) {
    case StdioTarget::Kind::null: return {};
    case StdioTarget::Kind::path: return open_output_pipe(1, open_output_path(err.path));
    case StdioTarget::Kind::file: return open_output_pipe(1, open_log_file(err.path));
    default:
      return make_error(Code::invalid_argument,
                        "stderr " + spec.err + " needs a stdout of the same scheme");
  }
}

Result<void> ProcessIo::State::open_terminal(const StdioTarget& target) {
  switch (target.kind) {
    case StdioTarget::Kind::null:
      // Read and dropped: a terminal that nobody reads blocks its writers.
      terminal_out = ICEBOX_TRY(open_file("/dev/null", O_WRONLY));
      break;
    case StdioTarget::Kind::path: terminal_out = ICEBOX_TRY(open_output_path(target.path)); break;
    case StdioTarget::Kind::file: terminal_out = ICEBOX_TRY(open_log_file(target.path)); break;
    case StdioTarget::Kind::binary:
    case StdioTarget::Kind::binary_v2: {
      Pipe out_pipe = ICEBOX_TRY(make_pipe());
      Pipe err_pipe =
          ICEBOX_TRY(make_pipe());  // its write end closes here: a terminal has no stderr
      terminal_out = std::move(out_pipe.write);
      ICEBOX_TRY(start_logger(target, std::move(out_pipe.read), std::move(err_pipe.read)));
      break;
    }
  }
  const StdioTarget in_target = ICEBOX_TRY(parse_stdio(spec.in));
  if (in_target.kind == StdioTarget::Kind::path) {
    terminal_in = ICEBOX_TRY(open_input(in_target.path));
  }
  const std::weak_ptr<State> weak = weak_from_this();
  console = ICEBOX_TRY(ConsoleSocket::open(*loop, [weak](Result<UniqueFd> arrived) {
    if (const auto state = weak.lock()) state->console_arrived(std::move(arrived));
  }));
  return {};
}

Result<void> ProcessIo::State::open_input_pipe() {
  const StdioTarget target = ICEBOX_TRY(parse_stdio(spec.in));
  if (target.kind != StdioTarget::Kind::path) return {};
  InputFifo fifo = ICEBOX_TRY(open_input(target.path));
  Pipe pipe = ICEBOX_TRY(make_pipe());
  ICEBOX_TRY(give(0, std::move(pipe.read)));
  return start_input(std::move(fifo.read), std::move(fifo.held), std::move(pipe.write));
}

Result<void> ProcessIo::State::open_output_pipe(std::size_t index, Result<UniqueFd> client) {
  UniqueFd sink = ICEBOX_TRY(std::move(client));
  Pipe pipe = ICEBOX_TRY(make_pipe());
  ICEBOX_TRY(give(index + 1, std::move(pipe.write)));
  outputs.at(index) = ICEBOX_TRY(
      start_output(index == 0 ? "stdout" : "stderr", std::move(pipe.read), std::move(sink)));
  return {};
}

Result<void> ProcessIo::State::start_logger(const StdioTarget& target, UniqueFd out, UniqueFd err) {
  Logger::Config config;
  config.target = target;
  config.process_id = spec.process_id;
  config.name_space = spec.name_space;
  config.out = std::move(out);
  config.err = std::move(err);
  logger = ICEBOX_TRY(Logger::start(*loop, *supervisor, std::move(config)));
  return {};
}

Result<void> ProcessIo::State::give(std::size_t index, UniqueFd end) {
  if (spec.owner && ::fchown(end.get(), spec.owner->first, spec.owner->second) != 0) {
    return errno_error("give a stdio pipe to uid " + std::to_string(spec.owner->first));
  }
  process_ends.at(index) = std::move(end);
  return {};
}

Result<std::unique_ptr<Stream>> ProcessIo::State::start_output(const char* name, UniqueFd source,
                                                               UniqueFd sink) {
  Stream::Config config;
  config.name = name;
  config.source = std::move(source);
  config.sink = std::move(sink);
  config.on_sink_failure = Stream::SinkFailure::discard;
  config.on_end = [weak = weak_from_this()] {
    if (const auto state = weak.lock()) state->check_drained();
  };
  return Stream::start(*loop, std::move(config));
}

Result<void> ProcessIo::State::start_input(UniqueFd source, UniqueFd held, UniqueFd sink) {
  Stream::Config config;
  config.name = "stdin";
  config.source = std::move(source);
  config.held = std::move(held);
  config.sink = std::move(sink);
  in = ICEBOX_TRY(Stream::start(*loop, std::move(config)));
  return {};
}

void ProcessIo::State::console_arrived(Result<UniqueFd> result) {
  console.reset();  // its directory must not outlive its use
  if (!result.ok()) {
    settle_console(std::move(result).error());
    return;
  }
  settle_console(connect_terminal(std::move(result).value()));
}

Result<void> ProcessIo::State::connect_terminal(UniqueFd arrived) {
  if (exited) return {};
  master = std::move(arrived);
  // Each stream owns a duplicate, so that every descriptor has one owner.
  if (terminal_out) {
    UniqueFd source = ICEBOX_TRY(duplicate(master));
    outputs[0] =
        ICEBOX_TRY(start_output("terminal output", std::move(source), std::move(terminal_out)));
  }
  if (terminal_in.read) {
    UniqueFd sink = ICEBOX_TRY(duplicate(master));
    ICEBOX_TRY(
        start_input(std::move(terminal_in.read), std::move(terminal_in.held), std::move(sink)));
  }
  return {};
}

void ProcessIo::State::settle_console(Result<void> result) {
  console_timer.reset();
  if (!console_outcome) console_outcome = std::move(result);
  if (on_console) std::exchange(on_console, nullptr)(*console_outcome);
}

bool ProcessIo::State::drained() const {
  const bool running = std::any_of(outputs.begin(), outputs.end(), [](const auto& stream) {
    return stream != nullptr && !stream->ended();
  });
  return !running && !terminal_out;
}

void ProcessIo::State::check_drained() {
  if (!drained() || !on_drained) return;
  drain_timer.reset();
  std::exchange(on_drained, nullptr)();
}

void ProcessIo::State::close_outputs() {
  terminal_out.reset();
  for (auto& stream : outputs) {
    if (stream != nullptr) stream->close();
  }
}

ProcessIo::ProcessIo(std::shared_ptr<State> state) : state_(std::move(state)) {}

Result<std::unique_ptr<ProcessIo>> ProcessIo::open(EventLoop& loop, Supervisor& supervisor,
                                                   StdioSpec spec) {
  auto state = std::make_shared<State>();
  state->loop = &loop;
  state->supervisor = &supervisor;
  state->spec = std::move(spec);
  ICEBOX_TRY(state->open());
  return std::unique_ptr<ProcessIo>(new ProcessIo(std::move(state)));
}

ProcessIo::~ProcessIo() {
  // A callback that destroys its ProcessIo holds the state a moment longer: nothing may happen in
  // it any more.
  State& state = *state_;
  state.on_drained = nullptr;
  state.on_console = nullptr;
  state.drain_timer.reset();
  state.console_timer.reset();
  state.console.reset();
  if (state.in != nullptr) state.in->close();
  state.close_outputs();
  state.logger.reset();
}

void ProcessIo::when_ready(UniqueFunction<void(Result<void>)> ready) {
  if (state_->logger != nullptr) {
    state_->logger->when_ready(std::move(ready));
    return;
  }
  state_->loop->post("stdio ready",
                     [weak = std::weak_ptr<State>(state_), ready = std::move(ready)] {
                       if (!weak.expired()) ready(Result<void>());
                     });
}

void ProcessIo::attach(Command& command) const {
  if (state_->spec.terminal) return;
  for (int fd = 0; fd <= 2; ++fd) {
    const UniqueFd& end = state_->process_ends.at(static_cast<std::size_t>(fd));
    command.fds.emplace_back(end ? end.get() : state_->null.get(), fd);
  }
}

std::optional<std::string> ProcessIo::console_socket() const {
  if (state_->console == nullptr) return std::nullopt;
  return state_->console->path();
}

void ProcessIo::runtime_started() {
  for (UniqueFd& end : state_->process_ends) end.reset();
  state_->null.reset();
}

void ProcessIo::when_console(Duration timeout, UniqueFunction<void(Result<void>)> done) {
  State& state = *state_;
  if (!state.spec.terminal) state.console_outcome = Result<void>();
  state.on_console = std::move(done);
  const std::weak_ptr<State> weak = state_;
  const Duration wait = state.console_outcome ? Duration::zero() : timeout;
  state.console_timer = state.loop->after(wait, "console", [weak] {
    if (const auto alive = weak.lock()) {
      alive->settle_console(make_error(
          Code::deadline_exceeded, "the runtime sent no terminal for " + alive->spec.process_id));
    }
  });
}

Result<void> ProcessIo::resize(std::uint32_t columns, std::uint32_t rows) const {
  if (!state_->master) return {};
  constexpr std::uint32_t kMax = std::numeric_limits<std::uint16_t>::max();
  return resize_console(state_->master.get(), static_cast<std::uint16_t>(std::min(columns, kMax)),
                        static_cast<std::uint16_t>(std::min(rows, kMax)));
}

void ProcessIo::close_stdin() {
  state_->terminal_in.held.reset();
  if (state_->in != nullptr) state_->in->release_held();
}

void ProcessIo::process_exited() {
  State& state = *state_;
  state.exited = true;
  runtime_started();
  if (state.in != nullptr) state.in->close();
  state.terminal_in = {};
  state.console.reset();
  if (!state.spec.terminal) return;
  state.terminal_out.reset();  // no master ever came
  state.master.reset();
  if (state.outputs[0] != nullptr) state.outputs[0]->finish();
  if (state.drained()) {
    state.loop->post("stdio drained", [weak = std::weak_ptr<State>(state_)] {
      if (const auto alive = weak.lock()) alive->check_drained();
    });
  }
}

void ProcessIo::drain(Duration timeout, UniqueFunction<void()> done) {
  State& state = *state_;
  state.on_drained = std::move(done);
  const std::weak_ptr<State> weak = state_;
  const Duration wait = state.drained() ? Duration::zero() : timeout;
  state.drain_timer = state.loop->after(wait, "stdio drain", [weak] {
    const auto alive = weak.lock();
    if (!alive) return;
    if (!alive->drained()) {
      log::warn("output was not taken in time and is dropped", {{"id", alive->spec.process_id}});
    }
    alive->close_outputs();
    alive->check_drained();
  });
}

bool ProcessIo::drained() const { return state_->drained(); }

}  // namespace icebox::shim
