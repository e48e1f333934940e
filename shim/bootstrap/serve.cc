// SPDX-License-Identifier: Apache-2.0
#include "shim/bootstrap/serve.h"

#include <fcntl.h>
#include <malloc.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>

#include "oci/base/file.h"
#include "oci/base/log.h"
#include "oci/base/unique_fd.h"
#include "shim/bootstrap/start.h"
#include "shim/loop/event_loop.h"
#include "shim/loop/signals.h"
#include "shim/process/supervisor.h"
#include "shim/process/tool.h"
#include "shim/runtime/engine.h"
#include "shim/task/environment.h"
#include "shim/task/publisher.h"
#include "shim/task/task_service.h"
#include "shim/ttrpc/server.h"

namespace icebox::shim {
namespace {

constexpr int kSocketFd = 3;
constexpr std::chrono::seconds kFlushTimeout{3};
constexpr std::chrono::seconds kDrainTimeout{1};

// Logs go to the bundle's FIFO, which containerd reads. Opened for reading too, so that a
// containerd that is down neither fails the open nor ends us with EPIPE; a full pipe drops lines.
void open_log(bool debug) {
  log::set_level(debug ? log::Level::debug : log::Level::info);
  Result<UniqueFd> fifo = open_file("log", O_RDWR | O_NONBLOCK);
  // fd 2, so that what the C library says when it aborts arrives as well.
  if (fifo.ok()) ::dup3(fifo->get(), STDERR_FILENO, O_CLOEXEC);
  log::set_sink(STDERR_FILENO, log::Format::text);
}

Result<UniqueFd> listener(const Args& args) {
  if (!args.socket.empty()) {
    GroupSocket group = ICEBOX_TRY(claim_socket(args.socket));
    if (!group.listener) {
      return make_error(Code::already_exists, "another daemon serves " + args.socket);
    }
    return std::move(group.listener);
  }
  if (::fcntl(kSocketFd, F_SETFD, FD_CLOEXEC) != 0) {
    return errno_error("no listening socket on fd 3 (the daemon is started by the start action)");
  }
  return UniqueFd(kSocketFd);
}

// The path a listening unix socket is bound to.
std::string bound_path(const UniqueFd& socket) {
  sockaddr_un address{};
  socklen_t size = sizeof address;
  if (::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address), &size) != 0 ||
      size <= offsetof(sockaddr_un, sun_path)) {
    return "";
  }
  return address.sun_path;
}

// Everything that lives as long as the daemon, in the order in which it depends on what is above.
class Daemon {
 public:
  Daemon(EventLoop& loop, const Args& args, std::string engine, std::string events)
      : loop_(loop),
        supervisor_(loop),
        tools_(loop, supervisor_),
        publisher_(loop, args.ns, std::move(events)),
        environment_{loop, supervisor_, tools_, publisher_, args.ns, std::move(engine), 0, {}},
        service_(environment_, [this] { stop(); }) {
    environment_.launches_ended = [this] { reap_strays(); };
  }

  Result<void> run(UniqueFd socket) {
    socket_path_ = bound_path(socket);
    SignalWatch signals = ICEBOX_TRY(SignalWatch::create(loop_, {SIGTERM, SIGINT, SIGCHLD},
                                                         [this](int signo) { on_signal(signo); }));
    server_ = ICEBOX_TRY(ttrpc::Server::start(loop_, std::move(socket), {}));
    service_.register_methods(*server_);
    return loop_.run();
  }

 private:
  void on_signal(int signo) {
    if (signo == SIGCHLD) {
      // The loop reaps whom it knows by pidfd; this is for orphans of the containers.
      loop_.post("stray children", [this] { reap_strays(); });
      return;
    }
    log::info("ending on a signal", {{"signal", std::to_string(signo)},
                                     {"containers", std::to_string(service_.count())}});
    stop();
  }

  void reap_strays() {
    if (environment_.launches > 0) return;
    if (const Result<std::size_t> reaped = supervisor_.reap_strays(); !reaped.ok()) {
      log::warn("cannot reap orphans", {{"reason", reaped.error().message}});
    }
  }

  // The socket goes first: a start that comes now must begin a daemon of its own. Then what is
  // queued for containerd and its clients is delivered.
  void stop() {
    if (std::exchange(stopping_, true)) return;
    if (!socket_path_.empty()) ::unlink(socket_path_.c_str());
    publisher_.flush(kFlushTimeout,
                     [this] { server_->drain(kDrainTimeout, [this] { loop_.stop(); }); });
  }

  EventLoop& loop_;
  Supervisor supervisor_;
  ToolRunner tools_;
  Publisher publisher_;
  TaskEnvironment environment_;
  TaskService service_;
  std::unique_ptr<ttrpc::Server> server_;
  std::string socket_path_;
  bool stopping_ = false;
};

}  // namespace

Result<void> serve(const Args& args) {
  open_log(args.debug);
  ignore_sigpipe();
  // A daemon that idles for days gives freed memory back instead of keeping it for a next peak.
  ::mallopt(M_TRIM_THRESHOLD, 64 * 1024);
  ::mallopt(M_MMAP_THRESHOLD, 64 * 1024);
  ICEBOX_TRY(Supervisor::become_subreaper());
  UniqueFd socket = ICEBOX_TRY(listener(args));
  std::string engine = ICEBOX_TRY(find_engine().context("cannot find the engine"));
  const char* events = ::getenv("TTRPC_ADDRESS");
  EventLoop loop = ICEBOX_TRY(EventLoop::create());
  Daemon daemon(loop, args, std::move(engine), events == nullptr ? "" : events);
  return daemon.run(std::move(socket));
}

}  // namespace icebox::shim
