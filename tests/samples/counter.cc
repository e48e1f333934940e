// SPDX-License-Identifier: Apache-2.0
//
// sample-counter: a counter and a random token that live only in device memory, asked over UDP.
// Equal tokens before and after a restore prove that device memory came back: a process that merely
// started again would have another one.
#include <arpa/inet.h>
#include <errno.h>  // program_invocation_short_name
#include <netinet/in.h>
#include <poll.h>
#include <strings.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>

#include "tests/samples/device.h"

namespace {

using namespace icebox;
using samples::check;

constexpr char kUsage[] =
    "usage: sample-counter [--bind ADDRESS] [--port PORT] [--device N] [--mib N]\n"
    "       sample-counter --stdin [--device N] [--mib N]\n"
    "       sample-counter --ask HOST:PORT N [--get] [--timeout-ms T] [--interval-ms I]\n"
    "\n"
    "Serves UDP (default 127.0.0.1:9999): 'inc' counts and answers, 'get' answers. With --stdin\n"
    "requests are lines of standard input. --mib holds more device memory than it needs.\n"
    "--ask sends N requests and prints the answers; one without an answer is sent again every "
    "second\n"
    "until the timeout (10000 ms for each) and counts once. Exit status 1 if one stays without.\n";

/// What device memory holds.
struct Record {
  std::uint64_t counter;
  unsigned char token[16];
};

struct Arguments {
  const char* address = "127.0.0.1";
  std::uint16_t port = 9999;
  int device = 0;
  std::uint64_t extra_mib = 0;
  bool from_stdin = false;
  const char* ask = nullptr;  // HOST:PORT
  std::uint64_t requests = 0;
  bool only_get = false;
  std::uint64_t timeout_ms = 10000;
  std::uint64_t interval_ms = 0;
};

[[noreturn]] void fail(const char* what) {
  std::fprintf(stderr, "%s: %s: %s\n", program_invocation_short_name, what, std::strerror(errno));
  std::exit(1);
}

class Counter {
 public:
  explicit Counter(const Arguments& arguments)
      : device_(samples::open_device(arguments.device)),
        record_(samples::allocate(sizeof(Record))) {
    Record start{};
    if (::getrandom(start.token, sizeof start.token, 0) != sizeof start.token) fail("getrandom");
    check(cu::cuMemcpyHtoD_v2(record_, &start, sizeof start), "cuMemcpyHtoD");
    ::explicit_bzero(&start, sizeof start);
    if (arguments.extra_mib > 0) {
      const std::size_t bytes = arguments.extra_mib << 20;
      check(cu::cuMemsetD8_v2(samples::allocate(bytes), 0x5a, bytes), "cuMemsetD8");
    }
  }

  /// The answer to one request. Between requests the host has no copy of counter or token.
  std::string answer(std::string_view request) const {
    if (request != "inc" && request != "get") return "error: say inc or get";
    Record now{};
    check(cu::cuMemcpyDtoH_v2(&now, record_, sizeof now), "cuMemcpyDtoH");
    if (request == "inc") {
      ++now.counter;
      check(cu::cuMemcpyHtoD_v2(record_, &now.counter, sizeof now.counter), "cuMemcpyHtoD");
    }
    char token[33];
    for (int i = 0; i < 16; ++i) std::snprintf(token + 2 * i, 3, "%02x", now.token[i]);
    char text[256];
    std::snprintf(text, sizeof text, "counter=%llu token=%s pid=%d gpu=%s",
                  static_cast<unsigned long long>(now.counter), token, static_cast<int>(::getpid()),
                  samples::gpu_uuid(device_).c_str());
    std::string result = text;
    ::explicit_bzero(&now, sizeof now);
    ::explicit_bzero(token, sizeof token);
    ::explicit_bzero(text, sizeof text);
    return result;
  }

 private:
  cu::Device device_;
  cu::DevicePtr record_;
};

sockaddr_in ipv4(const char* address, std::uint16_t port) {
  sockaddr_in result{};
  result.sin_family = AF_INET;
  result.sin_port = htons(port);
  if (std::strcmp(address, "localhost") == 0) address = "127.0.0.1";
  if (::inet_pton(AF_INET, address, &result.sin_addr) != 1) {
    std::fprintf(stderr, "%s: '%s' is no IPv4 address\n", program_invocation_short_name, address);
    std::exit(2);
  }
  return result;
}

int udp_socket() {
  const int fd = ::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0) fail("socket");
  return fd;
}

[[noreturn]] void serve_udp(const Arguments& arguments) {
  Counter counter(arguments);
  const int fd = udp_socket();
  sockaddr_in self = ipv4(arguments.address, arguments.port);
  if (::bind(fd, reinterpret_cast<sockaddr*>(&self), sizeof self) != 0) fail("bind");
  socklen_t size = sizeof self;
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&self), &size) != 0) fail("getsockname");
  samples::say("ready port=%d pid=%d", ntohs(self.sin_port), static_cast<int>(::getpid()));
  std::string last_id;
  for (;;) {
    char request[512];
    sockaddr_in client{};
    socklen_t client_size = sizeof client;
    const ssize_t got = ::recvfrom(fd, request, sizeof request, 0,
                                   reinterpret_cast<sockaddr*>(&client), &client_size);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail("recvfrom");
    // "VERB ID": the id comes back in the answer, so that a client can tell a late one, and a
    // request that was sent again counts once.
    const std::string_view text(request, static_cast<std::size_t>(got));
    const auto space = std::min(text.find(' '), text.size());
    const std::string_view id = text.substr(space);
    const bool again = !id.empty() && id == last_id;
    std::string answer = counter.answer(again ? "get" : text.substr(0, space));
    last_id = id;
    answer += id;
    ::sendto(fd, answer.data(), answer.size(), 0, reinterpret_cast<sockaddr*>(&client),
             client_size);
  }
}

