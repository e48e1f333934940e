// SPDX-License-Identifier: Apache-2.0
#include "shim/process/console.h"

#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>
#include <vector>

namespace icebox::shim {
namespace {

constexpr const char* kSocketName = "/pty.sock";

// A new private directory; short enough for a socket path, which $XDG_RUNTIME_DIR may not be.
Result<std::string> make_private_directory() {
  std::vector<std::string> parents;
  const char* runtime = ::getenv("XDG_RUNTIME_DIR");
  if (runtime != nullptr && *runtime != '\0') parents.emplace_back(runtime);
  parents.emplace_back("/tmp");
  Error error = make_error(Code::unknown, "no directory for the console socket");
  for (const std::string& parent : parents) {
    std::string path = parent + "/ptyXXXXXX";
    if (path.size() + std::strlen(kSocketName) >= sizeof(sockaddr_un::sun_path)) continue;
    if (::mkdtemp(path.data()) != nullptr) return path;
    error = errno_error("make a directory for the console socket in " + parent);
  }
  return error;
}

// Every fd that came with the message; all are owned, so that none leaks when there are too many.
std::vector<UniqueFd> received_fds(msghdr& message) {
  std::vector<UniqueFd> fds;
  for (cmsghdr* control = CMSG_FIRSTHDR(&message); control != nullptr;
       control = CMSG_NXTHDR(&message, control)) {
    if (control->cmsg_level != SOL_SOCKET || control->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t count = (control->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(control) + i * sizeof(int), sizeof(int));
      fds.emplace_back(fd);
    }
  }
  return fds;
}

}  // namespace

Result<std::unique_ptr<ConsoleSocket>> ConsoleSocket::open(EventLoop& loop, Handler on_master) {
  std::unique_ptr<ConsoleSocket> socket(new ConsoleSocket(loop, std::move(on_master)));
  ICEBOX_TRY(socket->listen());
  return socket;
}

ConsoleSocket::~ConsoleSocket() {
  if (directory_.empty()) return;
  ::unlink(path_.c_str());
  ::rmdir(directory_.c_str());
}

Result<void> ConsoleSocket::listen() {
  directory_ = ICEBOX_TRY(make_private_directory());
  path_ = directory_ + kSocketName;
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  path_.copy(address.sun_path, sizeof address.sun_path - 1);
  listener_.reset(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!listener_) return errno_error("console socket");
  if (::bind(listener_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 ||
      ::listen(listener_.get(), 1) != 0) {
    return errno_error("console socket " + path_);
  }
  listener_watch_ = ICEBOX_TRY(loop_->watch(listener_.get(), EPOLLIN, "console socket",
                                            [this](std::uint32_t) { accept(); }));
  return {};
}

void ConsoleSocket::accept() {
  UniqueFd peer(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!peer) {
    if (errno == EAGAIN || errno == EINTR || errno == ECONNABORTED) return;
    deliver(errno_error("console socket " + path_));
    return;
  }
  listener_watch_.reset();
  listener_.reset();
  peer_ = std::move(peer);
  auto watch =
      loop_->watch(peer_.get(), EPOLLIN, "console socket", [this](std::uint32_t) { receive(); });
  if (watch.ok()) {
    peer_watch_ = std::move(watch).value();
  } else {
    deliver(std::move(watch).error());
  }
}

void ConsoleSocket::receive() {
  constexpr std::size_t kMaxFds = 8;
  std::array<char, 4096> name;  // the name of the terminal, of no use here
  alignas(cmsghdr) std::array<char, CMSG_SPACE(kMaxFds * sizeof(int))> control;
  iovec payload = {name.data(), name.size()};
  msghdr message = {};
  message.msg_iov = &payload;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  const ssize_t n = ::recvmsg(peer_.get(), &message, MSG_CMSG_CLOEXEC);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (n < 0) {
    deliver(errno_error("console socket " + path_));
    return;
  }
  std::vector<UniqueFd> fds = received_fds(message);
  if (fds.size() != 1 || (message.msg_flags & MSG_CTRUNC) != 0) {
    deliver(make_error(Code::unknown, "the runtime sent " + std::to_string(fds.size()) +
                                          " file descriptors instead of one terminal"));
    return;
  }
  if (::isatty(fds[0].get()) != 1) {
    deliver(make_error(Code::unknown, "what the runtime sent is not a terminal"));
    return;
  }
  deliver(std::move(fds[0]));
}

void ConsoleSocket::deliver(Result<UniqueFd> master) {
  listener_watch_.reset();
  listener_.reset();
  peer_watch_.reset();
  peer_.reset();
  const Handler handler = std::move(on_master_);
  handler(std::move(master));  // may destroy this
}

Result<void> resize_console(int master, std::uint16_t columns, std::uint16_t rows) {
  winsize size = {};
  size.ws_col = columns;
  size.ws_row = rows;
  if (::ioctl(master, TIOCSWINSZ, &size) != 0) return errno_error("resize the terminal");
  return {};
}

}  // namespace icebox::shim
