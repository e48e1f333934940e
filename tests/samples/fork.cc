// SPDX-License-Identifier: Apache-2.0
//
// sample-fork: a CUDA process that forks without exec, so that its child holds the device's file
// descriptors but has no restore thread. Such a container cannot be checkpointed and must be
// refused by name, the child's. (PyTorch's DataLoader with fork is the well-known case.)
#include <errno.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstring>

#include "tests/samples/device.h"

int main() {
  using namespace icebox;
  samples::end_on_signals();
  samples::open_device(0);
  const cu::DevicePtr memory = samples::allocate(1 << 20);
  // The child inherits what the parent has open. Real drivers open their nodes close-on-exec, which
  // does not matter here: there is no exec.
  const pid_t child = ::fork();
  if (child < 0) {
    std::fprintf(stderr, "%s: fork: %s\n", program_invocation_short_name, std::strerror(errno));
    return 2;
  }
  if (child == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    ::prctl(PR_SET_NAME, "forked-child");
    for (;;) ::pause();
  }
  samples::say("ready pid=%d child=%d", static_cast<int>(::getpid()), static_cast<int>(child));
  for (unsigned long long beat = 1;; ++beat) {
    samples::check(cu::cuMemsetD8_v2(memory, static_cast<unsigned char>(beat), 1 << 20),
                   "cuMemsetD8");
    samples::say("beat %llu", beat);
    samples::sleep_ms(100);
  }
}
