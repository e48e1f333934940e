// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "containerd/task_v2.pb.h"
#include "oci/base/subprocess.h"
#include "tests/component/shim/event_sink.h"
#include "tests/component/shim/ttrpc_client.h"

namespace icebox::test {

using std::chrono::milliseconds;
using std::chrono::seconds;

inline constexpr const char* kTaskV2 = "containerd.task.v2.Task";
inline constexpr const char* kNamespace = "component";

// An answer with its message decoded.
template <typename Response>
struct Typed {
  int code = 0;
  std::string message;
  Response body;
};

// The part of containerd in these tests: bundles, the start and delete actions, an event sink, a
// client. At the end of each test every daemon that it started must be gone by itself or is killed.
class ShimTest : public ::testing::Test {
 protected:
  void SetUp() override;
  void TearDown() override;

  // --- bundles ---
  // Writes a bundle whose init runs `args`; annotations as "key":"value" pairs of JSON, joined.
  std::string make_bundle(const std::string& id, const std::vector<std::string>& args,
                          const std::string& annotations = "");
  [[nodiscard]] std::string bundle(const std::string& id) const;
  // Path in this test's own directory.
  [[nodiscard]] std::string path(const std::string& name) const { return directory_ + "/" + name; }

  // --- the shim's command line ---
  Output shim(const std::string& id, const std::vector<std::string>& action,
              const std::string& input = "");
  // Runs `start` in the bundle, checks its answer, returns the socket's path.
  std::string start_daemon(const std::string& id);
  // Runs `delete` and returns its decoded answer.
  containerd::task::v2::DeleteResponse run_delete(const std::string& id);
  // Process id of the daemon behind a socket.
  pid_t daemon_pid(TtrpcClient& client);
  // Waits for a daemon to end; true if with exit status 0.
  static bool ended_well(pid_t daemon);

  // --- the fake engine ---
  // Scripts a command of the fake (tests/fakes/runc).
  void script(const std::string& command, const std::string& steps) const;
  void unscript(const std::string& command) const;
  // The engine's calls so far that begin with `command` behind the global options.
  [[nodiscard]] std::vector<std::string> calls(const std::string& command) const;

  // --- calls ---
  template <typename Response, typename Request>
  static Typed<Response> call(TtrpcClient& client, const std::string& method,
                              const Request& request, milliseconds limit = seconds(10)) {
    const std::uint32_t stream = client.send(kTaskV2, method, request.SerializeAsString());
    return typed<Response>(client.receive(stream, limit));
  }
  template <typename Response>
  static Typed<Response> typed(Answer answer) {
    Typed<Response> result;
    result.code = answer.code;
    result.message = std::move(answer.message);
    if (!result.body.ParseFromString(answer.payload)) result.code = -1;
    return result;
  }
  // The usual ones. They fail the test when the call does; use call() where it may.
  containerd::task::v2::CreateTaskRequest create_request(const std::string& id) const;
  pid_t create(TtrpcClient& client, const std::string& id);
  pid_t start(TtrpcClient& client, const std::string& id, const std::string& exec_id = "");
  containerd::task::v2::StateResponse state(TtrpcClient& client, const std::string& id,
                                            const std::string& exec_id = "");
  void exec(TtrpcClient& client, const std::string& id, const std::string& exec_id,
            const std::vector<std::string>& args);
  int kill(TtrpcClient& client, const std::string& id, int signo, const std::string& exec_id = "");
  containerd::task::v2::WaitResponse wait(TtrpcClient& client, const std::string& id,
                                          const std::string& exec_id = "");
  Typed<containerd::task::v2::DeleteResponse> remove(TtrpcClient& client, const std::string& id,
                                                     const std::string& exec_id = "");
  int shutdown(TtrpcClient& client);
  // Kill, wait, delete, shutdown, and the daemon's end.
  void finish(TtrpcClient& client, const std::string& id);

  static bool wait_until(const std::function<bool()>& condition, milliseconds limit = seconds(10));
  static bool file_exists(const std::string& path);
  static std::string read(const std::string& path);

  std::string directory_;
  std::unique_ptr<EventSink> sink_;
  std::vector<pid_t> daemons_;
};

}  // namespace icebox::test
