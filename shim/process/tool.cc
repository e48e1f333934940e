// SPDX-License-Identifier: Apache-2.0
#include "shim/process/tool.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <utility>
#include <vector>

#include "oci/base/file.h"
#include "oci/base/strings.h"

namespace icebox::shim {
namespace {

constexpr std::size_t kReadsPerTurn = 64 * 1024;
constexpr std::size_t kPipeLimit = 1024 * 1024 + 8192;  // no pipe of ours holds more

// Bounded copy of one output stream.
struct Capture {
  UniqueFd fd;
  Watch watch;  // after the fd: removed before it is closed
};

bool maps(const Command& command, int fd) {
  return std::any_of(command.fds.begin(), command.fds.end(),
                     [fd](const auto& mapping) { return mapping.second == fd; });
}

}  // namespace

Result<UniqueFd> memory_file(std::string_view content) {
  UniqueFd fd(::memfd_create("icebox-stdin", MFD_CLOEXEC));
  if (!fd) return errno_error("memfd_create");
  ICEBOX_TRY(write_all(fd.get(), content));
  if (::lseek(fd.get(), 0, SEEK_SET) != 0) return errno_error("rewind memory file");
  return fd;
}

struct ToolRunner::Tool {
  Done done;
  std::string label;  // program and sub-command, for messages
  bool kill_group = false;
  std::size_t max_output = 0;
  std::size_t max_error_tail = 0;
  std::chrono::milliseconds deadline{};
  std::chrono::milliseconds term_grace{};
  bool term_sent = false;
  bool timed_out = false;
  ToolResult result;
  Timer timer;
  Capture out;
  Capture err;

  void keep_out(std::string_view data) {
    const std::size_t room = max_output - result.out.size();
    result.out.append(data.substr(0, room));
    if (data.size() > room) result.out_cut = true;
  }

  void keep_err(std::string_view data) {
    result.error_tail.append(data);
    if (result.error_tail.size() > max_error_tail) {
      result.error_tail.erase(0, result.error_tail.size() - max_error_tail);
    }
  }

  // Reads what is there, up to `budget` bytes; closes the stream at its end.
  void read_from(Capture& capture, std::size_t budget) {
    std::array<char, 8192> buffer;
    while (capture.fd && budget >= buffer.size()) {
      const ssize_t n = ::read(capture.fd.get(), buffer.data(), buffer.size());
      if (n < 0 && errno == EINTR) continue;
      if (n < 0 && errno == EAGAIN) return;
      if (n <= 0) {
        capture.watch.reset();
        capture.fd.reset();
        return;
      }
      budget -= static_cast<std::size_t>(n);
      const std::string_view data(buffer.data(), static_cast<std::size_t>(n));
      if (&capture == &out) {
        keep_out(data);
      } else {
        keep_err(data);
      }
    }
  }

