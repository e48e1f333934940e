// SPDX-License-Identifier: Apache-2.0
#include "runtime-hooks/cuda/agent.h"

#include <utility>
#include <variant>

#include "oci/base/log.h"

namespace icebox::cuda {

using protocol::Answer;

Result<DriverTable*> Agent::driver() {
  if (!driver_) driver_ = ICEBOX_TRY(DriverTable::load(libcuda_));
  return &*driver_;
}

Result<const NvmlTable*> Agent::nvml() {
  if (!nvml_) nvml_ = ICEBOX_TRY(NvmlTable::load(libnvidia_ml_));
  return &*nvml_;
}

Result<Answer> Agent::info() {
  const DriverTable* table = ICEBOX_TRY(driver());
  const NvmlTable* management = ICEBOX_TRY(nvml());
  DriverInfo info;
  info.driver_version = ICEBOX_TRY(management->driver_version());
  info.gpus = ICEBOX_TRY(management->gpus());
  info.cuda_version = table->version();
  info.has_checkpoint_api = table->checkpoint_api().ok();
  info.can_remap_gpus = info.has_checkpoint_api && table->can_remap_gpus();
  info.libcuda = table->path();
  return Answer(std::move(info));
}

Result<Answer> Agent::answer_query(protocol::Query query) {
  switch (query) {
    case protocol::Query::hello: break;
    case protocol::Query::info: return info();
    case protocol::Query::init: {
      DriverTable* table = ICEBOX_TRY(driver());
      ICEBOX_TRY(table->init());
      break;
    }
    case protocol::Query::processes: {
      const NvmlTable* management = ICEBOX_TRY(nvml());
      return Answer(ICEBOX_TRY(management->processes()));
    }
  }
  return Answer(protocol::Empty{});
}

Result<Answer> Agent::act(const protocol::Action& action) {
  DriverTable* table = ICEBOX_TRY(driver());
  const CheckpointApi api = ICEBOX_TRY(table->checkpoint_api());
  ICEBOX_TRY(table->init());
  if (!action.gpu_map.empty() && !table->can_remap_gpus()) {
    return make_error(
        Code::failed_precondition,
        "this host's NVIDIA driver cannot restore onto other GPUs: driver 580 or newer "
        "is needed");
  }
  if (!operations_) operations_.emplace(api);
  return Answer(operations_->run(action));
}

Result<Answer> Agent::handle(const protocol::Request& request) {
  if (const auto* action = std::get_if<protocol::Action>(&request.what)) return act(*action);
  return answer_query(std::get<protocol::Query>(request.what));
}

Result<void> Agent::serve(int fd) {
  protocol::FrameDecoder decoder;
  Result<void> ending;
  for (;;) {
    auto payload = protocol::receive_frame(fd, decoder, std::nullopt);
    if (payload.ok() && !payload->has_value()) break;
    Result<protocol::Request> request =
        payload.ok() ? protocol::decode_request(**payload) : std::move(payload).error();
    if (!request.ok()) {
      // The peer is no engine, or of another version: nothing that follows can be trusted.
      const Error error = request.error().context("icebox-gpu cannot read the request");
      ending = error;
      static_cast<void>(protocol::send_frame(fd, protocol::encode({0, error})).ok());
      break;
    }
    const protocol::Response response = {request->id, handle(*request)};
    // A peer that is gone does not read the answer; the next read sees its end of file.
    const auto sent = protocol::send_frame(fd, protocol::encode(response));
    if (!sent.ok()) log::warn("answer not delivered", {{"error", sent.error().message}});
  }
  if (operations_) operations_->wait_until_idle();
  return ending;
}

}  // namespace icebox::cuda
