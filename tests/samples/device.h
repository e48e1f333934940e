// SPDX-License-Identifier: Apache-2.0
//
// What all samples do with the CUDA driver API. They link libcuda.so.1 by name only, so each runs
// on whichever it finds: the real driver or the simulated one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "tests/fakes/cuda/driver.h"

namespace icebox::samples {

/// Ends the program with exit status 2 and "PROGRAM: WHAT: ERROR NAME (CODE)" unless `result` is
/// success.
void check(cu::Result result, const char* what);

/// SIGTERM and SIGINT end the program with 128 + the signal, also as the first process of a
/// container, for which the kernel's default is to ignore them.
void end_on_signals();

/// Device `ordinal` with its primary context (the same call in every version of the API) current in
/// the calling thread. Failures end the program.
cu::Device open_device(int ordinal);

/// "GPU-..." of the device, asked from the driver now: a restore may have moved the process.
std::string gpu_uuid(cu::Device device);

/// `bytes` of device memory. Failure ends the program.
cu::DevicePtr allocate(std::size_t bytes);

/// Prints one line to standard output at once and whole (one write, so that processes sharing a
/// pipe do not mix their lines).
void say(const char* format, ...) __attribute__((format(printf, 1, 2)));

/// The value of a decimal option; ends the program with exit status 2 if `text` is no number.
std::uint64_t number(const char* option, const char* text);

/// Milliseconds of the monotonic clock.
std::uint64_t now_ms();

/// Sleeps; a signal or a stop in between does not shorten it.
void sleep_ms(std::uint64_t milliseconds);

}  // namespace icebox::samples
