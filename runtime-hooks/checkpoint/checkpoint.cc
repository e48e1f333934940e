// SPDX-License-Identifier: Apache-2.0
#include "oci/checkpoint.h"

#include <sys/statvfs.h>

#include <algorithm>
#include <array>
#include <system_error>
#include <thread>

#include <nlohmann/json.hpp>

#include "oci/base/fault.h"
#include "oci/base/file.h"
#include "oci/base/log.h"
#include "oci/base/strings.h"
#include "oci/spec.h"
#include "runtime-hooks/checkpoint/compatibility.h"
#include "runtime-hooks/checkpoint/gpu_hold.h"
#include "runtime-hooks/checkpoint/operations.h"
#include "runtime-hooks/checkpoint/rollback.h"
#include "runtime-hooks/container/task_state.h"
#include "runtime-hooks/criu/criu.h"

namespace icebox::engine {
namespace {

// Options that leave pages out of the directory or make it more than flat files.
constexpr std::array kUnsupported = {std::string_view("pre-dump"), std::string_view("lazy-pages"),
                                     std::string_view("page-server"),
                                     std::string_view("parent-path")};

std::vector<std::string> words(const Option& option) {
  if (option.value) return {"--" + option.name, *option.value};
  return {"--" + option.name};
}

// Everything that one checkpoint is about.
struct Dump {
  Session& session;
  const ContainerView& view;
  const CommandArgs& args;
  std::string directory;
  std::string work;
  criu::Criu criu;
  CheckpointInfo info;
  bool paused_before = false;  // by a client, through Icebox or not: it stays paused
};

// What the driver said about the targets' device memory, process by process.
Result<void> describe_gpu(Dump& dump) {
  Journal& journal = dump.session.journal();
  CheckpointInfo& info = dump.info;
  info.gpu_state = journal.targets.empty() ? "none" : "inline";
  if (journal.targets.empty()) return {};
  auto* agent = ICEBOX_TRY(dump.session.agent());
  const auto driver = ICEBOX_TRY(agent->info());
  info.driver_version = driver.driver_version;
  info.cuda_version = driver.cuda_version;
  for (const auto& gpu : driver.gpus) {
    info.gpus.push_back(
        {gpu.uuid, gpu.name, gpu.total_bytes,
         std::to_string(gpu.compute_major) + "." + std::to_string(gpu.compute_minor),
         gpu.pci_bus_id});
  }
  const auto usage = ICEBOX_TRY(agent->processes());
  const std::size_t depth = dump.view.init.ns_pids.size();
  journal.gpu_bytes.clear();
  for (const auto& target : journal.targets) {
    const auto process = ICEBOX_TRY(container::read_process(target.pid));
    CheckpointProcess entry;
    entry.host_pid = target.pid;
    entry.command_line = process.command_line;
    if (process.ns_pids.size() < depth || depth == 0) {
      return make_error(
          Code::failed_precondition,
          "process " + std::to_string(target.pid) + " is outside of the container's pid namespace");
    }
    entry.ns_pids.assign(process.ns_pids.begin() + static_cast<std::ptrdiff_t>(depth - 1),
                         process.ns_pids.end());
    for (const auto& use : usage) {
      if (use.pid != target.pid) continue;
      const auto bytes = use.used_bytes.value_or(0);
      entry.gpu_bytes += bytes;
      entry.gpu_bytes_by_uuid[use.gpu_uuid] += bytes;
      journal.gpu_bytes[use.gpu_uuid] += bytes;
    }
    info.processes.push_back(std::move(entry));
  }
  return dump.session.save();
}

void describe_host(Dump& dump, const HostFacts& host) {
  CheckpointInfo& info = dump.info;
  info.icebox_version = ICEBOX_VERSION;
  info.created = log::timestamp();
  info.container_id = dump.session.id();
  const auto spec = read_json_file(dump.view.state.bundle + "/config.json");
  if (spec.ok()) info.cgroups_path = spec_cgroups_path(*spec);
  const auto& runtime = dump.session.engine().runtime.program();
  info.runtime = runtime.substr(runtime.rfind('/') + 1);
  info.kernel = host.kernel;
  info.architecture = host.architecture;
  info.cpu_features = host.cpu_features;
  info.criu_version = criu::to_string(dump.criu.version);
  for (const auto& option : dump.args.options) {
    if (std::find(kDumpOptions.begin(), kDumpOptions.end(), option.name) == kDumpOptions.end())
      continue;
    for (auto& word : words(option)) info.dump_options.push_back(std::move(word));
  }
}

// CRIU holds a private network namespace's connections still with iptables, and fails half-way
// without it.
Result<void> check_network_lock(const ContainerView& view) {
  const auto theirs = read_link("/proc/" + std::to_string(view.init.pid) + "/ns/net");
  const auto ours = read_link("/proc/self/ns/net");
  if (theirs.ok() && ours.ok() && *theirs == *ours) return {};
  for (const char* tool : {"iptables-restore", "ip6tables-restore"}) {
    const auto found = find_program(tool);
    if (found.ok()) continue;
    return make_error(Code::failed_precondition,
                      "CRIU needs " + std::string(tool) +
                          " to hold the container's network still: install iptables (" +
                          found.error().message + ")");
  }
  return {};
}

// On cgroup v1 a CRIU that seizes a stopped process of a frozen container waits for ever.
Result<void> check_none_stopped(const std::vector<container::Process>& processes) {
  for (const auto& process : processes) {
    const auto task = container::read_task_state(process.pid, process.pid);
    if (!task.ok() || (task->state != 'T' && !task->wchan.starts_with("do_signal_stop"))) continue;
    return make_error(Code::failed_precondition,
                      "process " + std::to_string(process.pid) + " (" + process.command_line +
                          ") is stopped by a signal, which CRIU cannot save on cgroup v1: send it "
                          "SIGCONT and try again");
  }
  return {};
}

// What makes a checkpoint impossible and can be found out by looking only. Done before the
// container is touched, and once more when it is frozen, because processes may have come in
// between.
Result<std::vector<Surveyed>> preflight(Dump& dump) {
  dump.info.left_out.clear();
  ICEBOX_TRY(check_network_lock(dump.view));
  const auto surveyed = ICEBOX_TRY(survey_gpu_use(dump.session, dump.view.cgroup));
  for (const auto& entry : surveyed) {
    if (entry.what.treatment == cuda::Treatment::refuse)
      return make_error(Code::failed_precondition, entry.what.reason);
  }
  const auto pids = ICEBOX_TRY(dump.view.cgroup.processes());
  const auto processes = ICEBOX_TRY(container::read_processes(pids));
  for (const auto& process : processes) {
    if (process.tracer == 0) continue;
    const auto tracer = container::read_process(process.tracer);
    return make_error(Code::failed_precondition,
                      "process " + std::to_string(process.pid) + " (" + process.command_line +
                          ") is traced by " + (tracer.ok() ? tracer->command_line : "process") +
                          " (pid " + std::to_string(process.tracer) +
                          "): end the tracer and try again");
  }
  if (!dump.view.cgroup.unified()) ICEBOX_TRY(check_none_stopped(processes));
  const auto targets = targets_in(surveyed);
  for (const auto& process :
       ICEBOX_TRY(container::not_descending_from(dump.view.init.pid, processes))) {
    if (process.zombie()) continue;
    const cuda::Target named = {process.pid, process.start_time};
    const std::string text =
        "process " + std::to_string(process.pid) + " (" + process.command_line + ")";
    if (std::find(targets.begin(), targets.end(), named) != targets.end()) {
      return make_error(
          Code::failed_precondition,
          text +
              " uses CUDA and was started with exec: CRIU saves only what descends from the "
              "container's init; end it, or start it from the container's own command");
    }
    log::warn(text + " was started with exec and will not be in the checkpoint",
              {{"id", dump.session.id()}});
    dump.info.left_out.push_back(process.command_line);
  }
  return surveyed;
}

// Memory that CRIU will write, roughly: anonymous and shared memory of all processes, plus what
// comes off the GPUs.
Result<void> check_disk_room(const Dump& dump) {
  std::uint64_t need = dump.info.gpu_bytes();
  for (const pid_t pid : ICEBOX_TRY(dump.view.cgroup.processes())) {
    const auto status = read_file("/proc/" + std::to_string(pid) + "/status", 1024 * 1024);
    if (!status.ok()) continue;
    for (const auto line : split(*status, '\n', SplitEmpty::drop)) {
      if (!line.starts_with("RssAnon:") && !line.starts_with("RssShmem:")) continue;
      const auto parts = split(line, ' ', SplitEmpty::drop);
      for (const auto part : parts) need += parse_u64(trim(part)).value_or(0) * 1024;
    }
  }
  struct statvfs disk = {};
  if (::statvfs(dump.directory.c_str(), &disk) != 0) return errno_error(dump.directory);
  const std::uint64_t room = static_cast<std::uint64_t>(disk.f_bavail) * disk.f_frsize;
  if (room >= need) return {};
  return make_error(
      Code::resource_exhausted,
      "the checkpoint needs about " + human_bytes(need) + ", but " + dump.directory + " has " +
          human_bytes(room) +
          " free: make room there (containerd takes $XDG_RUNTIME_DIR, $TMPDIR or /tmp) "
          "or name another directory");
}

Result<void> not_killed(const Session& session) {
  if (!session.state().killed()) return {};
  return make_error(Code::cancelled, "the container was killed during the checkpoint");
}

Result<void> run_criu(Dump& dump) {
  Session& session = dump.session;
  const auto empty = ICEBOX_TRY(session.scratch("no-plugins"));
  Command command;
  command.argv = {"checkpoint"};
  for (const auto& option : dump.args.options) {
    // Always leave running: CRIU itself would end the tree before the checkpoint is sealed. Never
    // the `strict` cgroup mode: it restores the freezer's state and with it a tree that nobody
    // thaws.
    if (option.name == "leave-running" || option.name == "image-path" || option.name == "work-path")
      continue;
    if (option.name == "manage-cgroups-mode" && option.value == "strict") continue;
    for (auto& word : words(option)) command.argv.push_back(std::move(word));
  }
  for (const std::string& word :
       {std::string("--leave-running"), std::string("--image-path"), dump.directory,
        std::string("--work-path"), dump.work, session.id()}) {
    command.argv.push_back(word);
  }
  command.env = criu::runtime_environment(dump.criu, empty, "");
  const auto output = session.engine().runtime.run(command, {});
  ICEBOX_TRY(not_killed(session));
  // Whatever happened: frozen first, then look.
  ICEBOX_TRY(settle(dump.view.cgroup));
  if (!output.ok()) {
    const std::string log_file = dump.work + "/dump.log";
    const auto reason = criu::last_error(log_file);
    return make_error(Code::unknown, "CRIU could not dump the container: " +
                                         (reason.empty() ? output.error().message : reason) +
                                         " (full log: " + log_file + ")");
  }
  if (!exists(dump.directory + "/inventory.img")) {
    return make_error(Code::unknown,
                      "CRIU reported success but wrote no inventory.img into " + dump.directory);
  }
  return fault::reach("checkpoint.dumped");
}

Error ran_while_paused(const Dump& dump) {
  return make_error(
      Code::failed_precondition,
      "container " + dump.session.id() +
          " is paused, but its threads had to run for a moment: the driver did not come "
          "back while they were stopped; try again");
}

// The container's own threads ran during the driver's Checkpoint: what was found out before may not
// hold any more.
Result<void> look_again(Dump& dump) {
  if (dump.paused_before) return ran_while_paused(dump);
  const auto found = targets_in(ICEBOX_TRY(preflight(dump)));
  const auto& known = dump.session.journal().targets;
  for (const auto& target : found) {
    if (std::find(known.begin(), known.end(), target) != known.end()) continue;
    return make_error(Code::failed_precondition,
                      "process " + std::to_string(target.pid) +
                          " began to use CUDA during the checkpoint: try again");
  }
  return {};
}

// The slow parts of sealing and of putting CUDA back on the GPU have nothing to do with each other:
// files are synced on a second thread (the thread hold is bound to this one).
Result<void> sync_and_resume(Dump& dump, bool leave_running) {
  Result<void> synced;
  const auto sync = [&] { synced = sync_checkpoint_files(dump.directory, dump.info); };
  std::thread worker;
  try {
    worker = std::thread(sync);
  } catch (const std::system_error&) {
    sync();  // no thread to be had: one after the other then
  }
  Result<void> resumed;
  if (leave_running && !dump.session.journal().targets.empty()) {
    resumed = dump.session.enter("restore_gpu");
    if (resumed.ok()) resumed = resume_gpu(dump.session, dump.view.cgroup, {});
  }
  if (worker.joinable()) worker.join();
  if (!synced.ok()) return synced;
  if (resumed.ok() && dump.session.others_ran() && dump.paused_before)
    return ran_while_paused(dump);
  return resumed;
}

Result<void> seal(Dump& dump) {
  ICEBOX_TRY(dump.session.enter("seal"));
  ICEBOX_TRY(not_killed(dump.session));
  dump.info.timings_ms = dump.session.timings();
  return seal_checkpoint(dump.directory, dump.info);
}

// From the first lock to the sealed directory; roll_back() undoes any part of it.
Result<void> take(Dump& dump, bool leave_running) {
  Session& session = dump.session;
  const container::Cgroup& cgroup = dump.view.cgroup;
  if (!dump.paused_before) {
    ICEBOX_TRY(session.enter("lock"));
    ICEBOX_TRY(lock_and_freeze(session, cgroup));
  }
  ICEBOX_TRY(session.enter("describe"));
  ICEBOX_TRY(preflight(dump));
  ICEBOX_TRY(describe_gpu(dump));
  ICEBOX_TRY(check_disk_room(dump));
  if (!session.journal().targets.empty()) {
    ICEBOX_TRY(session.enter("suspend_gpu"));
    ICEBOX_TRY(suspend_gpu(session, cgroup, dump.info.gpu_bytes()));
    if (session.others_ran()) ICEBOX_TRY(look_again(dump));
  }
  ICEBOX_TRY(session.enter("dump"));
  ICEBOX_TRY(run_criu(dump));
  ICEBOX_TRY(session.enter("sync"));
  ICEBOX_TRY(sync_and_resume(dump, leave_running));
  return seal(dump);
}

Result<void> after_seal(Dump& dump, bool leave_running) {
  Session& session = dump.session;
  if (!leave_running) {
    ICEBOX_TRY(session.enter("kill"));
    ICEBOX_TRY(kill_container(dump.view.cgroup));
    return session.finish();
  }
  if (dump.paused_before) return session.finish_held();
  ICEBOX_TRY(session.enter("thaw"));
  ICEBOX_TRY(dump.view.cgroup.thaw());
  ICEBOX_TRY(session.enter("unlock"));
  ICEBOX_TRY(unlock_gpu(session));
  return session.finish();
}

// Frozen behind Icebox's back, CUDA cannot be locked any more: the driver's call would hang for
// ever.
Result<void> check_paused_by_us(const Session& session, const std::vector<Surveyed>& surveyed) {
  if (session.was_held() || targets_in(surveyed).empty()) return {};
  return make_error(Code::failed_precondition,
                    "container " + session.id() +
                        " was frozen without suspending CUDA (not through Icebox): resume it, then "
                        "take the checkpoint");
}

// A checkpoint that failed: the container goes back to where it was.
Result<void> give_up(Session& session, const Error& cause) {
  if (session.driver_stuck()) return cause;  // an undo would have to wait for the driver as well
  const auto undone = roll_back(session);
  if (undone.ok()) return cause;
  return make_error(cause.code,
                    cause.message + "; and undoing it failed: " + undone.error().message);
}

}  // namespace

Result<void> checkpoint(Engine& engine, const CommandArgs& args) {
  for (const auto name : kUnsupported) {
    if (args.has(name)) {
      return make_error(Code::unimplemented,
                        "checkpoint --" + std::string(name) +
                            " is not supported: an Icebox checkpoint is one complete directory");
    }
  }
  auto session = ICEBOX_TRY(Session::open(engine, OperationKind::checkpoint, args.positional[0]));
  const auto view = ICEBOX_TRY(look_up(session));
  if (session.journal().suspended) {
    return make_error(Code::failed_precondition,
                      "the CUDA state of container " + session.id() +
                          " is in host memory since an earlier failure: resume it first");
  }
  Dump dump = {session, view, args, absolute_path(args.value("image-path").value_or("checkpoint")),
               {},      {},   {},   false};
  dump.paused_before = view.state.status == "paused";
  session.journal().init = {view.init.pid, view.init.start_time};
  session.journal().was_paused = dump.paused_before;
  dump.criu = ICEBOX_TRY(criu::find_criu(engine.config.criu));
  const auto host = ICEBOX_TRY(read_host_facts());
  const auto surveyed = ICEBOX_TRY(preflight(dump));
  if (dump.paused_before) ICEBOX_TRY(check_paused_by_us(session, surveyed));
  forget_dead_targets(session);  // one may have been killed while it was paused
  describe_host(dump, host);
  ICEBOX_TRY(begin_checkpoint(dump.directory));
  if (const auto work = args.value("work-path")) {
    dump.work = absolute_path(*work);
    ICEBOX_TRY(make_directories(dump.work, 0700));
  } else {
    dump.work = ICEBOX_TRY(session.scratch("work"));
  }

  const bool leave_running = args.has("leave-running");
  const auto taken = take(dump, leave_running);
  if (!taken.ok()) return give_up(session, taken.error());
  const auto finished = after_seal(dump, leave_running);
  if (finished.ok()) return finished;
  return give_up(session, finished.error().context("the checkpoint in " + dump.directory +
                                                   " is complete, but"));
}

}  // namespace icebox::engine
