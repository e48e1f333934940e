// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace icebox::shim {

using Argv = std::vector<std::string>;

// What every engine command line begins with (shim contract, 4.2).
struct EngineContext {
  std::string program;          // icebox-runc
  std::string root;             // --root: the OCI runtime's state directory of this namespace
  std::string log;              // --log: where the engine puts its JSON lines
  bool systemd_cgroup = false;  // --systemd-cgroup
};

struct CreateArgs {
  std::string id;
  std::string bundle;
  std::string pid_file;
  std::string console_socket;  // "" = no terminal
  bool no_pivot = false;
  bool no_new_keyring = false;
};

struct ExecArgs {
  std::string id;
  std::string process_file;  // OCI process JSON
  std::string pid_file;
  std::string console_socket;  // "" = no terminal
};

// CheckpointOptions as containerd sends them; all false = leave running, nothing special.
struct CheckpointArgs {
  std::string id;
  std::string image_path;
  std::string work_path;
  std::string parent_path;  // relative to image_path, "" = none
  bool exit = false;        // false: --leave-running
  bool open_tcp = false;
  bool external_unix_sockets = false;
  bool terminal = false;
  bool file_locks = false;
  std::vector<std::string> empty_namespaces;
};

struct RestoreArgs {
  std::string id;
  std::string bundle;
  std::string image_path;
  std::string work_path;
  std::string pid_file;
  std::string console_socket;  // "" = no terminal
  bool no_pivot = false;
};

// Command lines of the engine. Pure. Each function gives the whole argv of one command.
[[nodiscard]] Argv create_argv(const EngineContext& context, const CreateArgs& args);
[[nodiscard]] Argv start_argv(const EngineContext& context, std::string_view id);
[[nodiscard]] Argv exec_argv(const EngineContext& context, const ExecArgs& args);
[[nodiscard]] Argv kill_argv(const EngineContext& context, std::string_view id, int signo,
                             bool all);
[[nodiscard]] Argv delete_argv(const EngineContext& context, std::string_view id, bool force);
[[nodiscard]] Argv pause_argv(const EngineContext& context, std::string_view id);
[[nodiscard]] Argv resume_argv(const EngineContext& context, std::string_view id);
[[nodiscard]] Argv update_argv(const EngineContext& context, std::string_view id,
                               std::string_view resources_file);
[[nodiscard]] Argv checkpoint_argv(const EngineContext& context, const CheckpointArgs& args);
[[nodiscard]] Argv restore_argv(const EngineContext& context, const RestoreArgs& args);

}  // namespace icebox::shim
