// SPDX-License-Identifier: Apache-2.0
#include "runtime-hooks/cuda/operations.h"

#include <algorithm>
#include <condition_variable>
#include <csignal>
#include <cstdlib>
#include <mutex>
#include <optional>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "oci/base/file.h"
#include "oci/base/log.h"
#include "oci/base/strings.h"
#include "runtime-hooks/cuda/held_target.h"

namespace icebox::cuda {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

// One target's part of a batch. Fields below `target` are guarded by Batch::mutex.
struct Job {
  std::shared_ptr<HeldTarget> target;  // empty: refused before it began, outcome is final
  Outcome outcome;
  bool started = false;    // the driver call was made
  bool answered = false;   // it came back with `code`
  bool done = false;       // and the state query that follows it came back or was not needed
  bool abandoned = false;  // nobody waits any more
  driver::Code code = driver::kSuccess;
  std::optional<ProcessState> state;
  int restore_thread = 0;
  milliseconds elapsed{0};
};

// Shared by run() and the worker threads; whoever is last frees it.
struct Batch {
  CheckpointApi api;
  Operation operation = Operation::state;
  std::vector<driver::GpuPair> gpu_pairs;
  std::optional<Clock::time_point> deadline;
  Clock::time_point begin_deadline;  // until when an earlier pending call is waited for
  Clock::time_point begin;

