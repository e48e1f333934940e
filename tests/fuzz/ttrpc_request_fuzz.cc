// SPDX-License-Identifier: Apache-2.0
// A real server with all methods of Task v2 gets the input as what a client sends: whatever it is,
// the server stays up, keeps its memory safe, and what it answers are responses on streams that the
// client used.
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "containerd/task_v2.pb.h"
#include "google/protobuf/empty.pb.h"
#include "oci/base/log.h"
#include "oci/base/unique_fd.h"
#include "shim/loop/event_loop.h"
#include "shim/ttrpc/frame.h"
#include "shim/ttrpc/server.h"
#include "shim/ttrpc/typed.h"
#include "ttrpc/ttrpc.pb.h"

namespace {

using icebox::UniqueFd;
using icebox::shim::Duration;
using icebox::shim::EventLoop;
namespace rpc = icebox::shim::ttrpc;
namespace task = containerd::task::v2;
using Empty = google::protobuf::Empty;

void require(bool condition) {
  if (!condition) std::abort();
}

// Answers with an empty response, later, or never, depending on the id, so that all ways of a Reply
// are taken.
template <typename Request, typename Response>
void add(EventLoop& loop, rpc::Server& server, const char* method) {
  rpc::add_unary<Request, Response>(
      server, "containerd.task.v2.Task", method,
      [&loop](const rpc::CallContext& context, const Request& request,
              rpc::TypedReply<Response> reply) {
        context.on_cancel([](const icebox::Error&) {});
        switch (request.id().size() % 3) {
          case 0: std::move(reply).send(Response()); break;
          case 1:
            loop.post("late", [late = std::move(reply), id = request.id()]() mutable {
              std::move(late).fail(icebox::make_error(icebox::Code::not_found, id));
            });
            break;
          default: break;
        }
      });
}

class Target {
 public:
  Target() : loop_(std::move(EventLoop::create()).value()) {
    icebox::log::set_sink(-1, icebox::log::Format::text);
    // An abstract address of the kernel's choice (autobind, unix(7)): nothing to clean up.
    UniqueFd listener(::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    address_.sun_family = AF_UNIX;
    require(::bind(listener.get(), generic(), sizeof address_.sun_family) == 0);
    require(::listen(listener.get(), 8) == 0);
    size_ = sizeof address_;
    require(::getsockname(listener.get(), reinterpret_cast<sockaddr*>(&address_), &size_) == 0);
    server_ = std::move(rpc::Server::start(loop_, std::move(listener), {})).value();
    add<task::StateRequest, task::StateResponse>(loop_, *server_, "State");
    add<task::CreateTaskRequest, task::CreateTaskResponse>(loop_, *server_, "Create");
    add<task::StartRequest, task::StartResponse>(loop_, *server_, "Start");
    add<task::DeleteRequest, task::DeleteResponse>(loop_, *server_, "Delete");
    add<task::PidsRequest, task::PidsResponse>(loop_, *server_, "Pids");
    add<task::PauseRequest, Empty>(loop_, *server_, "Pause");
    add<task::ResumeRequest, Empty>(loop_, *server_, "Resume");
    add<task::CheckpointTaskRequest, Empty>(loop_, *server_, "Checkpoint");
    add<task::KillRequest, Empty>(loop_, *server_, "Kill");
    add<task::ExecProcessRequest, Empty>(loop_, *server_, "Exec");
    add<task::ResizePtyRequest, Empty>(loop_, *server_, "ResizePty");
    add<task::CloseIORequest, Empty>(loop_, *server_, "CloseIO");
    add<task::UpdateTaskRequest, Empty>(loop_, *server_, "Update");
    add<task::WaitRequest, task::WaitResponse>(loop_, *server_, "Wait");
    add<task::StatsRequest, task::StatsResponse>(loop_, *server_, "Stats");
    add<task::ConnectRequest, task::ConnectResponse>(loop_, *server_, "Connect");
    add<task::ShutdownRequest, Empty>(loop_, *server_, "Shutdown");
  }

  void run(std::string_view input) {
    UniqueFd client(::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    require(::connect(client.get(), generic(), size_) == 0);
    while (server_->connections() == 0) turn();
    while (!input.empty()) {
      const ssize_t n = ::send(client.get(), input.data(), input.size(), MSG_NOSIGNAL);
      if (n > 0) input.remove_prefix(static_cast<std::size_t>(n));
      require(n > 0 || errno == EAGAIN);
      turn();
      read_answers(client);
    }
    require(::shutdown(client.get(), SHUT_WR) == 0);
    while (server_->connections() > 0) {
      turn();
      read_answers(client);
    }
    read_answers(client);
    require(server_->calls() == 0);
  }

 private:
  [[nodiscard]] const sockaddr* generic() const {
    return reinterpret_cast<const sockaddr*>(&address_);
  }

  void turn() { require(loop_.turn(Duration::zero()).ok()); }

  void read_answers(const UniqueFd& client) {
    rpc::FrameDecoder decoder(
        {[](const rpc::FrameHeader& header, std::string_view data) {
           require(header.type == 2 && header.flags == 0);
           ttrpc::Response response;
           require(response.ParseFromArray(data.data(), static_cast<int>(data.size())));
           require(!response.has_status() || response.payload().empty());
         },
         [](const rpc::FrameHeader&) { std::abort(); }});
    std::string buffer(65536, '\0');
    for (;;) {
      const ssize_t n = ::read(client.get(), buffer.data(), buffer.size());
      if (n <= 0) break;
      decoder.feed(std::string_view(buffer).substr(0, static_cast<std::size_t>(n)));
    }
  }

  EventLoop loop_;
  sockaddr_un address_ = {};
  socklen_t size_ = 0;
  std::unique_ptr<rpc::Server> server_;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static Target
      target;  // one server for all inputs: state that leaks from one to the next is a finding, too
  target.run(std::string_view(reinterpret_cast<const char*>(data), size));
  return 0;
}