  [[nodiscard]] Error deadline_error() const {
    std::string text =
        label + " did not end within " + std::to_string(deadline.count()) + " ms and was killed";
    const std::string_view tail = trim(result.error_tail);
    if (!tail.empty()) text += ": " + std::string(tail);
    return make_error(Code::deadline_exceeded, std::move(text));
  }
};

ToolRunner::ToolRunner(EventLoop& loop, Supervisor& supervisor)
    : loop_(&loop), supervisor_(&supervisor) {}

ToolRunner::~ToolRunner() {
  for (const auto& [id, tool] : tools_) supervisor_->forget(tool->result.pid);
}

ToolRunner::Id ToolRunner::start(ToolRequest request, Done done) {
  const Id id = next_id_++;
  auto launched = launch(id, request);
  if (launched.ok()) {
    (*launched)->done = std::move(done);
    tools_.emplace(id, std::move(launched).value());
  } else {
    loop_->post("tool failed to start",
                [done = std::move(done), error = std::move(launched).error()]() { done(error); });
  }
  return id;
}

Result<std::unique_ptr<ToolRunner::Tool>> ToolRunner::launch(Id id, ToolRequest& request) {
  auto tool = std::make_unique<Tool>();
  Command& command = request.command;
  tool->label = command.argv.empty() ? std::string() : command.argv[0];
  tool->kill_group = request.kill_group;
  tool->max_output = request.max_output;
  tool->max_error_tail = request.max_error_tail;
  tool->term_grace = request.term_grace;

  UniqueFd input;
  if (request.input && !maps(command, 0)) {
    input = ICEBOX_TRY(memory_file(*request.input));
    command.fds.emplace_back(input.get(), 0);
  }
  std::array<UniqueFd, 2> child_ends;
  for (const int fd : {1, 2}) {
    if (maps(command, fd) || command.inherit_stdio) continue;
    std::array<int, 2> ends{};
    if (::pipe2(ends.data(), O_CLOEXEC) != 0) return errno_error("pipe");
    Capture& capture = fd == 1 ? tool->out : tool->err;
    capture.fd.reset(ends[0]);
    UniqueFd& child_end = child_ends.at(static_cast<std::size_t>(fd - 1));
    child_end.reset(ends[1]);
    if (::fcntl(ends[0], F_SETFL, O_NONBLOCK) != 0) return errno_error("fcntl");
    command.fds.emplace_back(child_end.get(), fd);
    Tool* raw = tool.get();
    capture.watch =
        ICEBOX_TRY(loop_->watch(ends[0], EPOLLIN, "tool output", [raw, &capture](std::uint32_t) {
          raw->read_from(capture, kReadsPerTurn);
        }));
  }
  Child child = ICEBOX_TRY(spawn(command));
  const pid_t pid = child.process.pid();
  tool->result.pid = pid;
  auto watched = supervisor_->watch(std::move(child.process),
                                    [this, id](const ProcessExit& exit) { on_exit(id, exit); });
  if (!watched.ok()) {
    ::kill(pid, SIGKILL);  // ours and not reaped: still the same process
    return std::move(watched).error().context(tool->label);
  }
  if (request.deadline) {
    tool->deadline = *request.deadline;
    tool->timer = loop_->after(*request.deadline, "tool deadline", [this, id] { on_deadline(id); });
  }
  return tool;
}

Result<void> ToolRunner::signal(Id id, int signo) const {
  const auto it = tools_.find(id);
  if (it == tools_.end()) return make_error(Code::not_found, "the program has ended");
  return supervisor_->signal(it->second->result.pid, signo);
}

void ToolRunner::on_deadline(Id id) {
  const auto it = tools_.find(id);
  if (it == tools_.end()) return;
  Tool& tool = *it->second;
  tool.timed_out = true;
  const bool gently = tool.term_grace.count() > 0 && !tool.term_sent;
  const int signo = gently ? SIGTERM : SIGKILL;
  if (tool.kill_group) {
    // The leader is not reaped yet, so its process group id cannot belong to anybody else.
    ::kill(-tool.result.pid, signo);
  } else {
    static_cast<void>(supervisor_->signal(tool.result.pid, signo).ok());
  }
  if (!gently) return;
  tool.term_sent = true;
  tool.timer = loop_->after(tool.term_grace, "tool deadline", [this, id] { on_deadline(id); });
}

void ToolRunner::on_exit(Id id, const ProcessExit& exit) {
  auto node = tools_.extract(id);
  if (node.empty()) return;
  Tool& tool = *node.mapped();
  // What the program itself wrote is in the pipes by now; a descendant that holds them open is not
  // waited for.
  tool.read_from(tool.out, kPipeLimit);
  tool.read_from(tool.err, kPipeLimit);
  tool.result.wait_status = exit.wait_status;
  tool.result.exit_code = exit.exit_code;
  Done done = std::move(tool.done);
  // A program that succeeded in the very moment has succeeded; one that obeyed SIGTERM has not.
  if (tool.timed_out && (tool.term_sent || exit.wait_status != 0)) {
    done(tool.deadline_error());
  } else {
    done(std::move(tool.result));
  }
}

}  // namespace icebox::shim
