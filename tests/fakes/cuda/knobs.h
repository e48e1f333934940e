// SPDX-License-Identifier: Apache-2.0
//
// Knobs: a file of "key=value" lines that makes the simulated driver of one process misbehave in
// the ways that real ones have been seen to (README.md has the list). Read by the restore thread at
// each operation, so it may be changed while the process runs. Nothing here allocates: the other
// threads of the process may be stopped while they hold the allocator's lock.
#pragma once

#include <cstddef>

namespace icebox::sim {

/// What an operation does instead of succeeding.
enum class Trouble {
  none,
  error,          // answer `value`, change nothing
  busy,           // lock: submitted work never drains
  hang,           // do not answer until the knob is taken away
  needs_threads,  // checkpoint, restore: do not answer while a tracer holds the first thread
  crash,          // lock: the process dies of SIGSEGV
  die,            // checkpoint: the process dies of SIGKILL, and the caller gets an error
  die_hang,       // checkpoint: likewise, and the caller's call never returns
  then_failed,    // checkpoint: an error, and the state is FAILED from then on
  oom_sticky,     // restore: out of memory, and every later restore answers 304
  slow,           // take `value` milliseconds longer
};

/// One operation's knob.
struct Knob {
  Trouble trouble = Trouble::none;
  int value = 0;
};

/// All knobs of a process.
struct Knobs {
  Knob lock;
  Knob checkpoint;
  Knob restore;
  Knob unlock;
  int state = -1;         // what GetState answers; -1: the truth
  bool leave_fd = false;  // the device fd stays open after Checkpoint
  char log[256] = "";     // a line per operation is appended to this file
};

/// Reads `size` bytes of knob lines into `knobs`. Returns nullptr, or the start of the first line
/// that means nothing.
const char* parse_knobs(const char* text, std::size_t size, Knobs& knobs);

/// Reads the file at `path` ("" or an absent file: no knobs). A line that means nothing ends the
/// process with a message: a test with a typing error must not pass.
Knobs read_knobs(const char* path);

}  // namespace icebox::sim
