// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "oci/base/result.h"
#include "oci/base/unique_fd.h"
#include "shim/loop/event_loop.h"

namespace icebox::shim {

// The receiving side of an OCI runtime's --console-socket: a listening unix socket pty.sock in a
// private directory (pty* under $XDG_RUNTIME_DIR, else /tmp). The runtime connects and sends the
// master of the pseudo terminal as one SCM_RIGHTS fd. The directory goes away with the object.
class ConsoleSocket {
 public:
  using Handler = UniqueFunction<void(Result<UniqueFd> master)>;

  // `on_master` is called at most once, from the loop; with an Error when what arrives is not
  // exactly one fd.
  static Result<std::unique_ptr<ConsoleSocket>> open(EventLoop& loop, Handler on_master);
  ConsoleSocket(const ConsoleSocket&) = delete;
  ConsoleSocket& operator=(const ConsoleSocket&) = delete;
  ~ConsoleSocket();

  // What to pass to the runtime.
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  ConsoleSocket(EventLoop& loop, Handler on_master)
      : loop_(&loop), on_master_(std::move(on_master)) {}
  Result<void> listen();
  void accept();
  void receive();
  void deliver(Result<UniqueFd> master);

  EventLoop* loop_;
  Handler on_master_;
  std::string directory_;
  std::string path_;
  UniqueFd listener_;
  Watch listener_watch_;
  UniqueFd peer_;
  Watch peer_watch_;
};

// Window size of a pseudo terminal, in characters. Does not block.
Result<void> resize_console(int master, std::uint16_t columns, std::uint16_t rows);

}  // namespace icebox::shim
