// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "oci/base/result.h"

// Fault points: named places where a test can make the program fail, hang, die or leave a step out.
// A product program links icebox_fault_off, in which every point is an empty function; only test
// builds link icebox_fault_on, which reads the file named by $ICEBOX_FAULT_FILE (lines "<point>
// <action>") each time a point is reached.
namespace icebox::fault {

// Reached a point. Actions: `fail` returns an Error naming the point; `kill` ends this process by
// SIGKILL; `hang` blocks until the line is gone from the file; `sleep:<ms>` waits. Without a
// matching line: success at once.
Result<void> reach(const char* point);

// Whether the step named `point` is to be left out (action `skip`). False in product programs.
bool skipped(const char* point);

}  // namespace icebox::fault
