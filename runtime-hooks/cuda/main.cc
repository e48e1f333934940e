// SPDX-License-Identifier: Apache-2.0
//
// icebox-gpu: the GPU agent. The only program of Icebox that loads NVIDIA's libraries.
//
//   icebox-gpu [--libcuda NAME] [--nvml NAME]            serve requests on descriptor 3
//   icebox-gpu --probe [--libcuda NAME] [--nvml NAME]    print driver and GPUs as JSON, or fail
#include <fcntl.h>
#include <getopt.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "oci/base/log.h"
#include "runtime-hooks/cuda/agent.h"
#include "runtime-hooks/cuda/confine.h"

namespace icebox::cuda {
namespace {

constexpr const char* kUsage =
    "usage: icebox-gpu [--probe] [--libcuda NAME] [--nvml NAME]\n"
    "\n"
    "Icebox's GPU agent. icebox-runc starts it with a socket as descriptor 3.\n"
    "\n"
    "  --probe           print the driver and the GPUs of this host as JSON and exit 0,\n"
    "                    or say why they cannot be used and exit 1\n"
    "  --libcuda NAME    the driver's library, name or path (default libcuda.so.1)\n"
    "  --nvml NAME       its management library (default libnvidia-ml.so.1)\n"
    "  --caps LIST       development: keep these capabilities instead of the built-in list\n";

struct Options {
  bool probe = false;
  std::string libcuda = "libcuda.so.1";
  std::string libnvidia_ml = "libnvidia-ml.so.1";
  std::vector<cap_value_t> capabilities;
};

Result<Options> parse_options(int argc, char** argv) {
  enum : int { probe_option = 256, libcuda_option, nvml_option, caps_option };
  constexpr option kLongOptions[] = {{"probe", no_argument, nullptr, probe_option},
                                     {"libcuda", required_argument, nullptr, libcuda_option},
                                     {"nvml", required_argument, nullptr, nvml_option},
                                     {"caps", required_argument, nullptr, caps_option},
                                     {nullptr, 0, nullptr, 0}};
  Options options;
  for (const KeptCapability& kept : kept_capabilities()) options.capabilities.push_back(kept.value);
  ::opterr = 0;
  for (;;) {
    const int choice = ::getopt_long(argc, argv, "", kLongOptions, nullptr);
    if (choice == -1) break;
    switch (choice) {
      case probe_option: options.probe = true; break;
      case libcuda_option: options.libcuda = ::optarg; break;
      case nvml_option: options.libnvidia_ml = ::optarg; break;
      case caps_option: options.capabilities = ICEBOX_TRY(parse_capabilities(::optarg)); break;
      default: return make_error(Code::invalid_argument, "unknown option");
    }
  }
  if (::optind != argc) return make_error(Code::invalid_argument, "unexpected argument");
  return options;
}

// The driver reads dozens of variables (CUDA_VISIBLE_DEVICES, CUDA_INJECTION64_PATH, ...), none of
// which the caller meant for the agent. icebox-runc passes none; this is for other callers.
void scrub_environment() {
  ::clearenv();
  ::setenv("PATH", "/usr/sbin:/usr/bin:/sbin:/bin", 1);
}

// Nothing but SIGKILL may end the agent inside a driver call: its target would stay locked or half
// copied. It ends when its socket is closed.
void ignore_signals() {
  for (const int signo : {SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGPIPE, SIGUSR1, SIGUSR2, SIGALRM}) {
    struct sigaction action = {};
    action.sa_handler = SIG_IGN;
    ::sigaction(signo, &action, nullptr);
  }
}

int probe(const Options& options) {
  Agent agent(options.libcuda, options.libnvidia_ml);
  // cuInit first: where it fails, its text says more than NVML's.
  const auto ready = agent.handle({1, protocol::Query::init});
  auto info = ready.ok() ? agent.handle({2, protocol::Query::info}) : ready.error();
  if (!info.ok()) {
    std::fprintf(stderr, "icebox-gpu: %s\n", info.error().message.c_str());
    return EXIT_FAILURE;
  }
  std::puts(protocol::to_json(std::get<DriverInfo>(*info)).c_str());
  return std::fflush(stdout) == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

int serve(const Options& options) {
  struct stat status = {};
  if (::fstat(protocol::kAgentFd, &status) != 0 || !S_ISSOCK(status.st_mode)) {
    std::fputs(
        "icebox-gpu: descriptor 3 is no socket: icebox-runc starts this program; try --probe\n",
        stderr);
    return 2;
  }
  ::fcntl(protocol::kAgentFd, F_SETFD, FD_CLOEXEC);
  ::setsid();  // fails for a session leader, which is as good
  ignore_signals();
  Agent agent(options.libcuda, options.libnvidia_ml);
  const auto served = agent.serve(protocol::kAgentFd);
  if (served.ok()) return EXIT_SUCCESS;
  log::error(served.error().message);
  return EXIT_FAILURE;
}

int run(int argc, char** argv) {
  const auto options = parse_options(argc, argv);
  if (!options.ok()) {
    std::fprintf(stderr, "icebox-gpu: %s\n%s", options.error().message.c_str(), kUsage);
    return 2;
  }
  scrub_environment();
  const auto confined = confine(options->capabilities);
  if (!confined.ok()) {
    std::fprintf(stderr, "icebox-gpu: %s\n", confined.error().message.c_str());
    return EXIT_FAILURE;
  }
  return options->probe ? probe(*options) : serve(*options);
}

}  // namespace
}  // namespace icebox::cuda

int main(int argc, char** argv) {
  // _exit: a driver call that was left behind still runs on its thread, and so do the driver's own.
  ::_exit(icebox::cuda::run(argc, argv));
}
