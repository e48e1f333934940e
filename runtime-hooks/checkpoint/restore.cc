// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <thread>

#include <nlohmann/json.hpp>

#include "oci/base/fault.h"
#include "oci/base/file.h"
#include "oci/base/log.h"
#include "oci/base/strings.h"
#include "oci/checkpoint.h"
#include "oci/spec.h"
#include "runtime-hooks/checkpoint/compatibility.h"
#include "runtime-hooks/checkpoint/gpu_hold.h"
#include "runtime-hooks/checkpoint/operations.h"
#include "runtime-hooks/checkpoint/rollback.h"
#include "runtime-hooks/criu/criu.h"
#include "runtime-hooks/criu/restore_script.h"

namespace icebox::engine {
namespace {

constexpr std::size_t kMaxSpec = 16 * 1024 * 1024;
constexpr std::size_t kMaxLog = 64 * 1024 * 1024;

// Everything that one restore is about.
struct Restoring {
  Session& session;
  const CommandArgs& args;
  std::string directory{};
  std::string bundle{};
  std::string work{};
  CheckpointDirectory checkpoint{};
  criu::Criu criu{};
  std::vector<cuda::GpuPair> gpu_map{};
  std::string cgroup_root{};      // CRIU's --cgroup-root (v2), empty: the runtime tells it
  std::string spec_afterwards{};  // config.json for the life after the restore
  SpecMemory memory_before{};     // what it says of memory
  bool memory_raised = false;     // for the restore

