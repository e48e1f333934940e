// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "oci/base/result.h"

namespace icebox::fake {

// What the fake runtime keeps of one container, in <root>/<id>.
struct Record {
  pid_t pid = 0;
  bool started = false;
  bool paused = false;
};

Result<Record> load(const std::string& directory);
Result<void> save(const std::string& directory, const Record& record);

// A process to run on this machine, without any isolation.
struct Process {
  std::vector<std::string> args;
  std::string console_socket;  // "" = keep the stdio of the runtime's command
  std::string gate;            // FIFO to read one byte from before the exec, "" = none
  int exit_at_once = -1;       // >= 0: the process ends with this code and never runs args
};

// Starts it as the leader of a session of its own, as a child that outlives this program.
Result<pid_t> launch(const Process& process);

// The args of an OCI process or of the process in a config.json.
Result<std::vector<std::string>> process_args(const std::string& file);

// Whether `pid` lives (a zombie does not).
bool alive(pid_t pid);

}  // namespace icebox::fake
