// SPDX-License-Identifier: Apache-2.0
#include "runtime-hooks/checkpoint/session.h"

#include <unistd.h>

#include "oci/base/fault.h"
#include "oci/base/file.h"
#include "oci/base/log.h"
#include "oci/base/pid_ref.h"
#include "runtime-hooks/checkpoint/rollback.h"

namespace icebox::engine {
namespace {

Result<std::string> agent_path() {
  const auto own = ICEBOX_TRY(own_directory());
  std::string beside = own + "/icebox-gpu";
  if (exists(beside)) return beside;
  auto found = find_program("icebox-gpu");
  if (!found.ok()) {
    return make_error(Code::failed_precondition,
                      "the GPU agent is missing: icebox-gpu is neither in " + own +
                          " nor in PATH; install it there");
  }
  return found;
}

ProcessName myself() { return {::getpid(), process_start_time(::getpid()).value_or(0)}; }

}  // namespace

Result<Session> Session::open(Engine& engine, OperationKind kind, const std::string& id) {
  auto state =
      ICEBOX_TRY(ContainerState::locate(engine.config.state_dir, engine.invocation.root, id));
  auto lock = ICEBOX_TRY(state.lock());
  Session session(engine, id, std::move(state), std::move(lock));
  auto earlier = ICEBOX_TRY(session.state_.read());
  if (earlier && !earlier->held()) {
    log::warn("an earlier operation ended half-way: rolling it back",
              {{"id", id},
               {"op", std::string(to_string(earlier->operation))},
               {"phase", earlier->phase}});
    session.journal_ = *earlier;
    ICEBOX_TRY(roll_back(session).context("rolling back an earlier " +
                                          std::string(to_string(earlier->operation))));
    earlier = ICEBOX_TRY(session.state_.read());
  }
  if (earlier) {
    session.journal_ = *earlier;
    session.was_held_ = true;
  } else {
    session.journal_ = Journal();
  }
  session.journal_.operation = kind;
  session.journal_.engine = myself();
  session.journal_.was_paused = session.was_held_;
  return session;
}

void Session::end_phase() {
  if (phase_.empty()) return;
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(
      std::chrono::steady_clock::now() - phase_start_);
  timings_[phase_] += ms.count();
  log::info(phase_ + " done", {{"id", id_},
                               {"op", std::string(to_string(journal_.operation))},
                               {"phase", phase_},
                               {"event", "done"},
                               {"ms", std::to_string(ms.count())}});
  phase_.clear();
}

Result<void> Session::enter(const std::string& phase) {
  end_phase();
  phase_ = phase;
  phase_start_ = std::chrono::steady_clock::now();
  journal_.phase = phase;
  ICEBOX_TRY(save());
  const std::string operation(to_string(journal_.operation));
  log::info(phase, {{"id", id_}, {"op", operation}, {"phase", phase}, {"event", "start"}});
  return fault::reach((operation + "." + phase).c_str());
}

Result<void> Session::finish_held() {
  end_phase();
  journal_.operation = OperationKind::pause;
  journal_.phase = "held";
  journal_.was_paused = false;
  return save();
}

Result<void> Session::finish() {
  end_phase();
  return state_.clear();
}

Result<void> Session::forget() {
  end_phase();
  return state_.remove();
}

std::map<std::string, std::int64_t> Session::timings() const {
  auto result = timings_;
  if (!phase_.empty()) {
    result[phase_] += std::chrono::duration_cast<std::chrono::milliseconds>(
                          std::chrono::steady_clock::now() - phase_start_)
                          .count();
  }
  return result;
}

Result<cuda::GpuAgent*> Session::agent() {
  if (agent_ && !agent_->usable()) agent_.reset();
  if (!agent_) {
    cuda::GpuAgent::Options options;
    options.agent_path = ICEBOX_TRY(agent_path());
    options.libcuda = engine_->config.libcuda;
    options.libnvidia_ml = engine_->config.libnvidia_ml;
    agent_ = ICEBOX_TRY(cuda::GpuAgent::start(options));
  }
  return &*agent_;
}

std::chrono::milliseconds Session::driver_patience(std::uint64_t gpu_bytes) const {
  // An H200 moves 2 GiB/s (tests/gpu/RESULTS.md); a quarter of that is no reason to worry yet.
  constexpr std::uint64_t kBytesPerMs = (512ULL << 20) / 1000;
  return engine_->config.driver_timeout +
         std::chrono::milliseconds(static_cast<std::int64_t>(gpu_bytes / kBytesPerMs));
}

Result<std::string> Session::scratch(const std::string& name) {
  const std::string path = state_.path(name);
  ICEBOX_TRY(remove_tree(path));
  ICEBOX_TRY(make_directories(path, 0700));
  return path;
}

Result<ContainerView> look_up(Session& session) {
  Engine& engine = session.engine();
  const std::string& id = session.id();
  auto found = engine.runtime.state(id);
  if (!found.ok()) {
    if (found.error().code == Code::not_found) ICEBOX_TRY(session.forget());
    return found.error();
  }
  auto state = std::move(found).value();
  if (state.status == "stopped" || state.pid <= 0) {
    return make_error(Code::failed_precondition, "container " + id + " has ended");
  }
  if (state.status == "created") {
    return make_error(Code::failed_precondition, "container " + id + " has not been started");
  }
  auto init = ICEBOX_TRY(container::read_process(state.pid));
  auto cgroup = ICEBOX_TRY(container::Cgroup::of_container(engine.invocation.root, id, state.pid));
  return ContainerView{std::move(state), std::move(init), std::move(cgroup)};
}

}  // namespace icebox::engine