  [[nodiscard]] bool has_gpu() const { return !checkpoint.info.processes.empty(); }
};

// Can this host take the checkpoint? Nothing has been started yet.
Result<void> check_host(Restoring& restoring) {
  if (restoring.checkpoint.plain) return {};
  auto host = ICEBOX_TRY(read_host_facts());
  host.criu = restoring.criu.version;
  if (restoring.has_gpu()) {
    auto* agent = ICEBOX_TRY(restoring.session.agent());
    ICEBOX_TRY(agent->init());
    host.driver = ICEBOX_TRY(agent->info());
  }
  const auto reasons = incompatibilities(restoring.checkpoint.info, host);
  if (!reasons.empty()) {
    return make_error(Code::failed_precondition,
                      "the checkpoint does not fit this host: " + join(reasons, "; "));
  }
  if (host.driver)
    restoring.gpu_map = ICEBOX_TRY(plan_gpu_map(restoring.checkpoint.info, *host.driver));
  return {};
}

// runc tells CRIU the new cgroup on v1 only; on v2 CRIU would put the tree where it was dumped. The
// empty controller name before the colon is the unified hierarchy's: v1 hierarchies that exist
// beside it stay as they are.
Result<void> place_tree(Restoring& restoring, const std::string& cgroups_path) {
  if (!container::unified_hierarchy()) return {};
  const auto path = unified_cgroup_path(cgroups_path);
  if (path.empty()) {
    return make_error(Code::failed_precondition,
                      restoring.bundle + "/config.json: linux.cgroupsPath is '" + cgroups_path +
                          "', but a restore on cgroup v2 needs to be told where: give an absolute "
                          "path or slice:prefix:name");
  }
  restoring.cgroup_root = ":" + path;
  return {};
}

// The bundle's config.json as the restore needs it: a cgroup of its own, and room for the GPU state
// that is part of the processes' memory until the driver has taken it.
Result<void> prepare_spec(Restoring& restoring) {
  const std::string path = restoring.bundle + "/config.json";
  const auto text = ICEBOX_TRY(read_file(path, kMaxSpec));
  auto spec = ICEBOX_TRY(parse_json(text, path));
  const CheckpointInfo& info = restoring.checkpoint.info;
  const auto moved = rewritten_cgroups_path(spec_cgroups_path(spec), info.cgroups_path,
                                            info.container_id, restoring.session.id());
  if (moved) ICEBOX_TRY(set_spec_cgroups_path(spec, *moved));
  ICEBOX_TRY(place_tree(restoring, spec_cgroups_path(spec)));
  // The new cgroup stays: it is where the restored container lives. The memory does not.
  restoring.spec_afterwards = moved ? json_text(spec) : text;
  restoring.memory_before = spec_memory(spec);
  const std::uint64_t extra = info.gpu_bytes() + info.gpu_bytes() / 10;
  restoring.memory_raised = extra > 0 && raise_spec_memory(spec, extra);
  if (!moved && !restoring.memory_raised) return {};
  Journal& journal = restoring.session.journal();
  journal.bundle = restoring.bundle;
  journal.original_spec = restoring.session.state().path("config.json");
  ICEBOX_TRY(write_file_atomic(journal.original_spec, text, 0600, Durable::no));
  ICEBOX_TRY(restoring.session.save());
  return write_file_atomic(path, json_text(spec), 0600, Durable::no);
}

// The caller's own words, plus the dump options that it does not give.
std::vector<std::string> runtime_arguments(const Restoring& restoring) {
  std::vector<std::string> arguments = {"restore"};
  for (const auto& option : restoring.args.options) {
    if (option.name == "image-path" || option.name == "work-path" ||
        option.name == "manage-cgroups-mode")
      continue;
    arguments.push_back("--" + option.name);
    if (option.value) arguments.push_back(*option.value);
  }
  const auto& recorded = restoring.checkpoint.info.dump_options;
  for (std::size_t i = 0; i < recorded.size(); ++i) {
    if (!recorded[i].starts_with("--")) continue;
    const bool with_value = i + 1 < recorded.size() && !recorded[i + 1].starts_with("--");
    if (restoring.args.has(std::string_view(recorded[i]).substr(2))) continue;
    arguments.push_back(recorded[i]);
    if (with_value) arguments.push_back(recorded[i + 1]);
  }
  for (const std::string& word :
       {std::string("--image-path"), restoring.directory, std::string("--work-path"),
        restoring.work, restoring.session.id()}) {
    arguments.push_back(word);
  }
  return arguments;
}

// Why CRIU failed, and where its whole log is. A log in the engine's own directory goes away with
// the container's state, so it is kept in the bundle.
std::string reason_of(const Restoring& restoring, const Error& runtime_error) {
  std::string log_file = restoring.work + "/restore.log";
  auto reason = criu::last_error(log_file);
  if (reason.empty()) reason = runtime_error.message;
  const auto log_text = read_file(log_file, kMaxLog);
  if (!log_text.ok()) return reason;
  if (!restoring.args.has("work-path")) {
    log_file = restoring.bundle + "/criu-restore.log";
    const auto kept = write_file_atomic(log_file, *log_text, 0600, Durable::no);
    if (!kept.ok()) return reason;
  }
  return reason + " (full log: " + log_file + ")";
}

Result<void> run_criu(Restoring& restoring) {
  Session& session = restoring.session;
  const auto empty = ICEBOX_TRY(session.scratch("no-plugins"));
  Command command;
  command.argv = runtime_arguments(restoring);
  criu::RestoreScript script;
  script.folder = ICEBOX_TRY(session.scratch("restore"));
  if (restoring.has_gpu())
    script.freeze_home = ICEBOX_TRY(container::Cgroup::freezer_directory_of(::getpid()));
  script.cgroup_root = restoring.cgroup_root;
  const auto config = ICEBOX_TRY(criu::write_restore_config(script));
  command.env = criu::runtime_environment(restoring.criu, empty, config);
  // The runtime hands its own standard streams to the container.
  command.inherit_stdio = true;
  // A killed `runc restore` leaves its mounts behind, and its `delete --force` would then empty the
  // root file system: in a mount namespace of their own they end with it.
  command.private_mounts = true;
  const auto output = session.engine().runtime.run(command, {});
  if (output.ok()) return criu::restore_script_result(script);
  return make_error(Code::unknown, "CRIU could not restore the container: " +
                                       reason_of(restoring, output.error()));
}

// Host pids of the checkpoint's CUDA processes in the restored tree.
Result<std::vector<cuda::Target>> find_targets(const Restoring& restoring,
                                               const ContainerView& view) {
  const auto pids = ICEBOX_TRY(view.cgroup.processes());
  const auto processes = ICEBOX_TRY(container::read_processes(pids));
  const std::size_t depth = view.init.ns_pids.size();
  std::vector<cuda::Target> targets;
  for (const auto& wanted : restoring.checkpoint.info.processes) {
    const auto found =
        std::find_if(processes.begin(), processes.end(), [&](const container::Process& process) {
          return process.ns_pids.size() + 1 == depth + wanted.ns_pids.size() &&
                 std::equal(wanted.ns_pids.begin(), wanted.ns_pids.end(),
                            process.ns_pids.begin() + static_cast<std::ptrdiff_t>(depth - 1));
        });
    if (found == processes.end()) {
      return make_error(Code::failed_precondition,
                        "the restored container lacks the CUDA process " +
                            std::to_string(wanted.ns_pids.back()) + " (" + wanted.command_line +
                            ")");
    }
    targets.push_back({found->pid, found->start_time});
  }
  return targets;
}

// The memory limit as the spec had it. The workload runs by now: a limit that cannot be put back is
// worth a loud line, not its death.
void put_limit_back(Restoring& restoring) {
  if (!restoring.memory_raised) return;
  Session& session = restoring.session;
  std::vector<std::string> arguments = {"update"};
  if (restoring.memory_before.limit) {
    arguments.insert(arguments.end(), {"--memory", std::to_string(*restoring.memory_before.limit)});
  }
  if (restoring.memory_before.swap) {
    arguments.insert(arguments.end(),
                     {"--memory-swap", std::to_string(*restoring.memory_before.swap)});
  }
  arguments.push_back(session.id());
  Result<void> done = Error{};
  for (int attempt = 0; attempt < 20 && !done.ok(); ++attempt) {
    const auto output = session.engine().runtime.run({.argv = arguments}, {});
    done = output.ok() ? Result<void>() : Result<void>(output.error());
    if (!done.ok())
      std::this_thread::sleep_for(
          std::chrono::milliseconds(100));  // uncharging lags behind unmapping
  }
  if (done.ok()) {
    const auto written = write_file_atomic(restoring.bundle + "/config.json",
                                           restoring.spec_afterwards, 0600, Durable::no);
    if (!written.ok()) done = written.error();
  }
  if (done.ok()) return;
  log::error(
      "the memory limit of the restored container could not be put back: set it with an update",
      {{"id", session.id()}, {"error", done.error().message}});
}

// A checkpoint without its icebox.json, or with less in it than there was, must not come back as if
// it were complete: CUDA of the processes that it does not name would stay suspended for ever.
Result<void> check_none_forgotten(Session& session, const ContainerView& view) {
  std::vector<cuda::Target> others = targets_in(ICEBOX_TRY(survey_gpu_use(session, view.cgroup)));
  std::erase_if(others, [&](const cuda::Target& target) {
    const auto& known = session.journal().targets;
    return std::find(known.begin(), known.end(), target) != known.end();
  });
  if (others.empty()) return {};
  const auto process = container::read_process(others[0].pid);
  return make_error(Code::failed_precondition,
                    "process " + std::to_string(others[0].pid) +
                        (process.ok() ? " (" + process->command_line + ")" : "") +
                        " of the checkpoint uses CUDA, which its " + std::string(kCheckpointFile) +
                        " does not say: the checkpoint is not complete, copy or take it again");
}

// From the frozen tree that CRIU left to a running container.
Result<void> bring_to_life(Restoring& restoring) {
  Session& session = restoring.session;
  const auto view = ICEBOX_TRY(look_up(session));
  session.journal().init = {view.init.pid, view.init.start_time};
  ICEBOX_TRY(session.enter("find"));
  ICEBOX_TRY(view.cgroup.wait_frozen(kFreezeTimeout));
  session.journal().targets = ICEBOX_TRY(find_targets(restoring, view));
  for (const auto& process : restoring.checkpoint.info.processes) {
    for (const auto& [uuid, bytes] : process.gpu_bytes_by_uuid)
      session.journal().gpu_bytes[uuid] += bytes;
  }
  ICEBOX_TRY(check_none_forgotten(session, view));
  ICEBOX_TRY(session.enter("restore_gpu"));
  ICEBOX_TRY(resume_gpu(session, view.cgroup, restoring.gpu_map));
  if (session.state().killed())
    return make_error(Code::cancelled, "the container was killed while it was being restored");
  ICEBOX_TRY(session.enter("thaw"));
  ICEBOX_TRY(view.cgroup.thaw());
  ICEBOX_TRY(session.enter("unlock"));
  ICEBOX_TRY(unlock_gpu(session));
  put_limit_back(restoring);
  return {};
}

Result<void> make(Restoring& restoring) {
  Session& session = restoring.session;
  ICEBOX_TRY(session.enter("prepare"));
  ICEBOX_TRY(prepare_spec(restoring));
  ICEBOX_TRY(session.enter("criu"));
  ICEBOX_TRY(run_criu(restoring));
  if (restoring.has_gpu()) {
    ICEBOX_TRY(bring_to_life(restoring));
  } else {
    const auto view = ICEBOX_TRY(look_up(session));
    session.journal().init = {view.init.pid, view.init.start_time};
    ICEBOX_TRY(check_none_forgotten(session, view));
  }
  if (session.state().killed())
    return make_error(Code::cancelled, "the container was killed while it was being restored");
  return session.finish();
}

}  // namespace

Result<void> restore(Engine& engine, const CommandArgs& args) {
  if (args.has("lazy-pages")) {
    return make_error(Code::unimplemented,
                      "restore --lazy-pages is not supported: containerd may remove the checkpoint "
                      "once Start has answered");
  }
  auto session = ICEBOX_TRY(Session::open(engine, OperationKind::restore, args.positional[0]));
  // Before anything is written: whatever fails from here on ends what has this id.
  const auto existing = engine.runtime.state(session.id());
  if (existing.ok()) {
    return make_error(Code::already_exists, "container " + session.id() +
                                                " exists already and is " + existing->status +
                                                ": delete it, or restore under another id");
  }
  if (existing.error().code != Code::not_found) return existing.error().context("restore");
  if (session.was_held()) {
    // What is left of a container that is gone.
    session.journal() = Journal();
    session.journal().operation = OperationKind::restore;
  }
  Restoring restoring = {session, args};
  restoring.directory = absolute_path(args.value("image-path").value_or("checkpoint"));
  restoring.bundle = absolute_path(args.value("bundle").value_or(args.value("b").value_or(".")));
  const auto checked = [&]() -> Result<void> {
    restoring.checkpoint = ICEBOX_TRY(read_checkpoint_directory(restoring.directory));
    restoring.criu = ICEBOX_TRY(criu::find_criu(engine.config.criu));
    return check_host(restoring);
  }();
  if (!checked.ok()) {
    ICEBOX_TRY(session.forget());
    return checked;
  }
  if (const auto work = args.value("work-path")) {
    restoring.work = absolute_path(*work);
    ICEBOX_TRY(make_directories(restoring.work, 0700));
  } else {
    restoring.work = ICEBOX_TRY(session.scratch("work"));
  }
  const auto made = make(restoring);
  if (made.ok()) return made;
  const auto undone = roll_back(session);
  if (undone.ok()) return made;
  return make_error(made.error().code,
                    made.error().message + "; and cleaning up failed: " + undone.error().message);
}

}  // namespace icebox::engine
