# SPDX-License-Identifier: Apache-2.0
"""Whoever dies in the middle of a checkpoint: the next command recovers, and the workload has lost nothing."""

import contextlib
import shlex
import subprocess
import time

import pytest
from harness import gpu, paths, procs

IMAGE = "icebox.local/samples:e2e"
BUSY = ("/dev/shm/busy.0", "/dev/shm/busy.1")
# The steps of a checkpoint of a paused container, in order.
PAUSED_PHASES = ["describe", "suspend_gpu", "dump", "dumped", "sync", "restore_gpu", "seal"]
RUNNING_PHASES = ["lock", "suspend_gpu", "dumped", "restore_gpu", "thaw", "unlock"]


def start_busy(box) -> gpu.Boards:
    box.run(IMAGE, "sample-busy", "--dir", "/dev/shm", "--cuda", "--children", "1", flags=gpu.FLAGS)
    boards = gpu.Boards(box, *BUSY)
    boards.wait_all_count()
    return boards


@contextlib.contextmanager
def paused(box, boards, exact: bool = True):
    """Nothing runs inside the block; afterwards everything goes on, and a checkpoint succeeds.

    Without `exact` it is enough that nothing runs from the end of the block on: a CRIU that is killed lets go of the
    processes that it has thawed, and the engine can only freeze them again.
    """
    box.pause()
    before = boards.read()
    yield
    assert box.node.cgroups.frozen(box.cgroup)
    after = boards.read()
    if exact:
        assert after == before, "something ran while the container was paused"
    assert box.status == "PAUSED"
    assert boards.read() == after, "it is frozen again"
    box.resume()
    boards.wait_all_count()
    box.checkpoint(box.node.unique("checkpoint:after"))
    boards.wait_all_count()


def kill_when(find, what: str) -> None:
    """SIGKILL to the process that `find` finds, as soon as there is one."""
    pid = procs.wait_until(find, what, interval=0.0005)
    procs.kill(pid)
    procs.wait_until(lambda: not procs.alive(pid), f"{what}: its end")


def tracing_criu(box) -> int:
    """CRIU in the middle of a dump: it traces the container's init."""
    tracer = procs.tracer(box.pid_seen)
    return tracer if tracer and procs.read(tracer, "comm").strip() == "criu" else 0


def dump_in_background(node, box, folder):
    box.pid_seen = box.pid
    return node.popen(*box.engine_command("checkpoint", "--leave-running", "--image-path", str(folder / "dump")),
                      stderr=subprocess.PIPE, text=True)


@pytest.mark.both_cgroups
@pytest.mark.parametrize("victim", ["criu", "runc"])
def test_killed_in_the_middle_of_the_dump(node, icebox, folder, victim):
    box = icebox()
    boards = start_busy(box)
    with paused(box, boards, exact=victim != "criu"):
        process = dump_in_background(node, box, folder)
        if victim == "criu":
            kill_when(lambda: tracing_criu(box), "CRIU at work")
        else:
            kill_when(lambda: (criu := tracing_criu(box)) and procs.parent(criu), "the runtime above a CRIU at work")
        _, said = process.communicate(timeout=procs.DEADLINE)
        assert process.returncode != 0 and "CRIU could not dump" in said and "rlimit" not in said
        assert not (folder / "dump" / "icebox.json").exists()


@pytest.mark.parametrize("phase", PAUSED_PHASES)
def test_engine_killed_while_paused(node, faulty, folder, phase):
    box = faulty()
    boards = start_busy(box)
    with paused(box, boards):
        with node.faults(f"checkpoint.{phase} kill"):
            assert box.dump(folder / "dump", "--leave-running", check=False).code != 0
        assert not (folder / "dump" / "icebox.json").exists()


