// SPDX-License-Identifier: Apache-2.0
#include "shim/runtime/cli_args.h"

#include <initializer_list>

namespace icebox::shim {
namespace {

void append(Argv& argv, std::initializer_list<std::string_view> words) {
  for (const std::string_view word : words) argv.emplace_back(word);
}

// `--name value` if there is a value.
void append_option(Argv& argv, std::string_view name, std::string_view value) {
  if (!value.empty()) append(argv, {name, value});
}

void append_switch(Argv& argv, std::string_view name, bool on) {
  if (on) append(argv, {name});
}

Argv command(const EngineContext& context, std::string_view name) {
  Argv argv;
  append(argv,
         {context.program, "--root", context.root, "--log", context.log, "--log-format", "json"});
  append_switch(argv, "--systemd-cgroup", context.systemd_cgroup);
  append(argv, {name});
  return argv;
}

}  // namespace

Argv create_argv(const EngineContext& context, const CreateArgs& args) {
  Argv argv = command(context, "create");
  append(argv, {"--bundle", args.bundle, "--pid-file", args.pid_file});
  append_option(argv, "--console-socket", args.console_socket);
  append_switch(argv, "--no-pivot", args.no_pivot);
  append_switch(argv, "--no-new-keyring", args.no_new_keyring);
  append(argv, {args.id});
  return argv;
}

Argv start_argv(const EngineContext& context, std::string_view id) {
  Argv argv = command(context, "start");
  append(argv, {id});
  return argv;
}

Argv exec_argv(const EngineContext& context, const ExecArgs& args) {
  Argv argv = command(context, "exec");
  append(argv, {"--process", args.process_file});
  append_option(argv, "--console-socket", args.console_socket);
  append(argv, {"--detach", "--pid-file", args.pid_file, args.id});
  return argv;
}

Argv kill_argv(const EngineContext& context, std::string_view id, int signo, bool all) {
  Argv argv = command(context, "kill");
  append_switch(argv, "--all", all);
  append(argv, {id, std::to_string(signo)});
  return argv;
}

Argv delete_argv(const EngineContext& context, std::string_view id, bool force) {
  Argv argv = command(context, "delete");
  append_switch(argv, "--force", force);
  append(argv, {id});
  return argv;
}

Argv pause_argv(const EngineContext& context, std::string_view id) {
  Argv argv = command(context, "pause");
  append(argv, {id});
  return argv;
}

Argv resume_argv(const EngineContext& context, std::string_view id) {
  Argv argv = command(context, "resume");
  append(argv, {id});
  return argv;
}

Argv update_argv(const EngineContext& context, std::string_view id,
                 std::string_view resources_file) {
  Argv argv = command(context, "update");
  append(argv, {"--resources", resources_file, id});
  return argv;
}

Argv checkpoint_argv(const EngineContext& context, const CheckpointArgs& args) {
  Argv argv = command(context, "checkpoint");
  append(argv, {"--image-path", args.image_path, "--work-path", args.work_path});
  append_option(argv, "--parent-path", args.parent_path);
  append_switch(argv, "--leave-running", !args.exit);
  append_switch(argv, "--tcp-established", args.open_tcp);
  append_switch(argv, "--ext-unix-sk", args.external_unix_sockets);
  append_switch(argv, "--shell-job", args.terminal);
  append_switch(argv, "--file-locks", args.file_locks);
  for (const std::string& name : args.empty_namespaces) append(argv, {"--empty-ns", name});
  append(argv, {args.id});
  return argv;
}

Argv restore_argv(const EngineContext& context, const RestoreArgs& args) {
  Argv argv = command(context, "restore");
  append(argv, {"--image-path", args.image_path, "--work-path", args.work_path, "--bundle",
                args.bundle, "--detach", "--no-subreaper", "--pid-file", args.pid_file});
  append_option(argv, "--console-socket", args.console_socket);
  append_switch(argv, "--no-pivot", args.no_pivot);
  append(argv, {args.id});
  return argv;
}

}  // namespace icebox::shim
