// SPDX-License-Identifier: Apache-2.0
#include "shim/runtime/flat_json.h"

#include <cstddef>
#include <utility>

#include <nlohmann/json.hpp>

namespace icebox::shim {
namespace {

using Json = nlohmann::json;
using Visitor = std::function<void(std::string_view, FlatValue)>;

class Scanner final : public nlohmann::json_sax<Json> {
 public:
  explicit Scanner(const Visitor& visit) : visit_(visit) {}

  [[nodiscard]] const std::string& error() const { return error_; }

  bool null() override { return true; }
  bool boolean(bool value) override { return emit(value); }
  bool number_integer(number_integer_t /*value*/) override { return true; }
  bool number_unsigned(number_unsigned_t value) override { return emit(std::uint64_t{value}); }
  bool number_float(number_float_t /*value*/, const string_t& /*text*/) override { return true; }
  bool binary(binary_t& /*value*/) override { return true; }
  bool string(string_t& value) override { return emit(std::move(value)); }
  bool key(string_t& value) override {
    if (open_ == "{") key_ = std::move(value);
    return true;
  }
  bool start_object(std::size_t /*elements*/) override { return enter('{'); }
  bool end_object() override { return leave(); }
  bool start_array(std::size_t /*elements*/) override { return enter('['); }
  bool end_array() override { return leave(); }
  bool parse_error(std::size_t /*position*/, const std::string& /*last_token*/,
                   const nlohmann::detail::exception& error) override {
    error_ = error.what();
    return false;
  }

 private:
  bool emit(FlatValue value) {
    if (open_ == "{") visit_(key_, std::move(value));
    return true;
  }
  bool enter(char bracket) {
    open_.push_back(bracket);
    return true;
  }
  bool leave() {
    open_.pop_back();
    return true;
  }

  const Visitor& visit_;
  std::string open_;  // the brackets around the current value: "{" is the outermost object
  std::string key_;
  std::string error_;
};

}  // namespace

Result<void> for_each_member(std::string_view json, const Visitor& visit) {
  Scanner scanner(visit);
  if (!Json::sax_parse(json.begin(), json.end(), &scanner)) {
    return make_error(Code::invalid_argument, "malformed JSON: " + scanner.error());
  }
  return {};
}

}  // namespace icebox::shim
