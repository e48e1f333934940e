// SPDX-License-Identifier: Apache-2.0
#include "tests/samples/device.h"

#include <errno.h>  // program_invocation_short_name
#include <unistd.h>

#include <csignal>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>

namespace icebox::samples {

void check(cu::Result result, const char* what) {
  if (result == cu::Result::success) return;
  const char* name = nullptr;
  cu::cuGetErrorName(result, &name);
  std::fprintf(stderr, "%s: %s: %s (%d)\n", program_invocation_short_name, what,
               name != nullptr ? name : "unknown error", static_cast<int>(result));
  std::exit(2);
}

void end_on_signals() {
  struct sigaction action {};
  action.sa_handler = [](int signal) { ::_exit(128 + signal); };
  ::sigaction(SIGTERM, &action, nullptr);
  ::sigaction(SIGINT, &action, nullptr);
}

cu::Device open_device(int ordinal) {
  cu::Device device = 0;
  cu::Context context = nullptr;
  check(cu::cuInit(0), "cuInit");
  check(cu::cuDeviceGet(&device, ordinal), "cuDeviceGet");
  check(cu::cuDevicePrimaryCtxRetain(&context, device), "cuDevicePrimaryCtxRetain");
  check(cu::cuCtxSetCurrent(context), "cuCtxSetCurrent");
  return device;
}

std::string gpu_uuid(cu::Device device) {
  cu::Uuid uuid{};
  check(cu::cuDeviceGetUuid_v2(&uuid, device), "cuDeviceGetUuid");
  std::string text = "GPU-";
  for (int i = 0; i < 16; ++i) {
    char digits[3];
    std::snprintf(digits, sizeof digits, "%02x", uuid.bytes[i]);
    text += digits;
    if (i == 3 || i == 5 || i == 7 || i == 9) text += '-';
  }
  return text;
}

cu::DevicePtr allocate(std::size_t bytes) {
  cu::DevicePtr address = 0;
  check(cu::cuMemAlloc_v2(&address, bytes), "cuMemAlloc");
  return address;
}

void say(const char* format, ...) {
  char line[1024];
  va_list arguments;
  va_start(arguments, format);
  int size = std::vsnprintf(line, sizeof line - 1, format, arguments);
  va_end(arguments);
  if (size < 0) return;
  if (size > static_cast<int>(sizeof line) - 2) size = static_cast<int>(sizeof line) - 2;
  line[size++] = '\n';
  for (const char* at = line; size > 0;) {
    const ssize_t wrote = ::write(STDOUT_FILENO, at, static_cast<std::size_t>(size));
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0) return;  // nobody reads: not the sample's business
    at += wrote;
    size -= static_cast<int>(wrote);
  }
}

std::uint64_t number(const char* option, const char* text) {
  char* end = nullptr;
  errno = 0;
  const unsigned long long value = text == nullptr ? 0 : std::strtoull(text, &end, 10);
  if (text == nullptr || end == text || *end != '\0' || *text == '-' || errno != 0) {
    std::fprintf(stderr, "%s: %s needs a number, not '%s'\n", program_invocation_short_name, option,
                 text == nullptr ? "" : text);
    std::exit(2);
  }
  return value;
}

std::uint64_t now_ms() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<std::uint64_t>(now.tv_sec) * 1000 +
         static_cast<std::uint64_t>(now.tv_nsec) / 1'000'000;
}

void sleep_ms(std::uint64_t milliseconds) {
  // To an absolute time: CRIU turns an interrupted relative sleep into EINTR with nothing left.
  timespec until{};
  ::clock_gettime(CLOCK_MONOTONIC, &until);
  until.tv_sec += static_cast<time_t>(milliseconds / 1000);
  until.tv_nsec += static_cast<long>(milliseconds % 1000) * 1'000'000;
  if (until.tv_nsec >= 1'000'000'000) {
    ++until.tv_sec;
    until.tv_nsec -= 1'000'000'000;
  }
  while (::clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, nullptr) == EINTR) {
  }
}

}  // namespace icebox::samples
