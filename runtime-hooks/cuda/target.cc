// SPDX-License-Identifier: Apache-2.0
#include "runtime-hooks/cuda/target.h"

#include <array>
#include <utility>

namespace icebox::cuda {
namespace {

template <typename Enum, std::size_t kCount>
using Names = std::array<std::pair<Enum, std::string_view>, kCount>;

constexpr Names<ProcessState, 5> kStates = {{{ProcessState::running, "running"},
                                             {ProcessState::locked, "locked"},
                                             {ProcessState::checkpointed, "checkpointed"},
                                             {ProcessState::failed, "failed"},
                                             {ProcessState::busy, "busy"}}};

constexpr Names<Operation, 6> kOperations = {{{Operation::restore_thread, "restore_thread"},
                                              {Operation::state, "state"},
                                              {Operation::lock, "lock"},
                                              {Operation::checkpoint, "checkpoint"},
                                              {Operation::restore, "restore"},
                                              {Operation::unlock, "unlock"}}};

constexpr Names<Ending, 6> kEndings = {{{Ending::ok, "ok"},
                                        {Ending::driver_error, "driver_error"},
                                        {Ending::wrong_state, "wrong_state"},
                                        {Ending::no_answer, "no_answer"},
                                        {Ending::refused, "refused"},
                                        {Ending::gone, "gone"}}};

template <typename Enum, std::size_t kCount>
std::string_view name_of(const Names<Enum, kCount>& names, Enum value) {
  for (const auto& [known, name] : names) {
    if (known == value) return name;
  }
  return "?";
}

template <typename Enum, std::size_t kCount>
std::optional<Enum> value_of(const Names<Enum, kCount>& names, std::string_view text) {
  for (const auto& [known, name] : names) {
    if (name == text) return known;
  }
  return std::nullopt;
}

// Value of a hexadecimal digit; -1 for any other character.
int hex_value(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

}  // namespace

std::string_view to_string(ProcessState state) { return name_of(kStates, state); }
std::optional<ProcessState> parse_process_state(std::string_view text) {
  return value_of(kStates, text);
}

std::string_view to_string(Operation operation) { return name_of(kOperations, operation); }
std::optional<Operation> parse_operation(std::string_view text) {
  return value_of(kOperations, text);
}

std::string_view to_string(Ending ending) { return name_of(kEndings, ending); }
std::optional<Ending> parse_ending(std::string_view text) { return value_of(kEndings, text); }

std::optional<std::array<unsigned char, 16>> parse_gpu_uuid(std::string_view text) {
  constexpr std::string_view kShape = "GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx";
  if (text.size() != kShape.size()) return std::nullopt;
  std::array<unsigned char, 16> bytes = {};
  std::size_t digits = 0;
  for (std::size_t i = 0; i < kShape.size(); ++i) {
    if (kShape[i] != 'x') {
      if (text[i] != kShape[i]) return std::nullopt;
      continue;
    }
    const int value = hex_value(text[i]);
    if (value < 0) return std::nullopt;
    auto& byte = bytes[digits / 2];
    byte = static_cast<unsigned char>(byte << 4 | value);
    ++digits;
  }
  return bytes;
}

}  // namespace icebox::cuda
