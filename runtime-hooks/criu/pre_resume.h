// SPDX-License-Identifier: Apache-2.0
//
// The CRIU action script of a restore with GPU state. runc puts CRIU itself into the container's cgroup, so freezing the
// cgroup from outside while CRIU works would freeze CRIU too, for ever. CRIU runs action scripts at fixed points
// (criu(8), --action-script; environment CRTOOLS_*): at "pre-resume", when every task is restored but none has run a user
// instruction, this one moves CRIU and itself out of the container's cgroup and asks for the freeze, so that the tree
// comes back frozen. CRIU calls scripts twice where a configuration is read twice: doing it again is harmless.
#pragma once

#include <string>

#include "oci/base/result.h"

namespace icebox::criu {

// Base name under which icebox-runc acts as the script (CRIU passes no arguments).
inline constexpr const char* kPreResumeName = "icebox-pre-resume";
// Environment variable: the cgroup directory that CRIU is moved to.
inline constexpr const char* kPreResumeHome = "ICEBOX_PRE_RESUME_HOME";

// main() of the script. Returns its exit status: CRIU fails the restore on anything but 0.
int pre_resume_main();

// Writes `folder`/criu.conf with the action script (a link to this program, also made in `folder`); returns its path.
Result<std::string> write_restore_config(const std::string& folder);

}  // namespace icebox::criu
