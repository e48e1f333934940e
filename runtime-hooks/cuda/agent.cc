// SPDX-License-Identifier: Apache-2.0
#include "runtime-hooks/cuda/agent.h"

#include <algorithm>
#include <chrono>
#include <utility>
#include <variant>

#include "oci/base/log.h"

namespace icebox::cuda {

using protocol::Answer;

namespace {

bool is_not_initialised(const Outcome& outcome) {
  return outcome.ending == Ending::driver_error && outcome.code == driver::kErrorNotInitialized;
}

}  // namespace

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
  if (!action.gpu_map.empty() && !table->can_remap_gpus()) {
    return make_error(
        Code::failed_precondition,
        "this host's NVIDIA driver cannot restore onto other GPUs: driver 580 or newer "
        "is needed");
  }
  // Restore needs a cuInit of the caller where persistence mode is off (cuda.h). Driver 580 needs
  // none for the rest, and it takes seconds on a host with many GPUs: too long for a pause.
  if (action.operation == Operation::restore) ICEBOX_TRY(table->init());
  if (!operations_) operations_.emplace(api);
  const auto begin = std::chrono::steady_clock::now();
  std::vector<Outcome> outcomes = operations_->run(action);
  if (table->initialised()) return Answer(std::move(outcomes));
  // NOT_INITIALIZED is about the target ("no CUDA process"), unless it is about this caller: after
  // a cuInit there is no doubt.
  protocol::Action again = action;
  again.targets.clear();
  for (const Outcome& outcome : outcomes) {
    if (is_not_initialised(outcome)) again.targets.push_back(outcome.target);
  }
  if (again.targets.empty()) return Answer(std::move(outcomes));
  ICEBOX_TRY(table->init());
  if (action.timeout_ms) {
    const auto spent = std::chrono::duration_cast<std::chrono::milliseconds>(
        std::chrono::steady_clock::now() - begin);
    again.timeout_ms = static_cast<std::uint32_t>(
        std::max<std::int64_t>(1, std::int64_t{*action.timeout_ms} - spent.count()));
  }
  auto second = operations_->run(again);
  auto next = second.begin();
  for (Outcome& outcome : outcomes) {
    if (is_not_initialised(outcome)) outcome = std::move(*next++);
  }
  return Answer(std::move(outcomes));
}

Result<Answer> Agent::handle(const protocol::Request& request) {
  if (const auto* action = std::get_if<protocol::Action>(&request.what)) return act(*action);
  return answer_query(std::get<protocol::Query>(request.what));
}

// A lock that succeeded for an engine that is gone: nobody else may ever unlock these processes.
void Agent::undo_unheard_lock(const protocol::Request& request,
                              const protocol::Response& response) {
  const auto* action = std::get_if<protocol::Action>(&request.what);
  if (action == nullptr || action->operation != Operation::lock || !response.answer.ok()) return;
  protocol::Action unlock;
  unlock.operation = Operation::unlock;
  unlock.timeout_ms = static_cast<std::uint32_t>(protocol::kAnswerGrace.count());
  for (const Outcome& outcome : std::get<std::vector<Outcome>>(*response.answer)) {
    if (outcome.ok()) unlock.targets.push_back(outcome.target);
  }
  if (!unlock.targets.empty()) static_cast<void>(act(unlock).ok());
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
    if (!sent.ok()) {
      log::warn("answer not delivered", {{"error", sent.error().message}});
      undo_unheard_lock(*request, response);
    }
  }
  if (operations_) operations_->wait_until_idle();
  return ending;
}

}  // namespace icebox::cuda