@pytest.mark.both_cgroups
@pytest.mark.parametrize("phase", RUNNING_PHASES)
def test_engine_killed_while_running(node, faulty, folder, phase):
    """The next command of any kind brings the container back; here an exec."""
    box = faulty()
    box.run(IMAGE, "sample-counter", flags=gpu.FLAGS)
    with gpu.counter(box) as counter:
        before = counter.ask()
        with node.faults(f"checkpoint.{phase} kill"):
            assert box.dump(folder / "dump", "--leave-running", check=False).code != 0
        assert (folder / "dump" / "icebox.json").exists() == (phase in ("thaw", "unlock"))
        box.exec("true")
        after = counter.ask()
        assert after.token == before.token and after.counter == before.counter + 1
        box.dump(folder / "again", "--leave-running")
        assert counter.ask().token == before.token


def test_engine_killed_while_it_ends_the_container(node, faulty, folder):
    """The checkpoint is sealed and some processes may be dead: the next command ends the rest instead of reviving it."""
    box = faulty()
    box.run(IMAGE, "sample-counter", flags=gpu.FLAGS)
    with gpu.counter(box) as counter:
        counter.ask()
    with node.faults("checkpoint.kill kill"):
        assert box.dump(folder / "dump", check=False).code != 0
    assert (folder / "dump" / "icebox.json").exists()
    box.exec("true", check=False)
    box.wait_status("STOPPED")
    assert box.delete_task() == 137


def agent_in_a_long_call(node) -> int:
    """The GPU agent, if one of its threads stays in the driver."""
    for pid in node.processes():
        if procs.read(pid, "comm").strip() == "icebox-gpu":
            threads = procs.threads(pid)
            time.sleep(0.1)
            if len(threads) > 1 and set(threads) <= set(procs.threads(pid)):
                return pid
    return 0


@pytest.mark.both_cgroups
@pytest.mark.parametrize("operation", ["lock", "checkpoint", "restore"])
@pytest.mark.parametrize("by", ["engine", "ctr"])
def test_agent_killed_inside_the_driver(node, icebox, folder, operation, by):
    """The driver finishes what it has begun; another agent finds out and puts all of it back."""
    box = icebox()
    box.run(IMAGE, "sample-counter", flags=gpu.FLAGS)
    with gpu.counter(box) as counter:
        before = counter.ask()
        gpu.set_knobs(box, f"{operation}=slow:1500")
        if by == "engine":
            process = dump_in_background(node, box, folder)
        else:
            process = node.ctr_popen("containers", "checkpoint", "--task", box.id, "checkpoint:agent",
                                     stderr=subprocess.PIPE, text=True)
        kill_when(lambda: agent_in_a_long_call(node), f"an agent in {operation}")
        _, said = process.communicate(timeout=procs.DEADLINE)
        assert process.returncode != 0 and "icebox-gpu" in said, said
        gpu.set_knobs(box)
        if box.status == "PAUSED":
            box.resume()
        after = counter.ask()
        assert after.token == before.token and after.counter == before.counter + 1
        box.checkpoint("checkpoint:after")
        assert counter.ask().token == before.token


@pytest.mark.both_cgroups
def test_engine_killed_under_ctr(node, faulty):
    """The same through the shim: ctr fails, resumes the task, and the next checkpoint succeeds."""
    box = faulty()
    box.run(IMAGE, "sample-counter", flags=gpu.FLAGS)
    with gpu.counter(box) as counter:
        before = counter.ask()
        with node.faults("checkpoint.dumped kill"):
            assert box.checkpoint("checkpoint:killed", check=False).code != 0
        procs.wait_until(lambda: box.status == "RUNNING", "the task is resumed", interval=0.05)
        assert counter.ask().token == before.token
        box.checkpoint("checkpoint:after")
        assert counter.ask().token == before.token


@contextlib.contextmanager
def checkpoint_that_hangs(node, box, point: str):
    """`ctr c checkpoint` stopped at a fault point for the length of the block."""
    with node.faults(f"{point} hang"):
        process = node.ctr_popen("containers", "checkpoint", "--task", box.id, "checkpoint:hanging")
        procs.wait_until(lambda: f'"phase": "{point.split(".")[1]}"' in journal(node), f"the checkpoint is at {point}")
        yield process
    process.wait(procs.DEADLINE)


def journal(node) -> str:
    return "".join(path.read_text() for path in node.state_dir.rglob("journal.json"))


