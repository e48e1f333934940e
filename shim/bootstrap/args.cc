// SPDX-License-Identifier: Apache-2.0
#include "shim/bootstrap/args.h"

#include <optional>
#include <string_view>

namespace icebox::shim {
namespace {

std::string* string_flag(Args& args, std::string_view name) {
  if (name == "namespace") return &args.ns;
  if (name == "id") return &args.id;
  if (name == "address") return &args.address;
  if (name == "publish-binary") return &args.publish_binary;
  if (name == "bundle") return &args.bundle;
  if (name == "socket") return &args.socket;
  return nullptr;
}

bool* bool_flag(Args& args, std::string_view name) {
  if (name == "debug") return &args.debug;
  if (name == "v" || name == "version") return &args.version;
  if (name == "info") return &args.info;
  return nullptr;
}

// What Go's strconv.ParseBool accepts.
std::optional<bool> parse_bool(std::string_view text) {
  for (const std::string_view yes : {"1", "t", "T", "true", "TRUE", "True"}) {
    if (text == yes) return true;
  }
  for (const std::string_view no : {"0", "f", "F", "false", "FALSE", "False"}) {
    if (text == no) return false;
  }
  return std::nullopt;
}

}  // namespace

Result<Args> parse_args(int argc, const char* const* argv) {
  Args args;
  int i = 1;
  for (; i < argc; ++i) {
    std::string_view word = argv[i];
    if (word.size() < 2 || word.front() != '-') break;
    word.remove_prefix(word.starts_with("--") ? 2 : 1);
    if (word.empty()) {  // "--": flags end here
      ++i;
      break;
    }
    std::optional<std::string_view> attached;
    if (const std::size_t equals = word.find('='); equals != std::string_view::npos) {
      attached = word.substr(equals + 1);
      word = word.substr(0, equals);
    }

    if (bool* flag = bool_flag(args, word)) {
      const std::optional<bool> value = parse_bool(attached.value_or("true"));
      if (!value) {
        return make_error(
            Code::invalid_argument,
            "invalid boolean value for -" + std::string(word) + ": " + std::string(*attached));
      }
      *flag = *value;
      continue;
    }
    std::string ignored;
    std::string* flag = string_flag(args, word);
    if (word == "debug-socket") flag = &ignored;  // containerd 2.x: a profiler we do not have
    if (flag == nullptr) continue;
    if (!attached) {
      if (i + 1 >= argc) {
        return make_error(Code::invalid_argument, "flag needs an argument: -" + std::string(word));
      }
      attached = argv[++i];
    }
    *flag = std::string(*attached);
  }
  if (i < argc) args.action = argv[i];
  return args;
}

}  // namespace icebox::shim
