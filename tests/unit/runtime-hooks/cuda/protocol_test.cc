// SPDX-License-Identifier: Apache-2.0
#include "runtime-hooks/cuda/protocol.h"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace icebox::cuda::protocol {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr const char* kUuidA = "GPU-00112233-4455-6677-8899-aabbccddeeff";
constexpr const char* kUuidB = "GPU-ffeeddcc-bbaa-9988-7766-554433221100";

Request action_request(Operation operation) {
  Action action;
  action.operation = operation;
  action.targets = {{101, 5'000'000'000}, {7, 1}};
  if (has_deadline(operation)) action.timeout_ms = 1500;
  return {9, action};
}

// The Error text of a request that must be refused.
std::string refused(const std::string& payload) {
  const auto request = decode_request(payload);
  if (request.ok()) return "accepted: " + payload;
  EXPECT_EQ(request.error().code, Code::invalid_argument) << payload;
  return request.error().message;
}

std::string refused_response(const std::string& payload, const Request& request) {
  const auto response = decode_response(payload, request);
  if (response.ok()) return "accepted: " + payload;
  EXPECT_EQ(response.error().code, Code::invalid_argument) << payload;
  return response.error().message;
}

TEST(Request, QueriesSurviveTheWire) {
  for (const Query query : {Query::hello, Query::info, Query::init, Query::processes}) {
    const auto request = decode_request(encode(Request{3, query}));
    ASSERT_TRUE(request.ok()) << request.error().message;
    EXPECT_EQ(request->id, 3U);
    EXPECT_EQ(std::get<Query>(request->what), query);
  }
}

TEST(Request, ActionsSurviveTheWire) {
  for (const Operation operation : {Operation::restore_thread, Operation::state, Operation::lock,
                                    Operation::checkpoint, Operation::restore, Operation::unlock}) {
    const auto request = decode_request(encode(action_request(operation)));
    ASSERT_TRUE(request.ok()) << request.error().message;
    const auto& action = std::get<Action>(request->what);
    EXPECT_EQ(action.operation, operation);
    EXPECT_THAT(action.targets, ElementsAre(Target{101, 5'000'000'000}, Target{7, 1}));
    EXPECT_EQ(action.timeout_ms.has_value(), has_deadline(operation));
    EXPECT_EQ(name_of(*request), to_string(operation));
  }
}

TEST(Request, OnlyTheTwoThatMustNotBeCutShortHaveNoDeadline) {
  EXPECT_FALSE(has_deadline(Operation::checkpoint));
  EXPECT_FALSE(has_deadline(Operation::restore));
  EXPECT_TRUE(has_deadline(Operation::lock));
  EXPECT_TRUE(has_deadline(Operation::unlock));
}

TEST(Request, GpuMapSurvivesTheWire) {
  Request request = action_request(Operation::restore);
  std::get<Action>(request.what).gpu_map = {{kUuidA, kUuidB}, {kUuidB, kUuidA}};
  const auto decoded = decode_request(encode(request));
  ASSERT_TRUE(decoded.ok()) << decoded.error().message;
  const auto& map = std::get<Action>(decoded->what).gpu_map;
  ASSERT_EQ(map.size(), 2U);
  EXPECT_EQ(map[0].old_uuid, kUuidA);
  EXPECT_EQ(map[0].new_uuid, kUuidB);
}

TEST(Request, MalformedOnesAreRefusedByName) {
  const struct {
    const char* payload;
    const char* message;
  } cases[] = {
      {"", "not valid JSON"},
      {"{", "not valid JSON"},
      {"\xff\xfe{}", "not valid JSON"},
      {R"({"version":1,"id":1,"op":"hello"} x)", "not valid JSON"},
      {"[]", "message is not a JSON object"},
      {"null", "message is not a JSON object"},
      {R"({})", "field version is missing"},
      {R"({"version":2,"id":1,"op":"hello"})", "must come from one release"},
      {R"({"version":1,"op":"hello"})", "field id is missing"},
      {R"({"version":1,"id":0,"op":"hello"})", "field id must be a whole number"},
      {R"({"version":1,"id":-1,"op":"hello"})", "field id must be a whole number"},
      {R"({"version":1,"id":1.0,"op":"hello"})", "field id must be a whole number"},
      {R"({"version":1,"id":18446744073709551616,"op":"hello"})", "field id must be a whole"},
      {R"({"version":1,"id":1})", "field op is missing"},
      {R"({"version":1,"id":1,"op":7})", "field op must be a string"},
      {R"({"version":1,"id":1,"op":"format_disk"})", "field op names no known operation"},
      {R"({"version":1,"id":1,"op":"hello","extra":1})", "unknown field extra"},
      {R"({"version":1,"id":1,"op":"hello","targets":[]})", "takes no further fields"},
      {R"({"version":1,"id":1,"op":"lock","timeout_ms":1})", "field targets is missing"},
      {R"({"version":1,"id":1,"op":"lock","targets":{},"timeout_ms":1})", "targets must be a list"},
      {R"({"version":1,"id":1,"op":"lock","targets":[1],"timeout_ms":1})",
       "targets[0] is not a JSON object"},
      {R"({"version":1,"id":1,"op":"lock","targets":[{"pid":1}],"timeout_ms":1})",
       "field targets[0].start_time is missing"},
      {R"({"version":1,"id":1,"op":"lock","targets":[{"pid":0,"start_time":1}],"timeout_ms":1})",
       "field targets[0].pid must be a whole number from 1"},
      {R"({"version":1,"id":1,"op":"lock","targets":[{"pid":2147483648,"start_time":1}],"timeout_ms":1})",
       "field targets[0].pid must be"},
      {R"({"version":1,"id":1,"op":"lock","targets":[{"pid":4,"start_time":1,"x":1}],"timeout_ms":1})",
       "unknown field targets[0].x"},
      {R"({"version":1,"id":1,"op":"lock","targets":[{"pid":4,"start_time":1},{"pid":4,"start_time":2}],"timeout_ms":1})",
       "pid 4 is in field targets twice"},
      {R"({"version":1,"id":1,"op":"lock","targets":[]})", "lock needs field timeout_ms"},
      {R"({"version":1,"id":1,"op":"lock","targets":[],"timeout_ms":0})",
       "field timeout_ms must be a whole number from 1"},
      {R"({"version":1,"id":1,"op":"lock","targets":[],"timeout_ms":3600001})",
       "timeout_ms must be"},
      {R"({"version":1,"id":1,"op":"checkpoint","targets":[],"timeout_ms":5})",
       "checkpoint must not have field timeout_ms"},
      {R"({"version":1,"id":1,"op":"checkpoint","targets":[],"gpu_map":[]})", "only for restore"},
      {R"({"version":1,"id":1,"op":"restore","targets":[],"gpu_map":[{"old":"GPU-1","new":"GPU-2"}]})",
       "field gpu_map[0].old is not the UUID of a whole GPU"},
  };
  for (const auto& entry : cases) {
    EXPECT_THAT(refused(entry.payload), HasSubstr(entry.message));
  }
}

TEST(Request, ListsHaveLimits) {
  Request request = action_request(Operation::lock);
  auto& targets = std::get<Action>(request.what).targets;
  targets.clear();
  for (std::size_t i = 1; i <= kMaxTargets; ++i) targets.push_back({static_cast<pid_t>(i), i});
  EXPECT_TRUE(decode_request(encode(request)).ok());
  targets.push_back({static_cast<pid_t>(kMaxTargets + 1), 1});
  EXPECT_THAT(refused(encode(request)), HasSubstr("at most 1024 items"));
}

TEST(Request, DeepNestingIsRefusedWithoutACrash) {
  // Deep enough to overflow the stack of a parser or destructor that calls itself.
  constexpr std::size_t kDepth = 256 * 1024;
  EXPECT_THAT(refused(std::string(kDepth, '[')), HasSubstr("not valid JSON"));
  std::string nested(kDepth, '[');
  nested.append(kDepth, ']');
  EXPECT_THAT(refused(nested), HasSubstr("not a JSON object"));
}

TEST(Response, OutcomesSurviveTheWire) {
  const Request request = action_request(Operation::lock);
  Outcome good;
  good.target = {101, 5'000'000'000};
  good.ending = Ending::ok;
  good.state = ProcessState::locked;
  good.elapsed = std::chrono::milliseconds(12);
  Outcome bad;
  bad.target = {7, 1};
  bad.ending = Ending::driver_error;
  bad.code = 600;
  bad.name = "CUDA_ERROR_NOT_READY";
  bad.message = "process 7: busy";
  const auto response =
      decode_response(encode(Response{9, Answer(std::vector<Outcome>{good, bad})}), request);
  ASSERT_TRUE(response.ok()) << response.error().message;
  ASSERT_TRUE(response->answer.ok());
  const auto& outcomes = std::get<std::vector<Outcome>>(*response->answer);
  ASSERT_EQ(outcomes.size(), 2U);
  EXPECT_TRUE(outcomes[0].ok());
  EXPECT_EQ(outcomes[0].state, ProcessState::locked);
  EXPECT_EQ(outcomes[0].elapsed.count(), 12);
  EXPECT_EQ(outcomes[1].ending, Ending::driver_error);
  EXPECT_EQ(outcomes[1].code, 600);
  EXPECT_EQ(outcomes[1].name, "CUDA_ERROR_NOT_READY");
  EXPECT_EQ(outcomes[1].message, "process 7: busy");
  EXPECT_FALSE(outcomes[1].state.has_value());
}

TEST(Response, DriverInfoSurvivesTheWire) {
  DriverInfo info;
  info.driver_version = "580.159.04";
  info.cuda_version = 13000;
  info.has_checkpoint_api = true;
  info.can_remap_gpus = true;
  info.libcuda = "/usr/lib/libcuda.so.1";
  Gpu gpu;
  gpu.uuid = kUuidA;
  gpu.name = "NVIDIA H200";
  gpu.total_bytes = 150'000'000'000;
  gpu.free_bytes = 1;
  gpu.pci_bus_id = "00000000:19:00.0";
  gpu.compute_major = 9;
  gpu.persistence_mode = true;
  info.gpus = {gpu};
  const Request request = {1, Query::info};
  const auto response = decode_response(encode(Response{1, Answer(info)}), request);
  ASSERT_TRUE(response.ok()) << response.error().message;
  const auto& decoded = std::get<DriverInfo>(*response->answer);
  EXPECT_EQ(decoded.driver_version, "580.159.04");
  EXPECT_EQ(decoded.cuda_version, 13000);
  EXPECT_TRUE(decoded.has_checkpoint_api && decoded.can_remap_gpus);
  ASSERT_EQ(decoded.gpus.size(), 1U);
  EXPECT_EQ(decoded.gpus[0].total_bytes, 150'000'000'000U);
  EXPECT_EQ(decoded.gpus[0].pci_bus_id, "00000000:19:00.0");
  EXPECT_TRUE(decoded.gpus[0].persistence_mode);
  EXPECT_FALSE(decoded.gpus[0].mig_enabled);
}

TEST(Response, ProcessesSurviveTheWire) {
  const std::vector<GpuProcess> processes = {{kUuidA, 12, 4096}, {kUuidB, 13, std::nullopt}};
  const auto response =
      decode_response(encode(Response{2, Answer(processes)}), {2, Query::processes});
  ASSERT_TRUE(response.ok()) << response.error().message;
  const auto& decoded = std::get<std::vector<GpuProcess>>(*response->answer);
  ASSERT_EQ(decoded.size(), 2U);
  EXPECT_EQ(decoded[0].used_bytes, 4096U);
  EXPECT_FALSE(decoded[1].used_bytes.has_value());
}

TEST(Response, ErrorsSurviveTheWireWithAnyBytesAndLength) {
  const std::string text = "driver said \xff\xc3(\x01 " + std::string(10'000, 'x');
  const Response sent = {4, make_error(Code::failed_precondition, text)};
  const auto response = decode_response(encode(sent), {4, Query::init});
  ASSERT_TRUE(response.ok()) << response.error().message;
  ASSERT_FALSE(response->answer.ok());
  EXPECT_EQ(response->answer.error().code, Code::failed_precondition);
  EXPECT_THAT(response->answer.error().message, HasSubstr("driver said"));
}

TEST(Response, MalformedOnesAreRefusedByName) {
  const Request lock = action_request(Operation::lock);
  const std::string first = R"({"pid":101,"start_time":5000000000,"ending":"ok","elapsed_ms":1})";
  const std::string second = R"({"pid":7,"start_time":1,"ending":"ok","elapsed_ms":1})";
  const auto outcomes = [](const std::string& items) {
    return R"({"id":9,"outcomes":[)" + items + "]}";
  };
  EXPECT_TRUE(decode_response(outcomes(first + "," + second), lock).ok());
  const struct {
    std::string payload;
    const char* message;
  } cases[] = {
      {R"({"id":9})", "field outcomes is missing"},
      {R"({"id":8,"outcomes":[]})", "answer to another request"},
      {R"({"id":9,"driver":{}})", "unknown field driver"},
      {R"({"id":9,"error":{"code":"unknown","message":""},"outcomes":[]})", "beside an answer"},
      {R"({"id":9,"error":{"code":"odd","message":""}})", "error.code is no known code"},
      {R"({"id":9,"error":"oops"})", "error is not a JSON object"},
      {outcomes(first), "1 items for 2 targets"},
      {outcomes(second + "," + first), "outcomes[0] is about another process"},
      {outcomes(first + R"(,{"pid":7,"start_time":2,"ending":"ok","elapsed_ms":1})"),
       "outcomes[1] is about another process"},
      {outcomes(first + R"(,{"pid":7,"start_time":1,"ending":"fine","elapsed_ms":1})"),
       "outcomes[1].ending is no known ending"},
      {outcomes(first + R"(,{"pid":7,"start_time":1,"ending":"ok","elapsed_ms":-1})"),
       "outcomes[1].elapsed_ms must be"},
      {outcomes(first +
                R"(,{"pid":7,"start_time":1,"ending":"ok","elapsed_ms":1,"code":2,"name":""})"),
       "only for driver errors"},
      {outcomes(first + R"(,{"pid":7,"start_time":1,"ending":"driver_error","elapsed_ms":1})"),
       "outcomes[1].code is missing"},
      {outcomes(first +
                R"(,{"pid":7,"start_time":1,"ending":"ok","elapsed_ms":1,"state":"asleep"})"),
       "outcomes[1].state is no known state"},
  };
  for (const auto& entry : cases) {
    EXPECT_THAT(refused_response(entry.payload, lock), HasSubstr(entry.message));
  }
}

TEST(Response, ErrorOfAnUnreadableRequestHasIdZero) {
  const auto response = decode_response(
      encode(Response{0, make_error(Code::invalid_argument, "what")}), {5, Query::hello});
  ASSERT_TRUE(response.ok());
  EXPECT_FALSE(response->answer.ok());
}

TEST(Names, AreReadBackAsTheyAreWritten) {
  for (const Ending ending : {Ending::ok, Ending::driver_error, Ending::wrong_state,
                              Ending::no_answer, Ending::refused, Ending::gone}) {
    EXPECT_EQ(parse_ending(to_string(ending)), ending);
  }
  for (const ProcessState state :
       {ProcessState::running, ProcessState::locked, ProcessState::checkpointed,
        ProcessState::failed, ProcessState::busy}) {
    EXPECT_EQ(parse_process_state(to_string(state)), state);
  }
  EXPECT_FALSE(parse_operation("Lock").has_value());
}

TEST(GpuUuid, OnlyWholeGpusHaveOne) {
  const auto bytes = parse_gpu_uuid(kUuidA);
  ASSERT_TRUE(bytes.has_value());
  EXPECT_EQ((*bytes)[0], 0x00);
  EXPECT_EQ((*bytes)[1], 0x11);
  EXPECT_EQ((*bytes)[15], 0xff);
  EXPECT_EQ(parse_gpu_uuid("GPU-00112233-4455-6677-8899-AABBCCDDEEFF"), bytes);
  for (const char* text :
       {"", "GPU-", "MIG-00112233-4455-6677-8899-aabbccddeeff",
        "GPU-00112233-4455-6677-8899-aabbccddeef", "GPU-00112233-4455-6677-8899-aabbccddeefff",
        "GPU-00112233-4455-6677-8899-aabbccddeefg", "GPU-00112233+4455-6677-8899-aabbccddeeff",
        "00112233-4455-6677-8899-aabbccddeeff"}) {
    EXPECT_FALSE(parse_gpu_uuid(text).has_value()) << text;
  }
}

}  // namespace
}  // namespace icebox::cuda::protocol
