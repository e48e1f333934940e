// SPDX-License-Identifier: Apache-2.0
//
// What goes over the socketpair between the engine (gpu_client) and the GPU agent (icebox-gpu).
//
// A message is a frame: 4 bytes little-endian length, then that many bytes of JSON (UTF-8, one
// object). The engine sends requests, the agent answers each with one response, in order. Both
// sides validate everything they read: every field is required unless noted, unknown fields are
// refused (both programs are of one version), numbers have ranges, lists have limits. README.md has
// examples.
//
// Everything here is pure, except send_frame and receive_frame.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "oci/base/result.h"
#include "runtime-hooks/cuda/target.h"

namespace icebox::cuda::protocol {

/// Sent in every request; the agent refuses another one.
inline constexpr std::uint64_t kVersion = 1;
/// Longest payload of a frame, either way.
inline constexpr std::size_t kMaxPayload = 4U << 20;
inline constexpr std::size_t kMaxTargets = 1024;
inline constexpr std::size_t kMaxGpus = 256;
inline constexpr std::size_t kMaxGpuProcesses = 16384;
/// Longest time that a request may name: one hour.
inline constexpr std::uint32_t kMaxTimeoutMs = 3'600'000;
/// Longest message text of an outcome or error; longer ones are cut by the sender.
inline constexpr std::size_t kMaxText = 2048;

/// How long after its deadline a driver call may still answer before the agent takes it for hung,
/// and how long the state queries that follow an operation may take: both on top of a timeout_ms.
inline constexpr std::chrono::milliseconds kAnswerGrace{2'000};
inline constexpr std::chrono::milliseconds kStateGrace{2'000};

/// The agent listens on this descriptor.
inline constexpr int kAgentFd = 3;

/// A request without targets.
enum class Query { hello, info, init, processes };

/// A request that acts on targets. timeout_ms is the total for all of them and is present exactly
/// where a deadline exists: not for checkpoint and restore. gpu_map only with restore.
struct Action {
  Operation operation = Operation::state;
  std::vector<Target> targets;
  std::optional<std::uint32_t> timeout_ms;
  std::vector<GpuPair> gpu_map;
};

struct Request {
  std::uint64_t id = 0;
  std::variant<Query, Action> what;
};

/// True for the operations that have a deadline (and so a timeout_ms).
bool has_deadline(Operation operation);

/// Name of what is asked, as on the wire ("lock"), for messages.
std::string_view name_of(const Request& request);

/// `Empty` answers hello and init.
struct Empty {};
using Answer = std::variant<Empty, DriverInfo, std::vector<GpuProcess>, std::vector<Outcome>>;

struct Response {
  std::uint64_t id = 0;
  Result<Answer> answer;
};

/// The JSON object of a driver, as in the answer to Query::info.
std::string to_json(const DriverInfo& driver);

std::string encode(const Request& request);
std::string encode(const Response& response);

/// Checks and decodes a payload. The Error (invalid_argument) names the field.
Result<Request> decode_request(std::string_view payload);

/// Checks and decodes the payload of the answer to `request`: same id, the kind of answer that this
/// request has, and one outcome per target, in order.
Result<Response> decode_response(std::string_view payload, const Request& request);

/// Puts the length before a payload. Fails with resource_exhausted above kMaxPayload.
Result<std::string> frame(std::string_view payload);

/// Cuts a byte stream into payloads. After an Error the stream cannot be followed any more.
class FrameDecoder {
 public:
  /// Takes bytes as they come from the peer.
  void feed(std::string_view bytes);
  /// The next complete payload; nullopt if more bytes are needed; Error for an impossible length.
  Result<std::optional<std::string>> next();
  /// True if the stream ended in the middle of a frame.
  [[nodiscard]] bool mid_frame() const { return !buffer_.empty(); }

 private:
  std::string buffer_;
};

/// Frames and writes a payload to a socket. No SIGPIPE; blocks while the peer does not read.
Result<void> send_frame(int fd, std::string_view payload);

/// Reads one payload. nullopt = the peer closed the stream between frames. Error: deadline_exceeded
/// when `timeout` (no value = wait for ever) has passed, or a bad or cut frame. `decoder` keeps
/// what came beyond the frame.
Result<std::optional<std::string>> receive_frame(int fd, FrameDecoder& decoder,
                                                 std::optional<std::chrono::milliseconds> timeout);

}  // namespace icebox::cuda::protocol
