// SPDX-License-Identifier: Apache-2.0
#include "shim/runtime/options.h"

#include <utility>

#include "containerd/linux_runc.pb.h"
#include "containerd/runc_options.pb.h"
#include "oci/base/log.h"
#include "shim/runtime/flat_json.h"

namespace icebox::shim {
namespace {

Error malformed(const google::protobuf::Any& any) {
  return make_error(Code::invalid_argument, "malformed options of type " + any.type_url());
}

template <typename Message>
RuntimeOptions common_options(const Message& message) {
  RuntimeOptions options;
  options.no_pivot_root = message.no_pivot_root();
  options.no_new_keyring = message.no_new_keyring();
  options.shim_cgroup = message.shim_cgroup();
  options.io_uid = message.io_uid();
  options.io_gid = message.io_gid();
  options.criu_image_path = message.criu_image_path();
  options.criu_work_path = message.criu_work_path();
  return options;
}

template <typename Message>
CheckpointOptions checkpoint_options(const Message& message) {
  CheckpointOptions options;
  options.args.exit = message.exit();
  options.args.open_tcp = message.open_tcp();
  options.args.external_unix_sockets = message.external_unix_sockets();
  options.args.terminal = message.terminal();
  options.args.file_locks = message.file_locks();
  options.args.empty_namespaces.assign(message.empty_namespaces().begin(),
                                       message.empty_namespaces().end());
  options.args.work_path = message.work_path();
  options.image_path = message.image_path();
  return options;
}

bool is_absent(const google::protobuf::Any& any) {
  return any.type_url().empty() || any.value().empty();
}

}  // namespace

bool has_type(const google::protobuf::Any& any, std::string_view full_name) {
  const std::string_view url = any.type_url();
  const std::size_t slash = url.rfind('/');
  return (slash == std::string_view::npos ? url : url.substr(slash + 1)) == full_name;
}

Result<RuntimeOptions> decode_runtime_options(const google::protobuf::Any& any) {
  if (is_absent(any)) return RuntimeOptions{};
  if (has_type(any, "containerd.runc.v1.Options")) {
    containerd::runc::v1::Options message;
    if (!message.ParseFromString(any.value())) return malformed(any);
    RuntimeOptions options = common_options(message);
    options.systemd_cgroup = message.systemd_cgroup();
    options.binary_name = message.binary_name();
    options.root = message.root();
    return options;
  }
  if (has_type(any, "containerd.linux.runc.CreateOptions")) {
    containerd::linux::runc::CreateOptions message;
    if (!message.ParseFromString(any.value())) return malformed(any);
    return common_options(message);
  }
  log::warn("ignoring task options of an unknown type", {{"type", any.type_url()}});
  return RuntimeOptions{};
}

Result<CheckpointOptions> decode_checkpoint_options(const google::protobuf::Any& any) {
  if (is_absent(any)) return CheckpointOptions{};
  if (has_type(any, "containerd.runc.v1.CheckpointOptions")) {
    containerd::runc::v1::CheckpointOptions message;
    if (!message.ParseFromString(any.value())) return malformed(any);
    CheckpointOptions options = checkpoint_options(message);
    options.args.parent_path = message.parent_path();
    return options;
  }
  if (has_type(any, "containerd.linux.runc.CheckpointOptions")) {
    containerd::linux::runc::CheckpointOptions message;
    if (!message.ParseFromString(any.value())) return malformed(any);
    return checkpoint_options(message);
  }
  log::warn("ignoring checkpoint options of an unknown type", {{"type", any.type_url()}});
  return CheckpointOptions{};
}

std::string options_to_json(const RuntimeOptions& options) {
  std::string json;
  const auto add = [&](std::string_view key, const std::string& value) {
    json += (json.empty() ? "" : ",") + log::json_quote(key) + ":" + value;
  };
  if (options.no_pivot_root) add("no_pivot_root", "true");
  if (options.no_new_keyring) add("no_new_keyring", "true");
  if (!options.shim_cgroup.empty()) add("shim_cgroup", log::json_quote(options.shim_cgroup));
  if (options.io_uid != 0) add("io_uid", std::to_string(options.io_uid));
  if (options.io_gid != 0) add("io_gid", std::to_string(options.io_gid));
  if (!options.binary_name.empty()) add("binary_name", log::json_quote(options.binary_name));
  if (!options.root.empty()) add("root", log::json_quote(options.root));
  if (options.systemd_cgroup) add("systemd_cgroup", "true");
  if (!options.criu_image_path.empty()) {
    add("criu_image_path", log::json_quote(options.criu_image_path));
  }
  if (!options.criu_work_path.empty()) {
    add("criu_work_path", log::json_quote(options.criu_work_path));
  }
  return "{" + json + "}";
}

Result<RuntimeOptions> options_from_json(std::string_view json) {
  RuntimeOptions options;
  ICEBOX_TRY(for_each_member(json, [&](std::string_view key, FlatValue value) {
               if (const bool* flag = std::get_if<bool>(&value)) {
                 if (key == "no_pivot_root") options.no_pivot_root = *flag;
                 if (key == "no_new_keyring") options.no_new_keyring = *flag;
                 if (key == "systemd_cgroup") options.systemd_cgroup = *flag;
               } else if (const std::uint64_t* number = std::get_if<std::uint64_t>(&value)) {
                 if (key == "io_uid") options.io_uid = static_cast<std::uint32_t>(*number);
                 if (key == "io_gid") options.io_gid = static_cast<std::uint32_t>(*number);
               } else if (std::string* text = std::get_if<std::string>(&value)) {
                 if (key == "shim_cgroup") options.shim_cgroup = std::move(*text);
                 if (key == "binary_name") options.binary_name = std::move(*text);
                 if (key == "root") options.root = std::move(*text);
                 if (key == "criu_image_path") options.criu_image_path = std::move(*text);
                 if (key == "criu_work_path") options.criu_work_path = std::move(*text);
               }
             }).context("options.json"));
  return options;
}

}  // namespace icebox::shim
