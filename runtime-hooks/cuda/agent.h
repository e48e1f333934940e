// SPDX-License-Identifier: Apache-2.0
//
// What icebox-gpu does with a request: the driver session of one agent's life.
#pragma once

#include <optional>
#include <string>

#include "oci/base/result.h"
#include "runtime-hooks/cuda/driver_table.h"
#include "runtime-hooks/cuda/nvml_table.h"
#include "runtime-hooks/cuda/operations.h"
#include "runtime-hooks/cuda/protocol.h"

namespace icebox::cuda {

class Agent {
 public:
  Agent(std::string libcuda, std::string libnvidia_ml)
      : libcuda_(std::move(libcuda)), libnvidia_ml_(std::move(libnvidia_ml)) {}

  /// Carries one request out. Loads the libraries the first time they are needed; calls cuInit for
  /// Query::init, before a restore, and where the driver says that it needs it.
  /// Blocks as Operations::run does.
  Result<protocol::Answer> handle(const protocol::Request& request);

  /// Answers requests from `fd` until the peer closes it (success) or breaks the protocol (Error;
  /// it was told why). Then waits for driver calls that are still under way (Operations::pending).
  Result<void> serve(int fd);

 private:
  Result<DriverTable*> driver();
  Result<const NvmlTable*> nvml();
  void undo_unheard_lock(const protocol::Request& request, const protocol::Response& response);
  Result<protocol::Answer> answer_query(protocol::Query query);
  Result<protocol::Answer> info();
  Result<protocol::Answer> act(const protocol::Action& action);

  std::string libcuda_;
  std::string libnvidia_ml_;
  std::optional<DriverTable> driver_;
  std::optional<NvmlTable> nvml_;
  std::optional<Operations> operations_;
};

}  // namespace icebox::cuda
