// SPDX-License-Identifier: Apache-2.0
#include "shim/runtime/bundle_config.h"

#include <cstddef>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "oci/base/file.h"
#include "oci/base/strings.h"

namespace icebox::shim {
namespace {

using Json = nlohmann::json;

constexpr std::size_t kMaxConfigBytes = 16UL << 20;

// Receives the parser's events and keeps only what BundleConfig names. `path_` holds the keys that
// lead to the current value; an array contributes the element "[]".
class ConfigScanner final : public nlohmann::json_sax<Json> {
 public:
  explicit ConfigScanner(BundleConfig& config) : config_(config) {}

  [[nodiscard]] const std::string& error() const { return error_; }

  bool null() override { return scalar(); }
  bool boolean(bool /*value*/) override { return scalar(); }
  bool number_integer(number_integer_t /*value*/) override { return scalar(); }
  bool number_unsigned(number_unsigned_t /*value*/) override { return scalar(); }
  bool number_float(number_float_t /*value*/, const string_t& /*text*/) override {
    return scalar();
  }
  bool binary(binary_t& /*value*/) override { return scalar(); }
  bool string(string_t& value) override {
    if (std::string* wanted = target()) *wanted = std::move(value);
    return scalar();
  }

  bool key(string_t& value) override {
    key_ = std::move(value);
    return true;
  }
  bool start_object(std::size_t /*elements*/) override {
    path_.push_back(std::exchange(key_, {}));
    if (in_namespace()) namespace_type_.clear(), namespace_path_.clear();
    return true;
  }
  bool end_object() override {
    if (in_namespace() && namespace_type_ == "pid" && namespace_path_.empty()) {
      config_.private_pid_namespace = true;
    }
    return leave();
  }
  bool start_array(std::size_t /*elements*/) override {
    path_.push_back(std::exchange(key_, {}));
    return true;
  }
  bool end_array() override { return leave(); }

  bool parse_error(std::size_t /*position*/, const std::string& /*last_token*/,
                   const nlohmann::detail::exception& error) override {
    error_ = error.what();
    return false;
  }

 private:
  bool scalar() {
    key_.clear();
    return true;
  }
  bool leave() {
    path_.pop_back();
    key_.clear();
    return true;
  }

  // The document itself is path_[0] == "", so that a top-level key is at depth 1.
  [[nodiscard]] bool in(const char* a) const { return path_.size() == 2 && path_[1] == a; }
  [[nodiscard]] bool in_namespace() const {
    return path_.size() == 4 && path_[1] == "linux" && path_[2] == "namespaces";
  }

  std::string* target() {
    if (in("annotations")) {
      if (key_ == "io.containerd.runc.v2.group") return &config_.shim_group;
      if (key_ == "io.kubernetes.cri.sandbox-id") return &config_.cri_sandbox_id;
    } else if (in("linux")) {
      if (key_ == "cgroupsPath") return &config_.cgroups_path;
    } else if (in("root")) {
      if (key_ == "path") return &config_.root_path;
    } else if (in_namespace()) {
      if (key_ == "type") return &namespace_type_;
      if (key_ == "path") return &namespace_path_;
    }
    return nullptr;
  }

  BundleConfig& config_;
  std::vector<std::string> path_;
  std::string key_;
  std::string namespace_type_;
  std::string namespace_path_;
  std::string error_;
};

}  // namespace

Result<BundleConfig> parse_bundle_config(std::string_view json) {
  BundleConfig config;
  ConfigScanner scanner(config);
  if (!Json::sax_parse(json.begin(), json.end(), &scanner)) {
    return make_error(Code::invalid_argument, "config.json is not valid JSON: " + scanner.error());
  }
  return config;
}

Result<BundleConfig> read_bundle_config(const std::string& bundle) {
  const std::string text = ICEBOX_TRY(read_file(bundle + "/config.json", kMaxConfigBytes));
  return parse_bundle_config(text).context(bundle);
}

bool is_systemd_cgroups_path(std::string_view path) {
  return split(path, ':', SplitEmpty::keep).size() == 3 && path.find('/') == std::string_view::npos;
}

}  // namespace icebox::shim
