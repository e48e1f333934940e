// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "google/protobuf/any.pb.h"
#include "oci/base/result.h"
#include "shim/process/supervisor.h"
#include "shim/runtime/bundle_config.h"
#include "shim/runtime/cgroup.h"
#include "shim/runtime/engine.h"
#include "shim/runtime/oom_watch.h"
#include "shim/runtime/options.h"
#include "shim/task/environment.h"
#include "shim/task/managed_process.h"
#include "shim/task/op_queue.h"
#include "shim/ttrpc/server.h"

namespace icebox::shim {

// One container of the daemon: its init, its exec'ed processes, what may be done to them and in
// which order that is told (invariants: shim/README.md). Operations that change it run one at a
// time through a queue; State, Wait, Pids, Stats and Kill answer beside it. Every `done` is called
// exactly once, possibly from inside the call. Errors have the code that the client gets. Held by
// shared_ptr; commands under way keep it alive.
class Container : public std::enable_shared_from_this<Container> {
 public:
  template <typename T>
  using Done = UniqueFunction<void(Result<T>)>;
  using Context = ttrpc::CallContext;

  struct Config {
    std::string id;
    std::string bundle;
    BundleConfig facts;
    RuntimeOptions options;
    StdioSpec stdio;
    std::vector<RootfsMount> rootfs;
    std::string checkpoint;  // directory to restore from, "" = start from the image
  };
  struct ExecConfig {
    std::string exec_id;
    StdioSpec stdio;
    std::string process_json;  // OCI Process
  };

  // `environment` is borrowed and must outlive the container.
  Container(TaskEnvironment& environment, Config config);
  Container(const Container&) = delete;
  Container& operator=(const Container&) = delete;

  [[nodiscard]] const std::string& id() const { return config_.id; }
  [[nodiscard]] const std::string& bundle() const { return config_.bundle; }
  [[nodiscard]] const RuntimeOptions& options() const { return config_.options; }
  // False until create() has succeeded: such a container does not exist yet for anybody else.
  [[nodiscard]] bool created() const { return created_; }
  [[nodiscard]] pid_t init_pid() const { return init_.pid(); }

  // Mounts the rootfs, opens stdio and, unless there is a checkpoint to restore, has the engine
  // make the container. On failure everything is undone and the object is of no more use.
  void create(const Context& context, Done<pid_t> done);

  // Ends a create() that is under way: its `done` gets an error. Nothing otherwise.
  void abort_create();

  // Starts init, or restores it from the checkpoint: meanwhile State and Kill work, Pause, Update
  // and Exec are refused, and SIGKILL ends the restore.
  void start(const Context& context, Done<pid_t> done);

  // Removes a container that is CREATED or STOPPED: output drained, engine's state, mounts and
  // temporary checkpoint gone, /tasks/delete published. The caller then forgets the object.
  void remove(Done<ExitInfo> done);

  // Freezes, thaws. A pause that ends after its client gave up is taken back.
  void pause(const Context& context, Done<void> done);
  void resume(Done<void> done);

  // Dumps into `path` (created if absent). A PAUSED task stays PAUSED whatever happens.
  void checkpoint(const Context& context, std::string path, CheckpointArgs args, Done<void> done);

  // `resources`: OCI LinuxResources as JSON.
  void update(std::string resources, Done<void> done);

  // Registers a process; it runs when started.
  [[nodiscard]] Result<void> exec(ExecConfig config);
  void start_exec(const std::string& exec_id, Done<pid_t> done);
  void remove_exec(const std::string& exec_id, Done<ExitInfo> done);

  // Signals init ("" as exec_id), all processes of the container (`all`), or one exec.
  void kill(const std::string& exec_id, int signo, bool all, Done<void> done);

  // The process behind an exec id ("" = init); not_found. Valid until the next turn of the loop.
  [[nodiscard]] Result<ManagedProcess*> find(const std::string& exec_id);

  // What State reports for a process: execs of a paused container are paused too.
  [[nodiscard]] ProcessState reported_state(const ManagedProcess& process) const;

  // Every process in the container's cgroup with the exec id it was started under ("" = other).
  // Never empty: a task without processes lists its init, because containerd takes an empty answer
  // after its restart for a leaked shim and kills it.
  [[nodiscard]] std::vector<std::pair<pid_t, std::string>> processes() const;

