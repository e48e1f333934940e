// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

#include "oci/base/result.h"

namespace icebox::shim {

// The few facts the shim needs from a bundle's config.json.
struct BundleConfig {
  std::string shim_group;      // annotation io.containerd.runc.v2.group, "" if absent
  std::string cri_sandbox_id;  // annotation io.kubernetes.cri.sandbox-id, "" if absent
  std::string cgroups_path;    // linux.cgroupsPath, "" if absent
  std::string root_path;       // root.path as written: absolute, or relative to the bundle
  // linux.namespaces has a pid entry without a path: the container's processes die with init.
  // Otherwise (host's or another container's pid namespace) they have to be killed one by one.
  bool private_pid_namespace = false;
};

// Reads the facts out of `json` in one pass without building a document: a config.json of 19 kB
// would otherwise cost the daemon 100 kB for good. Unknown keys are skipped at any depth.
// Fails on malformed JSON, with the parser's words.
[[nodiscard]] Result<BundleConfig> parse_bundle_config(std::string_view json);

// parse_bundle_config of `<bundle>/config.json` (at most 16 MiB). A missing file is an error with
// errno ENOENT.
[[nodiscard]] Result<BundleConfig> read_bundle_config(const std::string& bundle);

// True for a cgroupsPath in runc's systemd notation, "slice:prefix:name". Clients that cannot pass
// options to a runtime with a private name (nerdctl) still write it.
[[nodiscard]] bool is_systemd_cgroups_path(std::string_view path);

}  // namespace icebox::shim