  std::mutex mutex;
  std::condition_variable changed;
  std::vector<Job> jobs;
};

milliseconds since(Clock::time_point begin) {
  return std::chrono::duration_cast<milliseconds>(Clock::now() - begin);
}

// The driver takes 0 for "no limit", so a deadline that has passed is 1 ms.
unsigned int timeout_left(const Batch& batch) {
  if (!batch.deadline) return 1;
  const auto left = std::chrono::ceil<milliseconds>(*batch.deadline - Clock::now()).count();
  return static_cast<unsigned int>(std::clamp<std::int64_t>(left, 1, protocol::kMaxTimeoutMs));
}

struct CallResult {
  driver::Code code = driver::kSuccess;
  driver::RawState state = driver::kStateRunning;
  int restore_thread = 0;
};

// The driver call itself. Blocks for as long as the driver likes.
CallResult call_driver(const Batch& batch, pid_t pid) {
  CallResult result;
  switch (batch.operation) {
    case Operation::restore_thread:
      result.code = batch.api.get_restore_thread_id(pid, &result.restore_thread);
      break;
    case Operation::state: result.code = batch.api.get_state(pid, &result.state); break;
    case Operation::lock: {
      driver::LockArgs args;
      args.timeout_ms = timeout_left(batch);
      result.code = batch.api.lock(pid, &args);
      break;
    }
    case Operation::checkpoint: {
      driver::CheckpointArgs args;
      result.code = batch.api.checkpoint(pid, &args);
      break;
    }
    case Operation::restore: {
      // A copy of the pairs: the driver's argument is not const.
      std::vector<driver::GpuPair> pairs = batch.gpu_pairs;
      driver::RestoreArgs args;
      if (!pairs.empty()) {
        args.gpu_pairs = pairs.data();
        args.gpu_pairs_count = static_cast<unsigned int>(pairs.size());
      }
      result.code = batch.api.restore(pid, &args);
      break;
    }
    case Operation::unlock: {
      driver::UnlockArgs args;
      result.code = batch.api.unlock(pid, &args);
      break;
    }
  }
  return result;
}

bool wants_state_afterwards(Operation operation) {
  return operation != Operation::restore_thread && operation != Operation::state;
}

// A lock that nobody waits for any more has succeeded: nobody would ever unlock this process.
void undo_late_lock(const Batch& batch, pid_t pid) {
  driver::UnlockArgs args;
  const driver::Code code = batch.api.unlock(pid, &args);
  log::warn("late lock undone",
            {{"pid", std::to_string(pid)}, {"result", batch.api.name_of(code)}});
}

// Thread body: one target from begin to end.
void work(const std::shared_ptr<Batch>& batch, std::size_t index) {
  const std::shared_ptr<HeldTarget> target = batch->jobs[index].target;
  const pid_t pid = target->id().pid;
  if (!target->begin_call(batch->operation, batch->begin_deadline)) {
    const std::lock_guard lock(batch->mutex);
    batch->jobs[index].done = true;
    batch->changed.notify_all();
    return;
  }
  {
    const std::lock_guard lock(batch->mutex);
    Job& job = batch->jobs[index];
    // Checked again: the target may have ended, or its time may be over, while the call was waited
    // for.
    job.started = !job.abandoned && target->alive();
    if (!job.started) {
      target->end_call();
      job.done = true;
      batch->changed.notify_all();
      return;
    }
  }
  const auto begin = Clock::now();
  const CallResult result = call_driver(*batch, pid);
  bool abandoned = false;
  {
    const std::lock_guard lock(batch->mutex);
    Job& job = batch->jobs[index];
    job.answered = true;
    job.code = result.code;
    job.elapsed = since(begin);
    job.restore_thread = result.restore_thread;
    if (batch->operation == Operation::state && result.code == driver::kSuccess) {
      job.state = to_process_state(result.state);
    }
    job.done = !wants_state_afterwards(batch->operation);
    abandoned = job.abandoned;
    batch->changed.notify_all();
  }
  if (abandoned) {
    // Of a process that ended nothing is left to undo, and its pid may be another's by now.
    if (batch->operation == Operation::lock && result.code == driver::kSuccess && target->alive()) {
      undo_late_lock(*batch, pid);
    }
  } else if (wants_state_afterwards(batch->operation)) {
    driver::RawState raw = driver::kStateRunning;
    const driver::Code code = batch->api.get_state(pid, &raw);
    const std::lock_guard lock(batch->mutex);
    if (code == driver::kSuccess) batch->jobs[index].state = to_process_state(raw);
  }
  target->end_call();
  const std::lock_guard lock(batch->mutex);
  batch->jobs[index].done = true;
  batch->changed.notify_all();
}

void start_workers(const std::shared_ptr<Batch>& batch) {
  for (std::size_t i = 0; i < batch->jobs.size(); ++i) {
    if (!batch->jobs[i].target) continue;
    try {
      std::thread(work, batch, i).detach();
    } catch (const std::system_error& error) {
      const std::lock_guard lock(batch->mutex);
      Job& job = batch->jobs[i];
      job.outcome.message = "process " + std::to_string(job.outcome.target.pid) +
                            " was left alone: the agent cannot start a thread: " + error.what();
      job.target.reset();
    }
  }
}

bool all_answered(const Batch& batch) {
  return std::all_of(batch.jobs.begin(), batch.jobs.end(), [](const Job& job) {
    return !job.target || job.answered || job.done || job.abandoned;
  });
}

bool all_done(const Batch& batch) {
  return std::all_of(batch.jobs.begin(), batch.jobs.end(),
                     [](const Job& job) { return !job.target || job.done || job.abandoned; });
}

// Gives those up that have not answered although their process ended `grace` ago.
void abandon_the_dead(Batch& batch, std::map<std::size_t, Clock::time_point>& dead_since,
                      milliseconds grace) {
  for (std::size_t i = 0; i < batch.jobs.size(); ++i) {
    Job& job = batch.jobs[i];
    if (!job.target || job.answered || job.done || job.target->alive()) continue;
    const auto [entry, first] = dead_since.emplace(i, Clock::now());
    if (!first && Clock::now() - entry->second >= grace) {
      job.abandoned = true;
      job.elapsed = since(batch.begin);
    }
  }
}

// Waits for the driver calls; afterwards every job has answered or is abandoned.
void wait_for_answers(Batch& batch, const Operations::Timing& timing) {
  constexpr milliseconds kLivenessCheck{100};
  std::map<std::size_t, Clock::time_point> dead_since;
  std::unique_lock lock(batch.mutex);
  while (!all_answered(batch)) {
    if (!batch.deadline) {
      batch.changed.wait_for(lock, kLivenessCheck);
      abandon_the_dead(batch, dead_since, timing.death_grace);
      continue;
    }
    const auto limit = *batch.deadline + timing.answer_grace;
    if (batch.changed.wait_until(lock, limit, [&] { return all_answered(batch); })) break;
    for (Job& job : batch.jobs) {
      if (!job.target || job.answered || job.done) continue;
      job.abandoned = true;
      job.elapsed = since(batch.begin);
    }
  }
  batch.changed.wait_for(lock, timing.state_grace, [&] { return all_done(batch); });
}

std::optional<ProcessState> expected_state(Operation operation) {
  switch (operation) {
    case Operation::lock:
    case Operation::restore: return ProcessState::locked;
    case Operation::checkpoint: return ProcessState::checkpointed;
    case Operation::unlock: return ProcessState::running;
    case Operation::restore_thread:
    case Operation::state: break;
  }
  return std::nullopt;
}

// What a person can do about a driver error, where that is known.
std::string_view hint_for(Operation operation, driver::Code code) {
  if (operation == Operation::lock && code == driver::kErrorNotReady) {
    return "its GPU work did not end in time: raise `lock_timeout_ms`, or try when it is idle";
  }
  if (operation == Operation::checkpoint && code == driver::kErrorOutOfMemory) {
    return "not enough host memory for its device memory, or the GPU is in MIG mode, which the "
           "driver cannot checkpoint";
  }
  if (operation == Operation::restore && code == driver::kErrorOutOfMemory) {
    return "not enough free GPU memory; the driver cannot restore this process any more";
  }
  if (operation == Operation::restore && code == driver::kErrorInvalidValue) {
    return "the GPU map must name every GPU of the host";
  }
  if (code == driver::kErrorNotSupported) {
    return "the driver cannot do it for this process, GPU or platform (IPC, managed memory, MPS "
           "and "
           "MIG are known limits)";
  }
  return {};
}

std::string about(const Batch& batch, const Job& job) {
  return "process " + std::to_string(job.outcome.target.pid) + ": " +
         std::string(to_string(batch.operation));
}

void fill_driver_error(const Batch& batch, const Job& job, Outcome& outcome) {
  outcome.ending = Ending::driver_error;
  outcome.code = job.code;
  outcome.name = batch.api.name_of(job.code);
  const std::string text = batch.api.text_of(job.code);
  outcome.message = about(batch, job) + " failed with " + outcome.name + " (" +
                    std::to_string(job.code) + (text.empty() ? ")" : ": " + text + ")");
  const std::string_view hint = hint_for(batch.operation, job.code);
  if (!hint.empty()) outcome.message += "; " + std::string(hint);
}

// Whether a process that is still there is on its way out: being killed, dumping core, or without
// its memory already. A pidfd tells of the end only after that, and a core dump of gigabytes takes
// time.
bool is_ending(pid_t pid) {
  constexpr std::size_t kLimit = 64 * 1024;
  const auto status = read_file("/proc/" + std::to_string(pid) + "/status", kLimit);
  if (!status.ok()) return status.error().code == Code::not_found;
  bool has_memory = false;
  for (const std::string_view line : split(*status, '\n', SplitEmpty::drop)) {
    const auto colon = line.find(':');
    if (colon == std::string_view::npos) continue;
    const std::string_view field = line.substr(0, colon);
    const std::string_view value = trim(line.substr(colon + 1));
    if (field == "VmSize") has_memory = true;
    if (field == "CoreDumping" && value == "1") return true;
    // What the kernel sends to every thread of a process that ends by a fatal signal.
    if (field == "SigPnd" || field == "ShdPnd") {
      const std::uint64_t pending = std::strtoull(std::string(value).c_str(), nullptr, 16);
      if ((pending & (1ULL << (SIGKILL - 1))) != 0) return true;
    }
  }
  return !has_memory;
}

// The verdict on one job, once waiting is over. The batch is locked.
Outcome conclude(const Batch& batch, const Job& job) {
  Outcome outcome = job.outcome;
  if (!job.target) return outcome;
  outcome.elapsed = job.elapsed;
  outcome.state = job.state;
  // Only asked where something went wrong: a success of the driver needs a living process.
  const bool trouble = !job.answered || job.code != driver::kSuccess;
  if (!job.target->alive() || (trouble && is_ending(outcome.target.pid))) {
    outcome.ending = Ending::gone;
    outcome.state.reset();
    outcome.message = about(batch, job) + ": the process ended meanwhile";
  } else if (!job.started) {
    outcome.ending = Ending::refused;
    outcome.message = about(batch, job) + " was not tried: " +
                      (job.target->call() ? "an earlier call is still in the driver"
                                          : "its time was over before it could begin");
  } else if (!job.answered) {
    outcome.ending = Ending::no_answer;
    outcome.message = about(batch, job) + ": the driver did not answer within " +
                      std::to_string(job.elapsed.count()) + " ms";
    if (batch.operation == Operation::lock) {
      outcome.message +=
          " and will be undone should it still do it: raise `lock_timeout_ms` if its GPU work is "
          "only long, end the process if its driver hangs";
    }
  } else if (job.code != driver::kSuccess) {
    fill_driver_error(batch, job, outcome);
  } else {
    outcome.ending = Ending::ok;
    outcome.restore_thread = job.restore_thread;
    const auto expected = expected_state(batch.operation);
    if (expected && job.state && *job.state != *expected) {
      outcome.ending = Ending::wrong_state;
      outcome.message = about(batch, job) + " was reported as done, but the process is " +
                        std::string(to_string(*job.state));
    }
  }
  return outcome;
}

driver::Uuid to_driver_uuid(std::string_view text) {
  driver::Uuid uuid;
  const auto bytes = parse_gpu_uuid(text);  // the protocol has checked it
  if (bytes) std::copy(bytes->begin(), bytes->end(), std::begin(uuid.bytes));
  return uuid;
}

// Thread group id of a process or thread, from /proc; not_found when there is none.
Result<pid_t> thread_group_of(pid_t pid) {
  constexpr std::size_t kLimit = 64 * 1024;
  const std::string status =
      ICEBOX_TRY(read_file("/proc/" + std::to_string(pid) + "/status", kLimit));
  constexpr std::string_view kField = "Tgid:";
  for (std::string_view line : split(status, '\n', SplitEmpty::drop)) {
    if (!line.starts_with(kField)) continue;
    return static_cast<pid_t>(ICEBOX_TRY(parse_u64(trim(line.substr(kField.size())))));
  }
  return make_error(Code::unknown, "no Tgid in /proc/" + std::to_string(pid) + "/status");
}

Outcome outcome_for(const Target& target) {
  Outcome outcome;
  outcome.target = target;
  return outcome;
}

Outcome refusal_of(const Target& target, Ending ending, std::string_view why) {
  Outcome outcome = outcome_for(target);
  outcome.ending = ending;
  outcome.message = "process " + std::to_string(target.pid) + " " + std::string(why);
  return outcome;
}

}  // namespace