  // See collect_stats.
  [[nodiscard]] Result<google::protobuf::Any> stats() const;

 private:
  struct Exec {
    Exec(std::string id, StdioSpec stdio) : exec_id(std::move(id)), process(std::move(stdio)) {}
    std::string exec_id;
    ManagedProcess process;
    std::string process_json;
    bool start_asked = false;
    bool starting = false;              // its start is under way, or done but not told yet
    std::optional<ExitInfo> held_exit;  // seen, not told yet
  };
  using ExecPtr = std::shared_ptr<Exec>;
  using Turn = OpQueue::Turn;

  [[nodiscard]] Error refuse(const char* verb) const;
  [[nodiscard]] bool init_gone() const { return held_exit_ || init_.exit(); }
  [[nodiscard]] std::string pid_file(const std::string& name) const;
  [[nodiscard]] Result<pid_t> read_pid(const std::string& name) const;
  void force_delete(UniqueFunction<void()> done);

  // container.cc
  [[nodiscard]] Result<void> prepare();
  void create_with_engine(Done<pid_t> done);
  void adopt_created(Done<pid_t> done);
  void fail_create(const Error& error, bool engine_ran, Done<pid_t> done);
  void undo_create();
  [[nodiscard]] Result<void> watch_init();
  void run_start(Turn turn, const Context& context, Done<pid_t> done);
  void on_init_exit(const ExitInfo& exit);
  void settle_init();
  void kill_leftovers() const;
  void watch_oom();

  // container_remove.cc
  void run_remove(Turn turn, Done<ExitInfo> done);
  void remove_from_engine(Turn turn, Done<ExitInfo> done);
  void await_exit(UniqueFunction<void()> done);
  void finish_remove(const Done<ExitInfo>& done);
  void drop_temporary_checkpoint();

  // container_restore.cc
  void run_restore(Turn turn, const Context& context, Done<pid_t> done);
  void restore_with_engine(Turn turn, const Context& context, Done<pid_t> done);
  void adopt_restored(Turn turn, Done<pid_t> done);
  void fail_restore(Turn turn, Error error, bool leftovers, Done<pid_t> done);
  void end_restore();
  void end_failed_restore();
  void kill_restore(int signo, const Done<void>& done);

  // container_exec.cc
  void run_exec(Turn turn, const ExecPtr& exec, Done<pid_t> done);
  void exec_with_engine(Turn turn, const ExecPtr& exec, Done<pid_t> done);
  void adopt_exec(const ExecPtr& exec, const Done<pid_t>& done);
  void fail_exec(const ExecPtr& exec);
  void settle_exec(const ExecPtr& exec);
  void kill_exec(const std::string& exec_id, int signo, const Done<void>& done) const;
  [[nodiscard]] bool execs_running() const;

  // container_ops.cc
  void run_pause(Turn turn, const Context& context, Done<void> done);
  void run_resume(Turn turn, Done<void> done);
  void run_checkpoint(Turn turn, const Context& context, CheckpointArgs args, Done<void> done);
  void finish_checkpoint(const CheckpointArgs& args, bool own_work, EngineResult result,
                         const Done<void>& done);
  void recover_after_crash(Turn turn);
  void kill_init(int signo, bool all, Done<void> done);

  TaskEnvironment& env_;
  Config config_;
  Engine engine_;
  OpQueue queue_;
  ManagedProcess init_;
  std::map<std::string, ExecPtr> execs_;
  CgroupPaths cgroup_;
  std::unique_ptr<OomWatch> oom_watch_;
  std::optional<ExitInfo> held_exit_;  // init's exit, seen but not told yet
  UniqueFunction<void()> exit_told_;
  Timer exit_timer_;
  bool mounted_ = false;
  bool temp_checkpoint_ = false;  // the checkpoint is containerd's temporary directory, still there
  bool created_ = false;
  bool removed_ = false;
  bool announcing_ = false;  // init's exit is held: its create or start is not told yet

  std::optional<Engine::Id> create_tool_;
  bool create_aborted_ = false;

  bool restoring_ = false;                  // Start of a checkpoint is under way
  std::optional<Engine::Id> restore_tool_;  // ... in the engine
  bool restore_killed_ = false;             // ... and somebody wants it dead
  std::vector<int> restore_signals_;        // ... or signalled: delivered once it runs
  bool restore_failed_ = false;             // only Delete is left
};

}  // namespace icebox::shim
