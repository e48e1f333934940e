# SPDX-License-Identifier: Apache-2.0
"""From Pause to Resume no process of the container runs an instruction, whatever happens in between."""

import contextlib

import pytest
from harness import cgroups, gpu, procs

IMAGE = "icebox.local/samples:e2e"
# A shared mapping of /dev/shm, files of the root file system.
INIT, CHILD, EXECED, GROUPED = "/dev/shm/busy.0", "/dev/shm/busy.1", "/counts/execed.0", "/counts/grouped.0"

pytestmark = pytest.mark.both_cgroups


@contextlib.contextmanager
def child_cgroup(node, box, name: str, pid: int):
    """Puts `pid` into a cgroup below the container's, as a container that manages cgroups itself does."""
    folder = node.cgroups.freezer(box.cgroup) / name
    folder.mkdir()
    (folder / "cgroup.procs").write_text(str(pid))
    try:
        yield
    finally:
        if folder.exists() and procs.alive(pid):
            (folder.parent / "cgroup.procs").write_text(str(pid))
        cgroups.remove_tree(folder)


def start_busy(box, children: int = 1) -> gpu.Boards:
    """Init and its child, both with CUDA, and two processes that were exec'ed."""
    box.run(IMAGE, "sample-busy", "--dir", "/dev/shm", "--cuda", "--children", str(children), flags=gpu.FLAGS)
    (box.rootfs / "counts").mkdir()
    for name in ("execed", "grouped"):
        box.exec("sample-busy", "--dir", "/counts", "--name", name, "--threads", "1", flags=("--detach",), exec_id=name)
    boards = gpu.Boards(box, INIT, CHILD, EXECED, GROUPED)
    boards.wait_all_count()
    return boards


def pid_of_exec(box, name: str) -> int:
    return next(pid for pid in box.node.cgroups.pids(box.cgroup) if f"--name\0{name}\0" in procs.read(pid, "cmdline"))


def assert_still(boards: gpu.Boards, since: dict) -> None:
    assert boards.read() == since


def test_nothing_runs_while_paused(node, icebox, folder):
    """ctr itself pauses for its checkpoint, and refuses one that is paused: so the engine's command here."""
    box = icebox()
    boards = start_busy(box)
    with child_cgroup(node, box, "inner", pid_of_exec(box, "grouped")):
        box.pause()
        paused = boards.read()
        assert box.status == "PAUSED"
        box.dump(folder / "first", "--leave-running")
        assert_still(boards, paused)
        box.dump(folder / "second", "--leave-running")
        assert_still(boards, paused)
        assert box.status == "PAUSED"
        assert node.cgroups.frozen(box.cgroup)
        box.resume()
        boards.wait_all_count()
    assert box.status == "RUNNING"


def test_exec_of_cuda_is_paused_too(node, icebox):
    """What a checkpoint refuses, a pause need not."""
    box = icebox()
    start_busy(box)
    box.exec("sample-busy", "--dir", "/counts", "--name", "gpu", "--cuda", flags=("--detach",),
             exec_id="gpu")
    more = gpu.Boards(box, INIT, CHILD, EXECED, "/counts/gpu.0")
    more.wait_all_count()
    box.pause()
    paused = more.read()
    box.exec("true", check=False)
    assert_still(more, paused)
    box.resume()
    more.wait_all_count()


def test_threads_that_are_not_held_are_seen(node, faulty, folder):
    """The test of the tests above: without the thread hold the counters move, and the comparison sees it."""
    box = faulty()
    box.run(IMAGE, "sample-busy", "--dir", "/dev/shm", "--cuda", "--children", "1", flags=gpu.FLAGS)
    boards = gpu.Boards(box, INIT, CHILD)
    boards.wait_all_count()
    box.pause()
    paused = boards.read()
    # Long enough for the threads to be scheduled while they are not held.
    gpu.set_knobs(box, "checkpoint=slow:200")
    with node.faults("threads.hold skip"):
        box.dump(folder / "unheld", "--leave-running", check=False)
    assert boards.read() != paused
    gpu.set_knobs(box)
    box.resume()
    boards.wait_all_count()


def test_restored_counters_go_on(node, icebox):
    """Processes that never stop counting, with memory shared with files and more threads than processors."""
    box = icebox()
    box.run(IMAGE, "sh", "-c", "mkdir /counts; exec sample-busy --dir /counts --cuda --children 1", flags=gpu.FLAGS)
    boards = gpu.Boards(box, "/counts/busy.0", "/counts/busy.1")
    boards.wait_all_count()
    before = boards.read()
    box.checkpoint("checkpoint:moment")
    box.stop()
    box.remove()
    again = icebox()
    again.restore_from("checkpoint:moment")
    boards = gpu.Boards(again, "/counts/busy.0", "/counts/busy.1")
    boards.wait_all_count()
    for file, counts in boards.read().items():
        assert all(new > old for new, old in zip(counts, before[file]))


def test_a_paused_container_is_on_its_gpu(node, icebox, folder):
    """Nobody may take the memory of a container whose checkpoint was taken while it was paused."""
    box = icebox()
    box.run(IMAGE, "sample-counter", flags=gpu.FLAGS)
    with gpu.counter(box) as counter:
        before = counter.ask()
        box.pause()
        assert counter.try_ask(seconds=0.2) is None
        box.dump(folder / "on-gpu", "--leave-running")
        assert gpu.device_holders([box.pid]) == [box.pid]
        box.resume()
        after = counter.ask()
    assert after.token == before.token


def test_commands_while_paused(node, icebox):
    box = icebox()
    box.run(IMAGE, "sample-counter", flags=gpu.FLAGS)
    with gpu.counter(box) as counter:
        counter.ask()
    box.pause()
    assert box.task("pause", check=False).code != 0
    assert box.exec("true", check=False).code != 0
    assert box.status == "PAUSED"
    box.kill()
    box.wait_status("STOPPED")
    assert box.delete_task() == 137