Operations::Hold Operations::hold(const Target& target) {
  const auto known = targets_.find(target.pid);
  if (known != targets_.end() && known->second->id() == target) {
    if (known->second->alive()) return {known->second, outcome_for(target)};
    return {nullptr, refusal_of(target, Ending::gone, "has ended")};
  }
  const auto group = thread_group_of(target.pid);
  if (!group.ok()) {
    if (group.error().code == Code::not_found) {
      return {nullptr, refusal_of(target, Ending::gone, "has ended")};
    }
    return {nullptr,
            refusal_of(target, Ending::refused, "cannot be looked at: " + group.error().message)};
  }
  if (*group != target.pid) {
    return {nullptr, refusal_of(target, Ending::refused,
                                "is a thread id of process " + std::to_string(*group))};
  }
  auto process = PidRef::open(target.pid, target.start_time);
  if (!process.ok()) {
    const auto start_time = process_start_time(target.pid);
    if (start_time.ok() && *start_time != target.start_time) {
      return {nullptr,
              refusal_of(target, Ending::refused,
                         "is another process by now (started at " + std::to_string(*start_time) +
                             ", not " + std::to_string(target.start_time) + ")")};
    }
    return {nullptr, refusal_of(target, Ending::gone, "has ended")};
  }
  if (!process->alive()) return {nullptr, refusal_of(target, Ending::gone, "has ended")};
  auto held = std::make_shared<HeldTarget>(target, std::move(*process));
  targets_[target.pid] = held;
  return {held, outcome_for(target)};
}

