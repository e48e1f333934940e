// SPDX-License-Identifier: Apache-2.0
#include "shim/bootstrap/start_input.h"

#include <utility>

#include "containerd/bootstrap.pb.h"

namespace icebox::shim {
namespace {

namespace bootstrap = containerd::runtime::bootstrap::v1;

Result<StartInput> from_params(const bootstrap::BootstrapParams& params) {
  StartInput input;
  if (params.has_socket_dir() && !params.socket_dir().empty()) {
    input.socket_dir = params.socket_dir();
  }
  input.debug = static_cast<int>(params.log_level()) < static_cast<int>(bootstrap::LOG_LEVEL_INFO);
  for (const bootstrap::Extension& extension : params.extensions()) {
    const google::protobuf::Any& any = extension.value();
    if (has_type(any, "containerd.runc.v1.Options") ||
        has_type(any, "containerd.linux.runc.CreateOptions")) {
      input.options = ICEBOX_TRY(decode_runtime_options(any));
    }
  }
  return input;
}

}  // namespace

Result<StartInput> decode_start_input(std::string_view data, std::string_view id,
                                      std::string_view ns) {
  if (data.empty()) return StartInput{};
  const int size = static_cast<int>(data.size());
  bootstrap::BootstrapParams params;
  if (params.ParseFromArray(data.data(), size) && params.instance_id() == id &&
      params.namespace_() == ns) {
    return from_params(params);
  }
  google::protobuf::Any any;
  if (!any.ParseFromArray(data.data(), size)) {
    return make_error(Code::invalid_argument,
                      "standard input is neither runtime options nor bootstrap parameters");
  }
  StartInput input;
  input.options = ICEBOX_TRY(decode_runtime_options(any));
  return input;
}

}  // namespace icebox::shim