@pytest.mark.both_cgroups
def test_commands_during_a_checkpoint(node, faulty):
    box = faulty()
    box.run(IMAGE, "sample-counter", flags=gpu.FLAGS)
    with gpu.counter(box) as counter:
        before = counter.ask()
        with checkpoint_that_hangs(node, box, "checkpoint.dump") as process:
            assert box.exec("touch", "/ran", check=False).code != 0
            direct = box.engine("exec", check=False)
            assert direct.code != 0 and "checkpoint" in direct.stderr
            assert box.status in ("PAUSED", "PAUSING")
            assert box.task("ps").code == 0
        assert process.returncode == 0
        assert box.status == "RUNNING"
        assert box.read("ran") == "", "no instruction of an exec during the checkpoint"
        assert counter.ask().token == before.token
        assert box.exec("echo", "again").stdout == "again\n"


@pytest.mark.both_cgroups
@pytest.mark.parametrize("point", ["checkpoint.suspend_gpu", "checkpoint.dump"])
def test_task_killed_during_a_checkpoint(node, faulty, point):
    box = faulty()
    box.run(IMAGE, "sample-counter", flags=gpu.FLAGS)
    with gpu.counter(box) as counter:
        counter.ask()
    with checkpoint_that_hangs(node, box, point) as process:
        box.kill()
        # Not only when the engine comes out of its step.
        box.wait_status("STOPPED")
    assert process.returncode != 0
    assert box.delete_task() == 137


def test_plugins_of_criu_are_kept_out(node, icebox, program_folder, folder):
    """An installed cuda_plugin would thaw the tree and restore the GPU by itself."""
    log = folder / "libs"
    log.touch()
    criu = program_folder("criu", f'[ "$1" != swrk ] || {{ echo "dir=$CRIU_LIBS_DIR"; ls -A "$CRIU_LIBS_DIR"; echo end; }} '
                                  f'>>{shlex.quote(str(log))}\nexec {shlex.quote(str(paths.criu()))} "$@"')
    box = icebox()
    box.run(IMAGE, "sample-counter", flags=gpu.FLAGS)
    with gpu.counter(box) as counter:
        counter.ask()
    with node.config(criu=str(criu)):
        box.checkpoint("checkpoint:plugins")
        of_dump = log.read_text().splitlines()
        box.stop()
        box.remove()
        again = icebox()
        again.restore_from("checkpoint:plugins")
        of_restore = log.read_text().splitlines()[len(of_dump):]
    for lines in (of_dump, of_restore):
        assert lines and len(lines) % 2 == 0, lines
        for place, end in zip(lines[::2], lines[1::2]):
            assert place.startswith("dir=/") and end == "end", "an existing, empty folder"


def test_memory_limit_below_the_gpu_bytes(node, icebox):
    """128 MiB of device memory in a container that may have 64 MiB: they must fit at checkpoint and at restore."""
    if node.cgroup_version != "v1" and "memory" not in (node.cgroups.root / "cgroup.controllers").read_text():
        pytest.fail("this machine has no memory controller")
    limit = 64 << 20
    box = icebox()
    # Device memory in files: it does not count while it is on the "GPU".
    box.run(IMAGE, "sh", "-c", "mkdir /vram; exec sample-counter --mib 128",
            flags=(*gpu.FLAGS, "--env", "ICEBOX_SIM_VRAM=/vram", "--memory-limit", str(limit)))
    with gpu.counter(box) as counter:
        before = counter.ask()
        box.checkpoint("checkpoint:memory")
        assert counter.ask().token == before.token
    assert memory_limit(node, box) == limit
    box.stop()
    box.remove()
    again = icebox()
    again.restore_from("checkpoint:memory")
    with gpu.counter(again) as counter:
        assert counter.ask().token == before.token
    assert memory_limit(node, again) == limit


def memory_limit(node, box) -> int:
    if node.cgroup_version == "v1":
        return int((node.cgroups.root / "memory" / box.cgroup.lstrip("/") / "memory.limit_in_bytes").read_text())
    return int((node.cgroups.freezer(box.cgroup) / "memory.max").read_text())