std::vector<Outcome> Operations::run(const protocol::Action& action) {
  auto batch = std::make_shared<Batch>();
  batch->api = api_;
  batch->operation = action.operation;
  batch->begin = Clock::now();
  batch->begin_deadline = batch->begin + timing_.answer_grace;
  if (action.timeout_ms) {
    batch->deadline = batch->begin + milliseconds(*action.timeout_ms);
    batch->begin_deadline = *batch->deadline;
  }
  for (const GpuPair& pair : action.gpu_map) {
    batch->gpu_pairs.push_back({to_driver_uuid(pair.old_uuid), to_driver_uuid(pair.new_uuid)});
  }
  for (const Target& target : action.targets) {
    Hold held = hold(target);
    Job job;
    job.target = std::move(held.target);
    job.outcome = std::move(held.refusal);
    batch->jobs.push_back(std::move(job));
  }
  start_workers(batch);
  wait_for_answers(*batch, timing_);
  std::vector<Outcome> outcomes;
  const std::lock_guard lock(batch->mutex);
  for (const Job& job : batch->jobs) outcomes.push_back(conclude(*batch, job));
  return outcomes;
}

bool Operations::pending() const {
  return std::any_of(targets_.begin(), targets_.end(), [](const auto& entry) {
    return entry.second->call().has_value() && entry.second->alive();
  });
}

void Operations::wait_until_idle() const {
  constexpr milliseconds kLivenessCheck{200};
  for (const auto& [pid, target] : targets_) {
    while (target->call().has_value() && target->alive()) target->wait_idle(kLivenessCheck);
  }
}

}  // namespace icebox::cuda
