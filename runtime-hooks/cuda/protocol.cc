// SPDX-License-Identifier: Apache-2.0
#include "runtime-hooks/cuda/protocol.h"

#include <algorithm>
#include <array>
#include <limits>
#include <set>
#include <utility>

#include "runtime-hooks/cuda/protocol_json.h"

namespace icebox::cuda::protocol {
namespace {

using nlohmann::json;

constexpr std::array<std::pair<Query, std::string_view>, 4> kQueries = {
    {{Query::hello, "hello"},
     {Query::info, "info"},
     {Query::init, "init"},
     {Query::processes, "processes"}}};

constexpr std::array kCodes = {
    Code::unknown,        Code::invalid_argument,    Code::not_found,
    Code::already_exists, Code::failed_precondition, Code::deadline_exceeded,
    Code::unavailable,    Code::unimplemented,       Code::resource_exhausted,
    Code::cancelled};

constexpr std::uint64_t kMaxInt = std::numeric_limits<int>::max();
constexpr std::uint64_t kMaxU64 = std::numeric_limits<std::uint64_t>::max();
constexpr std::size_t kMaxName = 256;

Error invalid(std::string message) {
  return make_error(Code::invalid_argument, std::move(message));
}

// Text from a driver may hold anything: cut it, and let dump() replace what is not UTF-8.
std::string cut(const std::string& text) { return text.substr(0, kMaxText); }

std::string to_text(const json& message) {
  return message.dump(-1, ' ', false, json::error_handler_t::replace);
}

std::string indexed(std::string_view list, std::size_t index) {
  return std::string(list) + "[" + std::to_string(index) + "]";
}

Result<json> parse(std::string_view payload) {
  json message = json::parse(payload, nullptr, /*allow_exceptions=*/false);
  if (message.is_discarded()) return invalid("not valid JSON");
  return message;
}

Result<std::string> uuid_field(const Fields& fields, const char* key) {
  std::string uuid = ICEBOX_TRY(fields.text(key, kMaxName));
  if (!parse_gpu_uuid(uuid)) {
    return invalid("field " + fields.path_of(key) + " is not the UUID of a whole GPU (GPU-...)");
  }
  return uuid;
}

json encode_target(const Target& target) {
  return {{"pid", target.pid}, {"start_time", target.start_time}};
}

Result<Target> decode_target(const Fields& fields) {
  Target target;
  target.pid = static_cast<pid_t>(ICEBOX_TRY(fields.number("pid", 1, kMaxInt)));
  target.start_time = ICEBOX_TRY(fields.number("start_time", 1, kMaxU64));
  return target;
}

Result<std::vector<Target>> decode_targets(const Fields& fields) {
  const json* list = ICEBOX_TRY(fields.list("targets", kMaxTargets));
  std::vector<Target> targets;
  std::set<pid_t> seen;
  for (std::size_t i = 0; i < list->size(); ++i) {
    const Fields item =
        ICEBOX_TRY(Fields::of((*list)[i], indexed("targets", i), {"pid", "start_time"}));
    const Target target = ICEBOX_TRY(decode_target(item));
    if (!seen.insert(target.pid).second) {
      return invalid("pid " + std::to_string(target.pid) + " is in field targets twice");
    }
    targets.push_back(target);
  }
  return targets;
}

Result<std::vector<GpuPair>> decode_gpu_map(const Fields& fields) {
  const json* list = ICEBOX_TRY(fields.list("gpu_map", kMaxGpus));
  std::vector<GpuPair> pairs;
  for (std::size_t i = 0; i < list->size(); ++i) {
    const Fields item = ICEBOX_TRY(Fields::of((*list)[i], indexed("gpu_map", i), {"old", "new"}));
    GpuPair pair;
    pair.old_uuid = ICEBOX_TRY(uuid_field(item, "old"));
    pair.new_uuid = ICEBOX_TRY(uuid_field(item, "new"));
    pairs.push_back(std::move(pair));
  }
  return pairs;
}

Result<Action> decode_action(const Fields& fields, Operation operation) {
  Action action;
  action.operation = operation;
  action.targets = ICEBOX_TRY(decode_targets(fields));
  if (fields.has("timeout_ms") != has_deadline(operation)) {
    return invalid("operation " + std::string(to_string(operation)) +
                   (has_deadline(operation) ? " needs" : " must not have") + " field timeout_ms");
  }
  if (has_deadline(operation)) {
    action.timeout_ms =
        static_cast<std::uint32_t>(ICEBOX_TRY(fields.number("timeout_ms", 1, kMaxTimeoutMs)));
  }
  if (fields.has("gpu_map")) {
    if (operation != Operation::restore) return invalid("field gpu_map is only for restore");
    action.gpu_map = ICEBOX_TRY(decode_gpu_map(fields));
  }
  return action;
}

json encode_gpu(const Gpu& gpu) {
  return {{"uuid", gpu.uuid},
          {"name", gpu.name},
          {"total_bytes", gpu.total_bytes},
          {"free_bytes", gpu.free_bytes},
          {"pci_bus_id", gpu.pci_bus_id},
          {"compute_major", gpu.compute_major},
          {"compute_minor", gpu.compute_minor},
          {"mig_enabled", gpu.mig_enabled},
          {"persistence_mode", gpu.persistence_mode}};
}

Result<Gpu> decode_gpu(const json& value, std::string path) {
  const Fields fields =
      ICEBOX_TRY(Fields::of(value, std::move(path),
                            {"uuid", "name", "total_bytes", "free_bytes", "pci_bus_id",
                             "compute_major", "compute_minor", "mig_enabled", "persistence_mode"}));
  Gpu gpu;
  gpu.uuid = ICEBOX_TRY(fields.text("uuid", kMaxName));
  gpu.name = ICEBOX_TRY(fields.text("name", kMaxName));
  gpu.total_bytes = ICEBOX_TRY(fields.number("total_bytes", 0, kMaxU64));
  gpu.free_bytes = ICEBOX_TRY(fields.number("free_bytes", 0, kMaxU64));
  gpu.pci_bus_id = ICEBOX_TRY(fields.text("pci_bus_id", kMaxName));
  gpu.compute_major = static_cast<int>(ICEBOX_TRY(fields.number("compute_major", 0, kMaxInt)));
  gpu.compute_minor = static_cast<int>(ICEBOX_TRY(fields.number("compute_minor", 0, kMaxInt)));
  gpu.mig_enabled = ICEBOX_TRY(fields.boolean("mig_enabled"));
  gpu.persistence_mode = ICEBOX_TRY(fields.boolean("persistence_mode"));
  return gpu;
}

json encode_driver(const DriverInfo& driver) {
  json gpus = json::array();
  for (const Gpu& gpu : driver.gpus) gpus.push_back(encode_gpu(gpu));
  return {{"driver_version", driver.driver_version},
          {"cuda_version", driver.cuda_version},
          {"has_checkpoint_api", driver.has_checkpoint_api},
          {"can_remap_gpus", driver.can_remap_gpus},
          {"libcuda", driver.libcuda},
          {"gpus", std::move(gpus)}};
}

Result<Answer> decode_driver(const Fields& message) {
  const json* value = ICEBOX_TRY(message.any("driver"));
  const Fields fields = ICEBOX_TRY(Fields::of(*value, "driver",
                                              {"driver_version", "cuda_version", "libcuda", "gpus",
                                               "has_checkpoint_api", "can_remap_gpus"}));
  DriverInfo driver;
  driver.driver_version = ICEBOX_TRY(fields.text("driver_version", kMaxName));
  driver.cuda_version = static_cast<int>(ICEBOX_TRY(fields.number("cuda_version", 0, kMaxInt)));
  driver.has_checkpoint_api = ICEBOX_TRY(fields.boolean("has_checkpoint_api"));
  driver.can_remap_gpus = ICEBOX_TRY(fields.boolean("can_remap_gpus"));
  driver.libcuda = ICEBOX_TRY(fields.text("libcuda", 4096));
  const json* gpus = ICEBOX_TRY(fields.list("gpus", kMaxGpus));
  for (std::size_t i = 0; i < gpus->size(); ++i) {
    driver.gpus.push_back(ICEBOX_TRY(decode_gpu((*gpus)[i], indexed("driver.gpus", i))));
  }
  return Answer(std::move(driver));
}

json encode_processes(const std::vector<GpuProcess>& processes) {
  json list = json::array();
  for (const GpuProcess& process : processes) {
    json item = {{"gpu", process.gpu_uuid}, {"pid", process.pid}};
    if (process.used_bytes) item["used_bytes"] = *process.used_bytes;
    list.push_back(std::move(item));
  }
  return list;
}

Result<Answer> decode_processes(const Fields& message) {
  const json* list = ICEBOX_TRY(message.list("processes", kMaxGpuProcesses));
  std::vector<GpuProcess> processes;
  for (std::size_t i = 0; i < list->size(); ++i) {
    const Fields fields =
        ICEBOX_TRY(Fields::of((*list)[i], indexed("processes", i), {"gpu", "pid", "used_bytes"}));
    GpuProcess process;
    process.gpu_uuid = ICEBOX_TRY(fields.text("gpu", kMaxName));
    process.pid = static_cast<pid_t>(ICEBOX_TRY(fields.number("pid", 1, kMaxInt)));
    if (fields.has("used_bytes")) {
      process.used_bytes = ICEBOX_TRY(fields.number("used_bytes", 0, kMaxU64));
    }
    processes.push_back(std::move(process));
  }
  return Answer(std::move(processes));
}

json encode_outcome(const Outcome& outcome) {
  json item = encode_target(outcome.target);
  item["ending"] = to_string(outcome.ending);
  item["elapsed_ms"] = std::max<std::int64_t>(0, outcome.elapsed.count());
  if (outcome.ending == Ending::driver_error) {
    item["code"] = outcome.code;
    item["name"] = outcome.name.substr(0, kMaxName);
  }
  if (!outcome.message.empty()) item["message"] = cut(outcome.message);
  if (outcome.state) item["state"] = to_string(*outcome.state);
  if (outcome.restore_thread != 0) item["restore_thread"] = outcome.restore_thread;
  return item;
}

Result<Outcome> decode_outcome(const json& value, std::string path) {
  const Fields fields = ICEBOX_TRY(Fields::of(value, std::move(path),
                                              {"pid", "start_time", "ending", "elapsed_ms", "code",
                                               "name", "message", "state", "restore_thread"}));
  Outcome outcome;
  outcome.target = ICEBOX_TRY(decode_target(fields));
  const auto ending = parse_ending(ICEBOX_TRY(fields.text("ending", kMaxName)));
  if (!ending) return invalid("field " + fields.path_of("ending") + " is no known ending");
  outcome.ending = *ending;
  outcome.elapsed = std::chrono::milliseconds(
      ICEBOX_TRY(fields.number("elapsed_ms", 0, std::numeric_limits<std::int64_t>::max() / 2)));
  if (outcome.ending == Ending::driver_error) {
    outcome.code = static_cast<int>(ICEBOX_TRY(fields.number("code", 1, kMaxInt)));
    outcome.name = ICEBOX_TRY(fields.text("name", kMaxName));
  } else if (fields.has("code") || fields.has("name")) {
    return invalid("field " + fields.path_of("code") + " is only for driver errors");
  }
  if (fields.has("message")) outcome.message = ICEBOX_TRY(fields.text("message", 2 * kMaxText));
  if (fields.has("state")) {
    outcome.state = parse_process_state(ICEBOX_TRY(fields.text("state", kMaxName)));
    if (!outcome.state) return invalid("field " + fields.path_of("state") + " is no known state");
  }
  if (fields.has("restore_thread")) {
    outcome.restore_thread =
        static_cast<pid_t>(ICEBOX_TRY(fields.number("restore_thread", 1, kMaxInt)));
  }
  return outcome;
}

Result<Answer> decode_outcomes(const Fields& message, const Action& action) {
  const json* list = ICEBOX_TRY(message.list("outcomes", kMaxTargets));
  if (list->size() != action.targets.size()) {
    return invalid("field outcomes has " + std::to_string(list->size()) + " items for " +
                   std::to_string(action.targets.size()) + " targets");
  }
  std::vector<Outcome> outcomes;
  for (std::size_t i = 0; i < list->size(); ++i) {
    outcomes.push_back(ICEBOX_TRY(decode_outcome((*list)[i], indexed("outcomes", i))));
    if (!(outcomes.back().target == action.targets[i])) {
      return invalid("field " + indexed("outcomes", i) + " is about another process");
    }
  }
  return Answer(std::move(outcomes));
}

Result<Response> decode_error(std::uint64_t id, const Fields& message) {
  const json* value = ICEBOX_TRY(message.any("error"));
  const Fields fields = ICEBOX_TRY(Fields::of(*value, "error", {"code", "message"}));
  const std::string name = ICEBOX_TRY(fields.text("code", kMaxName));
  const auto code = std::find_if(kCodes.begin(), kCodes.end(),
                                 [&](Code known) { return to_string(known) == name; });
  if (code == kCodes.end()) return invalid("field error.code is no known code");
  return Response{id, make_error(*code, ICEBOX_TRY(fields.text("message", 2 * kMaxText)))};
}

Result<Answer> decode_answer(const Fields& message, const Request& request) {
  if (const auto* action = std::get_if<Action>(&request.what)) {
    return decode_outcomes(message, *action);
  }
  switch (std::get<Query>(request.what)) {
    case Query::info: return decode_driver(message);
    case Query::processes: return decode_processes(message);
    case Query::hello:
    case Query::init: break;
  }
  return Answer(Empty{});
}

// The one field beside "id" that a good answer to `request` has.
std::string_view answer_field(const Request& request) {
  if (std::holds_alternative<Action>(request.what)) return "outcomes";
  switch (std::get<Query>(request.what)) {
    case Query::info: return "driver";
    case Query::processes: return "processes";
    case Query::hello:
    case Query::init: break;
  }
  return "id";
}

}  // namespace

bool has_deadline(Operation operation) {
  return operation != Operation::checkpoint && operation != Operation::restore;
}

std::string_view name_of(const Request& request) {
  if (const auto* action = std::get_if<Action>(&request.what)) return to_string(action->operation);
  for (const auto& [query, name] : kQueries) {
    if (query == std::get<Query>(request.what)) return name;
  }
  return "?";
}

std::string to_json(const DriverInfo& driver) { return to_text(encode_driver(driver)); }

std::string encode(const Request& request) {
  json message = {{"version", kVersion}, {"id", request.id}, {"op", name_of(request)}};
  if (const auto* action = std::get_if<Action>(&request.what)) {
    json targets = json::array();
    for (const Target& target : action->targets) targets.push_back(encode_target(target));
    message["targets"] = std::move(targets);
    if (action->timeout_ms) message["timeout_ms"] = *action->timeout_ms;
    if (!action->gpu_map.empty()) {
      json pairs = json::array();
      for (const GpuPair& pair : action->gpu_map) {
        pairs.push_back({{"old", pair.old_uuid}, {"new", pair.new_uuid}});
      }
      message["gpu_map"] = std::move(pairs);
    }
  }
  return to_text(message);
}

std::string encode(const Response& response) {
  json message = {{"id", response.id}};
  if (!response.answer.ok()) {
    const Error& error = response.answer.error();
    message["error"] = {{"code", to_string(error.code)}, {"message", cut(error.message)}};
    return to_text(message);
  }
  const Answer& answer = response.answer.value();
  if (const auto* driver = std::get_if<DriverInfo>(&answer)) {
    message["driver"] = encode_driver(*driver);
  } else if (const auto* processes = std::get_if<std::vector<GpuProcess>>(&answer)) {
    message["processes"] = encode_processes(*processes);
  } else if (const auto* outcomes = std::get_if<std::vector<Outcome>>(&answer)) {
    json list = json::array();
    for (const Outcome& outcome : *outcomes) list.push_back(encode_outcome(outcome));
    message["outcomes"] = std::move(list);
  }
  return to_text(message);
}

Result<Request> decode_request(std::string_view payload) {
  const json message = ICEBOX_TRY(parse(payload));
  const Fields fields = ICEBOX_TRY(
      Fields::of(message, "", {"version", "id", "op", "targets", "timeout_ms", "gpu_map"}));
  const std::uint64_t version = ICEBOX_TRY(fields.number("version", 0, kMaxU64));
  if (version != kVersion) {
    return invalid("protocol version " + std::to_string(version) + " instead of " +
                   std::to_string(kVersion) +
                   ": icebox-runc and icebox-gpu must come from one release");
  }
  Request request;
  request.id = ICEBOX_TRY(fields.number("id", 1, kMaxU64));
  const std::string op = ICEBOX_TRY(fields.text("op", kMaxName));
  if (const auto operation = parse_operation(op)) {
    request.what = ICEBOX_TRY(decode_action(fields, *operation));
    return request;
  }
  const auto query = std::find_if(kQueries.begin(), kQueries.end(),
                                  [&](const auto& known) { return known.second == op; });
  if (query == kQueries.end()) return invalid("field op names no known operation");
  if (message.size() != 3) return invalid("operation " + op + " takes no further fields");
  request.what = query->first;
  return request;
}

Result<Response> decode_response(std::string_view payload, const Request& request) {
  const json message = ICEBOX_TRY(parse(payload));
  const Fields fields = ICEBOX_TRY(Fields::of(message, "", {"id", "error", answer_field(request)}));
  const std::uint64_t id = ICEBOX_TRY(fields.number("id", 0, kMaxU64));
  if (fields.has("error")) {
    // Id 0: the agent could not read the request far enough to know its id.
    if (id != request.id && id != 0) return invalid("answer to another request");
    if (message.size() != 2) return invalid("an error beside an answer");
    return decode_error(id, fields);
  }
  if (id != request.id) return invalid("answer to another request");
  return Response{id, ICEBOX_TRY(decode_answer(fields, request))};
}

}  // namespace icebox::cuda::protocol
