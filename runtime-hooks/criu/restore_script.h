// SPDX-License-Identifier: Apache-2.0
//
// The CRIU action script of a restore. CRIU runs it at fixed points (criu(8), --action-script;
// environment CRTOOLS_*):
//
// - "post-setup-namespaces": the namespaces are there, no task yet. runc has the network namespace
// made anew and leaves
//   its loopback down, which a started container never sees: the script brings it up.
// - "pre-resume": every task is restored but none has run a user instruction. For a container with
// GPU state the script
//   moves CRIU (which runc put into the container's cgroup) and itself out of that cgroup and asks
//   for the freeze, so that the tree comes back frozen. Freezing it from outside while CRIU works
//   would freeze CRIU too, for ever.
//
// CRIU calls a script twice where a configuration is read twice: doing it again is harmless. It
// also ignores a script that fails at "pre-resume", so the outcome is left in a file for the
// engine.
#pragma once

#include <string>

#include "oci/base/result.h"

namespace icebox::criu {

// Base name under which icebox-runc acts as the script (CRIU passes no arguments).
inline constexpr const char* kScriptName = "icebox-restore-script";

struct RestoreScript {
  std::string folder;  // of this restore alone; holds the script, its settings and its result
  std::string
      freeze_home;  // cgroup directory that CRIU is moved to; empty: nothing is to be frozen
  std::string cgroup_root;  // CRIU's --cgroup-root, "[controller]:/path", for the restored tree;
                            // empty: as dumped
};

// main() of the script; `program` is argv[0], a link in RestoreScript::folder. Returns its exit
// status.
int restore_script_main(const std::string& program);

// Writes the script (a link to this program), its settings, and `folder`/criu.conf that names it;
// returns the path of the latter, for CRIU_CONFIG_FILE.
Result<std::string> write_restore_config(const RestoreScript& script);

// After a restore that CRIU calls a success: whether the script did its part. Error: what it said.
Result<void> restore_script_result(const RestoreScript& script);

}  // namespace icebox::criu
