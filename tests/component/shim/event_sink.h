// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "oci/base/unique_fd.h"

namespace icebox::test {

struct ReceivedEvent {
  std::string topic;
  std::string ns;
  std::string type;
  std::string payload;
  std::int64_t seconds = 0;  // of the envelope's time stamp
};

// containerd's side of event publishing: a ttrpc server that takes Forward calls. It can vanish and
// come back, as containerd does when it restarts.
class EventSink {
 public:
  explicit EventSink(std::string path) : path_(std::move(path)) { start(); }
  ~EventSink() { stop(); }

  void start();
  // Closes the socket, every connection, and removes the path.
  void stop();

  std::vector<ReceivedEvent> events() const;
  // Topics in the order of arrival.
  std::vector<std::string> topics() const;
  // Waits until an event of `topic` arrived `count` times.
  bool wait_for(const std::string& topic, int count = 1,
                std::chrono::milliseconds limit = std::chrono::seconds(10)) const;

 private:
  void serve();
  bool read_from(int fd, std::string& buffer);

  std::string path_;
  UniqueFd listener_;
  UniqueFd stop_read_;
  UniqueFd stop_write_;
  std::thread thread_;
  mutable std::mutex mutex_;
  mutable std::condition_variable arrived_;
  std::vector<ReceivedEvent> events_;
};

}  // namespace icebox::test
