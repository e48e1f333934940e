// SPDX-License-Identifier: Apache-2.0
#include "tests/component/shim/event_sink.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "containerd/events_service.pb.h"
#include "tests/component/shim/ttrpc_client.h"
#include "ttrpc/ttrpc.pb.h"

namespace icebox::test {

void EventSink::start() {
  ::unlink(path_.c_str());
  listener_ = UniqueFd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, path_.c_str(), sizeof address.sun_path - 1);
  if (::bind(listener_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 ||
      ::listen(listener_.get(), 16) != 0) {
    std::perror("event sink");
    std::abort();
  }
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) std::abort();
  stop_read_ = UniqueFd(ends[0]);
  stop_write_ = UniqueFd(ends[1]);
  thread_ = std::thread([this] { serve(); });
}

void EventSink::stop() {
  if (!thread_.joinable()) return;
  stop_write_.reset();
  thread_.join();
  listener_.reset();
  ::unlink(path_.c_str());
}

void EventSink::serve() {
  std::vector<std::pair<UniqueFd, std::string>> peers;
  for (;;) {
    std::vector<pollfd> ready{{stop_read_.get(), POLLIN, 0}, {listener_.get(), POLLIN, 0}};
    for (const auto& peer : peers) ready.push_back({peer.first.get(), POLLIN, 0});
    if (::poll(ready.data(), ready.size(), -1) < 0) continue;
    if (ready[0].revents != 0) return;
    for (std::size_t i = ready.size(); i-- > 2;) {
      auto& peer = peers[i - 2];
      if (ready[i].revents != 0 && !read_from(peer.first.get(), peer.second)) {
        peers.erase(peers.begin() + static_cast<std::ptrdiff_t>(i - 2));
      }
    }
    if (ready[1].revents != 0) {
      peers.emplace_back(UniqueFd(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC)), "");
    }
  }
}

bool EventSink::read_from(int fd, std::string& buffer) {
  char chunk[65536];
  const ssize_t size = ::read(fd, chunk, sizeof chunk);
  if (size <= 0) return false;
  buffer.append(chunk, static_cast<std::size_t>(size));
  std::uint32_t stream = 0;
  std::string data;
  while (take_frame(buffer, stream, data)) {
    ::ttrpc::Request request;
    containerd::services::events::ttrpc::v1::ForwardRequest forward;
    if (request.ParseFromString(data) && request.method() == "Forward" &&
        forward.ParseFromString(request.payload())) {
      const auto& envelope = forward.envelope();
      const std::lock_guard lock(mutex_);
      events_.push_back({envelope.topic(), envelope.namespace_(), envelope.event().type_url(),
                         envelope.event().value(), envelope.timestamp().seconds()});
      arrived_.notify_all();
    }
    const std::string frame = make_frame(stream, 2, "");
    if (::send(fd, frame.data(), frame.size(), MSG_NOSIGNAL) < 0) return false;
  }
  return true;
}

std::vector<ReceivedEvent> EventSink::events() const {
  const std::lock_guard lock(mutex_);
  return events_;
}

std::vector<std::string> EventSink::topics() const {
  std::vector<std::string> topics;
  for (const ReceivedEvent& event : events()) topics.push_back(event.topic);
  return topics;
}

bool EventSink::wait_for(const std::string& topic, int count,
                         std::chrono::milliseconds limit) const {
  std::unique_lock lock(mutex_);
  return arrived_.wait_for(lock, limit, [&] {
    return std::count_if(events_.begin(), events_.end(),
                         [&](const ReceivedEvent& event) { return event.topic == topic; }) >= count;
  });
}

}  // namespace icebox::test
