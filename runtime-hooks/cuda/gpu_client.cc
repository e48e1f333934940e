// SPDX-License-Identifier: Apache-2.0
#include "runtime-hooks/cuda/gpu_client.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <optional>
#include <utility>
#include <variant>

#include "oci/base/log.h"
#include "oci/base/pid_ref.h"
#include "oci/base/strings.h"
#include "oci/base/subprocess.h"
#include "oci/base/unique_fd.h"
#include "runtime-hooks/cuda/protocol.h"

namespace icebox::cuda {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

// For restore_thread and unlock, which take microseconds where the target is not frozen; the
// first may be slow on a host under load.
constexpr milliseconds kQueryDeadline{20'000};
// For loading the libraries, cuInit (some 3 s with eight GPUs) and NVML.
constexpr milliseconds kDriverDeadline{60'000};
// What the way to the agent and back may take on top of its own limits.
constexpr milliseconds kTransportSlack{5'000};
// How long the agent may take to end once its socket is closed and nothing is under way.
constexpr milliseconds kEndTime{5'000};
constexpr milliseconds kProgressInterval{1'000};
constexpr std::size_t kStderrTail = 2048;

std::string describe(const protocol::Request& request) {
  std::string text(protocol::name_of(request));
  if (const auto* action = std::get_if<protocol::Action>(&request.what)) {
    text += " of " + std::to_string(action->targets.size()) +
            (action->targets.size() == 1 ? " process" : " processes");
  }
  return text;
}

// When to stop waiting for the answer. None for checkpoint and restore, which must not be cut
// short.
std::optional<milliseconds> answer_timeout(const protocol::Request& request) {
  const auto* action = std::get_if<protocol::Action>(&request.what);
  if (action == nullptr) return kDriverDeadline;
  if (!action->timeout_ms) return std::nullopt;
  return milliseconds(*action->timeout_ms) + protocol::kAnswerGrace + protocol::kStateGrace +
         kTransportSlack;
}

// What the protocol takes as a deadline.
std::uint32_t limited(milliseconds deadline) {
  return static_cast<std::uint32_t>(
      std::clamp<std::int64_t>(deadline.count(), 1, protocol::kMaxTimeoutMs));
}

}  // namespace

bool all_ok(const std::vector<Outcome>& outcomes) {
  return std::all_of(outcomes.begin(), outcomes.end(), [](const Outcome& o) { return o.ok(); });
}

std::string describe_failures(const std::vector<Outcome>& outcomes) {
  std::vector<std::string> messages;
  for (const Outcome& outcome : outcomes) {
    if (!outcome.ok()) messages.push_back(outcome.message);
  }
  return join(messages, "; ");
}

class GpuAgent::Impl {
 public:
  Impl(PidRef process, UniqueFd socket, UniqueFd errors)
      : process_(std::move(process)), socket_(std::move(socket)), errors_(std::move(errors)) {}
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;
  ~Impl();

  Result<protocol::Answer> call(decltype(protocol::Request::what) what, const Progress& progress,
                                std::optional<milliseconds> timeout_override = std::nullopt);
  Result<std::vector<Outcome>> act(protocol::Action action, const Progress& progress);
  Result<void> init();
  [[nodiscard]] pid_t pid() const { return process_.pid(); }
  [[nodiscard]] bool usable() const { return !broken_; }

 private:
  Result<std::string> exchange(const protocol::Request& request, const Progress& progress,
                               std::optional<milliseconds> timeout);
  Error lost(const protocol::Request& request, const Error& cause);
  std::string take_stderr();
  bool reap(milliseconds patience);

  PidRef process_;
  UniqueFd socket_;
  UniqueFd errors_;  // read end of the agent's stderr
  protocol::FrameDecoder decoder_;
  std::uint64_t last_id_ = 0;
  bool initialised_ = false;
  std::optional<Error> broken_;     // why no further request can be made
  bool in_driver_ = false;          // the driver may still hold a call about a process
  std::optional<int> wait_status_;  // once reaped
};

GpuAgent::Impl::~Impl() {
  socket_.reset();
  if (wait_status_) return;
  if (in_driver_) {
    // It undoes what it has to and ends by itself; waiting for that could take as long as the
    // target.
    if (!reap(milliseconds(0))) {
      log::warn("icebox-gpu stays until the driver gives its call back",
                {{"pid", std::to_string(process_.pid())}});
    }
    return;
  }
  if (reap(broken_ ? milliseconds(0) : kEndTime)) return;
  // Stuck in cuInit or NVML, or no agent at all: no process of a container depends on it.
  static_cast<void>(process_.signal(SIGKILL).ok());
  if (!reap(kEndTime)) {
    log::warn("icebox-gpu does not end", {{"pid", std::to_string(process_.pid())}});
  }
}

// True if the agent has ended within `patience`; it is no zombie then.
bool GpuAgent::Impl::reap(milliseconds patience) {
  if (wait_status_) return true;
  if (!process_.wait_end(patience)) return false;
  const auto status = wait_status(process_);
  wait_status_ = status.ok() ? *status : 0;
  return true;
}

std::string GpuAgent::Impl::take_stderr() {
  std::string text;
  std::array<char, 4096> buffer{};
  for (;;) {
    const ssize_t got = ::read(errors_.get(), buffer.data(), buffer.size());
    if (got <= 0) break;
    text.append(buffer.data(), static_cast<std::size_t>(got));
    if (text.size() > kStderrTail) text.erase(0, text.size() - kStderrTail);
  }
  return std::string(trim(text));
}

// The Error for an exchange that failed; from now on the agent is not used any more.
Error GpuAgent::Impl::lost(const protocol::Request& request, const Error& cause) {
  constexpr milliseconds kStatusPatience{1'000};
  std::string message = "icebox-gpu failed during " + describe(request) + ": ";
  if (cause.code == Code::deadline_exceeded) {
    message += cause.message;
  } else if (reap(kStatusPatience)) {
    message += WIFSIGNALED(*wait_status_)
                   ? "it was killed by signal " + std::to_string(WTERMSIG(*wait_status_))
                   : "it exited with status " + std::to_string(WEXITSTATUS(*wait_status_));
  } else {
    message += cause.message;
  }
  const std::string output = take_stderr();
  if (!output.empty()) message += ": " + output;
  Error error = make_error(cause.code == Code::deadline_exceeded ? cause.code : Code::unavailable,
                           std::move(message));
  broken_ = error;
  return error;
}

// One request and the payload of its answer.
Result<std::string> GpuAgent::Impl::exchange(const protocol::Request& request,
                                             const Progress& progress,
                                             std::optional<milliseconds> timeout) {
  const auto begin = Clock::now();
  const auto elapsed = [begin] {
    return std::chrono::duration_cast<milliseconds>(Clock::now() - begin);
  };
  ICEBOX_TRY(protocol::send_frame(socket_.get(), protocol::encode(request)));
  for (;;) {
    milliseconds slice = kProgressInterval;
    if (timeout) slice = std::clamp(*timeout - elapsed(), milliseconds(0), kProgressInterval);
    auto payload = protocol::receive_frame(socket_.get(), decoder_, slice);
    if (payload.ok()) {
      if (!payload->has_value()) return make_error(Code::unavailable, "it closed its socket");
      return std::move(**payload);
    }
    if (payload.error().code != Code::deadline_exceeded) return payload.error();
    if (timeout && elapsed() >= *timeout) {
      return make_error(Code::deadline_exceeded,
                        "it did not answer within " + std::to_string(elapsed().count()) + " ms");
    }
    if (progress && !progress(elapsed())) {
      return make_error(Code::deadline_exceeded,
                        "it was given up after " + std::to_string(elapsed().count()) + " ms");
    }
  }
}

Result<protocol::Answer> GpuAgent::Impl::call(decltype(protocol::Request::what) what,
                                              const Progress& progress,
                                              std::optional<milliseconds> timeout_override) {
  if (broken_) return broken_->context("the GPU agent was lost before");
  protocol::Request request;
  request.id = ++last_id_;
  request.what = std::move(what);
  const bool action = std::holds_alternative<protocol::Action>(request.what);
  // Set before the request is sent: however this ends, the driver may have begun.
  const bool was_in_driver = in_driver_;
  in_driver_ = in_driver_ || action;
  const auto timeout = timeout_override ? timeout_override : answer_timeout(request);
  const auto payload = exchange(request, progress, timeout);
  if (!payload.ok()) return lost(request, payload.error());
  auto response = protocol::decode_response(*payload, request);
  if (!response.ok()) {
    return lost(request, response.error().context("it broke the protocol"));
  }
  in_driver_ = was_in_driver;
  return std::move(response->answer);
}

Result<void> GpuAgent::Impl::init() {
  if (initialised_) return {};
  ICEBOX_TRY(call(protocol::Query::init, {}));
  initialised_ = true;
  return {};
}

Result<std::vector<Outcome>> GpuAgent::Impl::act(protocol::Action action,
                                                 const Progress& progress) {
  if (action.targets.empty()) return std::vector<Outcome>();
  // Apart, so that a host that cannot use its GPU is told so within a deadline, and before device
  // memory moves: what is taken off the GPU has to come back.
  if (!protocol::has_deadline(action.operation)) ICEBOX_TRY(init());
  auto answer = ICEBOX_TRY(call(std::move(action), progress));
  auto& outcomes = std::get<std::vector<Outcome>>(answer);
  for (const Outcome& outcome : outcomes) {
    if (outcome.ending == Ending::no_answer) in_driver_ = true;
  }
  return std::move(outcomes);
}

GpuAgent::GpuAgent(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
GpuAgent::GpuAgent(GpuAgent&&) noexcept = default;
GpuAgent& GpuAgent::operator=(GpuAgent&&) noexcept = default;
GpuAgent::~GpuAgent() = default;

Result<GpuAgent> GpuAgent::start(const Options& options) {
  std::array<int, 2> ends = {-1, -1};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0) {
    return errno_error("socketpair for icebox-gpu");
  }
  UniqueFd ours(ends[0]);
  UniqueFd theirs(ends[1]);
  // Not our own stderr: the agent may outlive us, and whoever waits for the end of that would hang.
  // Non-blocking at both ends: what does not fit is lost rather than waited for.
  if (::pipe2(ends.data(), O_CLOEXEC | O_NONBLOCK) != 0) return errno_error("pipe for icebox-gpu");
  UniqueFd errors(ends[0]);
  UniqueFd their_errors(ends[1]);

  Command command;
  command.argv = {options.agent_path, "--libcuda", options.libcuda, "--nvml", options.libnvidia_ml};
  if (!options.capabilities.empty()) {
    command.argv.insert(command.argv.end(), {"--caps", options.capabilities});
  }
  command.env = {"PATH=/usr/sbin:/usr/bin:/sbin:/bin"};
  command.cwd = "/";
  command.fds = {{theirs.get(), protocol::kAgentFd}, {their_errors.get(), STDERR_FILENO}};
  command.new_session = true;
  auto child = ICEBOX_TRY(spawn(command).context("cannot start the GPU agent"));
  auto impl = std::make_unique<Impl>(std::move(child.process), std::move(ours), std::move(errors));
  // Only the agent holds its ends now, so that its death is seen as an end of file.
  theirs.reset();
  their_errors.reset();
  ICEBOX_TRY(impl->call(protocol::Query::hello, {}, options.start_timeout));
  return GpuAgent(std::move(impl));
}

Result<DriverInfo> GpuAgent::info() {
  auto answer = ICEBOX_TRY(impl_->call(protocol::Query::info, {}));
  return std::get<DriverInfo>(std::move(answer));
}

Result<void> GpuAgent::init() { return impl_->init(); }

Result<std::vector<GpuProcess>> GpuAgent::processes() {
  auto answer = ICEBOX_TRY(impl_->call(protocol::Query::processes, {}));
  return std::get<std::vector<GpuProcess>>(std::move(answer));
}

Result<std::vector<Outcome>> GpuAgent::restore_threads(const std::vector<Target>& targets) {
  return impl_->act({Operation::restore_thread, targets, kQueryDeadline.count(), {}}, {});
}

Result<std::vector<Outcome>> GpuAgent::states(const std::vector<Target>& targets,
                                              milliseconds deadline) {
  return impl_->act({Operation::state, targets, limited(deadline), {}}, {});
}

Result<std::vector<Outcome>> GpuAgent::lock(const std::vector<Target>& targets,
                                            milliseconds deadline) {
  return impl_->act({Operation::lock, targets, limited(deadline), {}}, {});
}

Result<std::vector<Outcome>> GpuAgent::checkpoint(const std::vector<Target>& targets,
                                                  const Progress& progress) {
  return impl_->act({Operation::checkpoint, targets, std::nullopt, {}}, progress);
}

Result<std::vector<Outcome>> GpuAgent::restore(const std::vector<Target>& targets,
                                               const std::vector<GpuPair>& gpu_map,
                                               const Progress& progress) {
  return impl_->act({Operation::restore, targets, std::nullopt, gpu_map}, progress);
}

Result<std::vector<Outcome>> GpuAgent::unlock(const std::vector<Target>& targets) {
  return impl_->act({Operation::unlock, targets, kQueryDeadline.count(), {}}, {});
}

bool GpuAgent::usable() const { return impl_->usable(); }

pid_t GpuAgent::pid() const { return impl_->pid(); }

}  // namespace icebox::cuda