int serve_stdin(const Arguments& arguments) {
  Counter counter(arguments);
  samples::say("ready pid=%d", static_cast<int>(::getpid()));
  char line[512];
  while (std::fgets(line, sizeof line, stdin) != nullptr) {
    line[std::strcspn(line, "\n")] = '\0';
    samples::say("%s", counter.answer(line).c_str());
  }
  return 0;
}

/// Sends `verb` and waits for its answer; sends again after a second without one. False: none came
/// in time.
bool ask_once(int fd, const char* verb, std::uint64_t id, std::uint64_t timeout_ms) {
  constexpr std::uint64_t kResendMs = 1000;
  constexpr std::uint64_t kRefusedMs = 50;
  const std::string suffix = " " + std::to_string(id);
  const std::string request = verb + suffix;
  const std::uint64_t deadline = samples::now_ms() + timeout_ms;
  std::uint64_t next_send = 0;
  for (std::uint64_t now; (now = samples::now_ms()) < deadline;) {
    if (now >= next_send) {
      (void)!::send(fd, request.data(), request.size(), 0);  // fails while nobody listens
      next_send = now + kResendMs;
    }
    pollfd ready{fd, POLLIN, 0};
    const std::uint64_t wait = std::min(next_send, deadline) - now;
    if (::poll(&ready, 1, static_cast<int>(wait)) <= 0) continue;
    char answer[512];
    const ssize_t got = ::recv(fd, answer, sizeof answer, 0);
    if (got < 0) {
      next_send = samples::now_ms() + kRefusedMs;
      continue;
    }
    const std::string_view text(answer, static_cast<std::size_t>(got));
    if (!text.ends_with(suffix)) continue;  // the answer to an earlier request
    samples::say("%.*s", static_cast<int>(text.size() - suffix.size()), text.data());
    return true;
  }
  return false;
}

int ask(const Arguments& arguments) {
  const std::string target = arguments.ask;
  const auto colon = target.rfind(':');
  if (colon == std::string::npos) {
    std::fputs(kUsage, stderr);
    return 2;
  }
  const auto port = samples::number("HOST:PORT", target.c_str() + colon + 1);
  const sockaddr_in server =
      ipv4(target.substr(0, colon).c_str(), static_cast<std::uint16_t>(port));
  const int fd = udp_socket();
  if (::connect(fd, reinterpret_cast<const sockaddr*>(&server), sizeof server) != 0)
    fail("connect");
  for (std::uint64_t i = 0; i < arguments.requests; ++i) {
    // Unlike any id that another client chose, so that a restored server's late answers are told.
    std::uint32_t salt = 0;
    (void)!::getrandom(&salt, sizeof salt, 0);
    if (!ask_once(fd, arguments.only_get ? "get" : "inc", (i << 32) | salt, arguments.timeout_ms)) {
      std::fprintf(stderr, "%s: no answer from %s\n", program_invocation_short_name, arguments.ask);
      return 1;
    }
    if (i + 1 < arguments.requests) samples::sleep_ms(arguments.interval_ms);
  }
  return 0;
}

Arguments parse(int argc, char** argv) {
  Arguments arguments;
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    const char* next = i + 1 < argc ? argv[i + 1] : nullptr;
    const auto value = [&] {
      ++i;
      return samples::number(argv[i - 1], next);
    };
    if (word == "--bind" && next != nullptr) {
      arguments.address = argv[++i];
    } else if (word == "--port") {
      arguments.port = static_cast<std::uint16_t>(value());
    } else if (word == "--device") {
      arguments.device = static_cast<int>(value());
    } else if (word == "--mib") {
      arguments.extra_mib = value();
    } else if (word == "--stdin") {
      arguments.from_stdin = true;
    } else if (word == "--get") {
      arguments.only_get = true;
    } else if (word == "--timeout-ms") {
      arguments.timeout_ms = value();
    } else if (word == "--interval-ms") {
      arguments.interval_ms = value();
    } else if (word == "--ask" && i + 2 < argc) {
      arguments.ask = argv[i + 1];
      arguments.requests = samples::number("--ask", argv[i + 2]);
      i += 2;
    } else {
      std::fputs(kUsage, stderr);
      std::exit(2);
    }
  }
  return arguments;
}

}  // namespace

int main(int argc, char** argv) {
  samples::end_on_signals();
  const Arguments arguments = parse(argc, argv);
  if (arguments.ask != nullptr) return ask(arguments);
  if (arguments.from_stdin) return serve_stdin(arguments);
  serve_udp(arguments);
}
