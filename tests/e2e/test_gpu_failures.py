# SPDX-License-Identifier: Apache-2.0
"""Checkpoints that fail: what ctr says, and that the workload goes on as if nothing had been."""

import contextlib
import os
import shlex
import shutil
import signal
import time

import pytest
from harness import gpu, paths, procs

IMAGE = "icebox.local/samples:e2e"


@pytest.fixture
def counting(icebox):
    box = icebox()
    box.run(IMAGE, "sample-counter", flags=gpu.FLAGS)
    with gpu.counter(box) as counter:
        counter.ask()
        yield box, counter


@contextlib.contextmanager
def goes_on(box, counter):
    """The workload is the same before and after, and a good checkpoint succeeds."""
    before = counter.ask()
    yield
    assert box.status == "RUNNING" and box.node.cgroups.thawed(box.cgroup)
    assert procs.tracer(box.pid) == 0
    after = counter.ask()
    assert after.token == before.token and after.counter == before.counter + 1
    assert gpu.device_holders([box.pid]) == [box.pid]
    gpu.set_knobs(box)
    reference = box.node.unique("checkpoint:good")
    box.checkpoint(reference)
    assert counter.ask().token == before.token


def refused(box, *words: str, reference: str = "checkpoint:refused") -> str:
    """A checkpoint that fails and says so with all of `words`; no image is left of it."""
    failed = box.checkpoint(reference, check=False)
    assert failed.code != 0, str(failed)
    for word in words:
        assert word in failed.stderr, str(failed)
    assert reference not in box.node.images()
    return failed.stderr


@pytest.mark.both_cgroups
def test_lock_that_does_not_drain(node, counting):
    box, counter = counting
    with goes_on(box, counter), node.config(lock_timeout_ms=2000):
        gpu.set_knobs(box, "lock=busy")
        refused(box, "CUDA could not be locked", f"process {box.pid}", "lock_timeout_ms")


def test_lock_that_hangs(node, counting):
    """The driver does not answer at all: told after the lock's time and the undo's, and undone when it wakes up."""
    box, counter = counting
    with goes_on(box, counter), node.config(lock_timeout_ms=2000):
        gpu.set_knobs(box, "lock=hang")
        start = time.monotonic()
        refused(box, "CUDA could not be locked", f"process {box.pid}", "did not answer", "lock_timeout_ms")
        assert time.monotonic() - start < 15, "2 s for the lock, 2 s of grace; the undo must not ask that driver again"
        gpu.set_knobs(box)


@pytest.mark.both_cgroups
def test_driver_error_at_checkpoint(counting):
    box, counter = counting
    with goes_on(box, counter):
        gpu.set_knobs(box, "checkpoint=999")
        refused(box, "the driver could not suspend CUDA", str(box.pid), "999")


@pytest.mark.both_cgroups
def test_criu_fails_after_the_gpu_was_suspended(node, counting, program_folder):
    box, counter = counting
    real = shlex.quote(str(paths.criu()))
    criu = program_folder("criu", f'case "$1" in swrk) exit 1;; esac\nexec {real} "$@"')
    with goes_on(box, counter):
        gpu.set_knobs(box, f"log={gpu.KNOBS}.log")
        with node.config(criu=str(criu)):
            refused(box, "CRIU could not dump")
        done = (box.rootfs / f"{gpu.KNOBS}.log".lstrip("/")).read_text()
        assert "checkpoint" in done and "restore" in done, "the GPU was suspended, and put back"


@pytest.mark.both_cgroups
def test_exec_without_cuda_is_left_out_and_named(node, counting):
    """CRIU saves only what descends from init; not even an open device that it cannot dump is in its way."""
    box, counter = counting
    with goes_on(box, counter):
        (box.rootfs / "stop").unlink(missing_ok=True)
        box.exec("sh", "-c", "mknod /odd c 10 237; exec 9</odd; while [ ! -e /stop ]; do sleep 0.05; done",
                 flags=("--detach",), exec_id="odd")
        procs.wait_until(lambda: len(node.cgroups.pids(box.cgroup)) > 1, "the exec'ed process")
        box.checkpoint("checkpoint:odd")
        assert any("mknod /odd" in line for line in gpu.image_info(box, "checkpoint:odd")["left_out"])
        (box.rootfs / "stop").touch()
        procs.wait_until(lambda: len(node.cgroups.pids(box.cgroup)) == 1, "the exec'ed process ends")
        node.ctr("images", "rm", "--sync", "checkpoint:odd")


def test_device_without_a_restore_thread(node, icebox):
    box = icebox()
    box.run(IMAGE, "sample-fork", flags=gpu.FLAGS)
    holders = procs.wait_until(lambda: len(h := gpu.device_holders(node.cgroups.pids(box.cgroup))) == 2 and h, "two holders")
    child = next(pid for pid in holders if pid != box.pid)
    refused(box, f"process {child} ", "spawn")
    assert box.status == "RUNNING" and node.cgroups.thawed(box.cgroup)


def test_exec_of_cuda_is_refused(node, counting):
    box, counter = counting
    with goes_on(box, counter):
        box.exec("sample-counter", "--port", "1234", flags=("--detach",), exec_id="gpu")
        pids = procs.wait_until(lambda: len(h := gpu.device_holders(node.cgroups.pids(box.cgroup))) == 2 and h, "both use the GPU")
        other = next(pid for pid in pids if pid != box.pid)
        refused(box, str(other), "exec", "end it, or start it from the container's own command")
        box.task("kill", "--exec-id", "gpu", "--signal", "KILL")
        procs.wait_until(lambda: not procs.alive(other), "the exec'ed process ends")
        box.node.ctr("tasks", "delete", "--exec-id", "gpu", box.id, check=False)


@pytest.mark.parametrize("script, words", [
    ("echo Version: 3.17", ["3.17", "4.1"]),
    ("exit 127", ["criu"]),
], ids=["too old", "broken"])
def test_criu_that_cannot_be_used(node, counting, program_folder, script, words):
    box, counter = counting
    criu = program_folder("criu", script)
    with goes_on(box, counter), node.config(criu=str(criu)):
        refused(box, *words)


def test_criu_missing(node, counting, folder):
    box, counter = counting
    with goes_on(box, counter):
        with node.config(criu=str(folder / "nowhere" / "criu")):
            refused(box, str(folder / "nowhere" / "criu"))


def test_driver_library_missing(node, counting):
    box, counter = counting
    with goes_on(box, counter):
        with node.config(libcuda="/nowhere/libcuda.so.1"):
            refused(box, "/nowhere/libcuda.so.1")


def test_driver_too_old(node, counting):
    box, counter = counting
    with goes_on(box, counter):
        with node.config(libcuda=str(node.cuda / "old" / "libcuda.so.1")):
            refused(box, "driver", "570")


def test_bad_configuration(node, counting):
    box, counter = counting
    with goes_on(box, counter):
        before = node.config_file.read_text()
        node.config_file.write_text("criu = [")
        try:
            refused(box, str(node.config_file))
        finally:
            node.config_file.write_text(before)


@pytest.mark.both_cgroups
def test_disk_too_small(node, counting, folder):
    box, counter = counting
    small = folder / "small"
    small.mkdir()
    node.command("mount", "-t", "tmpfs", "-o", "size=1m", "small", str(small))
    try:
        with goes_on(box, counter):
            failed = box.dump(small / "dump", "--leave-running", check=False)
            assert failed.code != 0
            assert "free" in failed.stderr and str(small) in failed.stderr
    finally:
        node.command("umount", str(small))


@pytest.mark.both_cgroups
def test_driver_leaves_a_device_open(counting):
    box, counter = counting
    with goes_on(box, counter):
        gpu.set_knobs(box, "leave_fd=1")
        refused(box, str(box.pid), "nvidia0")


@pytest.mark.both_cgroups
def test_driver_that_needs_a_stopped_thread(node, counting, folder):
    """It does not come back while the container's threads are held: they are let go, and the checkpoint is as good."""
    box, counter = counting
    with goes_on(box, counter), node.config(driver_timeout_ms=1500):
        gpu.set_knobs(box, "checkpoint=needs_threads")
        done = box.dump(folder / "dump", "--leave-running")
        assert "threads are let go" in done.stderr
        assert (folder / "dump" / "icebox.json").exists()


@pytest.mark.both_cgroups
@pytest.mark.parametrize("operation", ["checkpoint", "restore"])
def test_driver_that_needs_a_thread_of_a_paused_container(node, counting, operation):
    """A pause promises that nothing runs: where that cannot be kept, the checkpoint is refused."""
    box, counter = counting
    with goes_on(box, counter), node.config(driver_timeout_ms=1500):
        gpu.set_knobs(box, f"{operation}=needs_threads")
        refused(box, "is paused, but its threads had to run", "try again")


@pytest.mark.both_cgroups
def test_driver_that_does_not_come_back(node, counting, folder):
    """Neither with the threads let go: the checkpoint fails, the container runs on, and the next command brings CUDA back."""
    box, counter = counting
    with goes_on(box, counter):
        gpu.set_knobs(box, "checkpoint=hang")
        with node.config(driver_timeout_ms=1500):
            failed = box.dump(folder / "dump", "--leave-running", check=False)
            assert failed.code != 0
            for word in ("could not suspend CUDA", "driver_timeout_ms", str(box.pid), "the next command", "kill -9"):
                assert word in failed.stderr, str(failed)
            assert box.status == "RUNNING" and node.cgroups.thawed(box.cgroup) and procs.tracer(box.pid) == 0
            again = box.exec("true", check=False)
            assert again.code != 0 and "has still not come back" in again.stderr, str(again)
            assert node.cgroups.thawed(box.cgroup)
        gpu.set_knobs(box)
        box.exec("true")


@pytest.mark.both_cgroups
def test_driver_that_does_not_come_back_under_ctr(node, counting):
    """ctr pauses first, and resumes after the failure: that cannot succeed, and can be tried again."""
    box, counter = counting
    with goes_on(box, counter):
        gpu.set_knobs(box, "checkpoint=hang")
        with node.config(driver_timeout_ms=1500):
            refused(box, "could not suspend CUDA", "the next command")
        assert box.status == "PAUSED" and node.cgroups.frozen(box.cgroup)
        gpu.set_knobs(box)
        box.resume()


@pytest.mark.both_cgroups
def test_kill_of_a_process_that_the_driver_keeps(node, icebox, folder):
    box = icebox()
    box.run(IMAGE, "sample-counter", flags=gpu.FLAGS)
    with gpu.counter(box) as counter:
        counter.ask()
    gpu.set_knobs(box, "checkpoint=hang")
    with node.config(driver_timeout_ms=1500):
        assert box.dump(folder / "dump", "--leave-running", check=False).code != 0
    box.kill()
    box.wait_status("STOPPED")
    assert box.delete_task() == 137


@pytest.mark.both_cgroups
def test_init_that_dies_inside_the_drivers_checkpoint(node, icebox):
    """The kernel lets no fault end a traced first process of a pid namespace: it would fault for ever."""
    box = icebox()
    box.run(IMAGE, "sample-counter", flags=gpu.FLAGS)
    with gpu.counter(box) as counter:
        counter.ask()
    victim = box.pid
    gpu.set_knobs(box, "checkpoint=die")
    refused(box, "could not suspend CUDA", f"process {victim}", "ended")
    box.wait_status("STOPPED")
    assert box.delete_task() in (128 + signal.SIGKILL, 128 + signal.SIGSEGV)


def test_process_that_dies_inside_the_drivers_checkpoint(node, icebox):
    """Nothing can be saved of it: the failure is told, and the rest of the container goes on and sees its end."""
    box = icebox()
    box.run(IMAGE, "sh", "-c", "sample-counter; exit 7", flags=gpu.FLAGS)
    with gpu.counter(box) as counter:
        counter.ask()
    (victim,) = gpu.device_holders(node.cgroups.pids(box.cgroup))
    gpu.set_knobs(box, "checkpoint=die")
    refused(box, "could not suspend CUDA", f"process {victim}", "ended")
    box.wait_status("STOPPED")
    assert box.delete_task() == 7


@pytest.mark.both_cgroups
@pytest.mark.parametrize("knob", ["checkpoint=hang", "checkpoint=die_hang"])
def test_kill_while_the_driver_is_at_work(node, icebox, knob):
    """Whatever becomes of the driver's call: SIGKILL ends the container, and the checkpoint with it."""
    box = icebox()
    box.run(IMAGE, "sample-counter", flags=gpu.FLAGS)
    with gpu.counter(box) as counter:
        counter.ask()
    gpu.set_knobs(box, knob)
    process = node.ctr_popen("containers", "checkpoint", "--task", box.id, "checkpoint:killed")
    procs.wait_until(lambda: "suspend_gpu" in "".join(path.read_text() for path in node.state_dir.rglob("journal.json")),
                     "the driver is at work")
    time.sleep(0.3)
    box.kill(check=False)  # it may have ended by itself
    box.wait_status("STOPPED")
    assert process.wait(procs.DEADLINE) != 0
    assert box.delete_task() in (128 + signal.SIGKILL, 128 + signal.SIGSEGV)


@pytest.mark.both_cgroups
def test_cuda_process_that_is_stopped(counting):
    """Its driver could not answer: said at once, instead of when the lock's time is over."""
    box, counter = counting
    with goes_on(box, counter):
        os.kill(box.pid, signal.SIGSTOP)
        refused(box, f"process {box.pid} ", "is stopped by a signal", "SIGCONT")
        os.kill(box.pid, signal.SIGCONT)


@pytest.mark.both_cgroups
def test_other_process_that_is_stopped(node, icebox):
    """CRIU would wait for ever on cgroup v1, and saves it on v2."""
    box = icebox()
    box.run(IMAGE, "sh", "-c", "sleep 1000 & kill -STOP $!; echo $! >/stopped; exec sample-counter", flags=gpu.FLAGS)
    with gpu.counter(box) as counter:
        before = counter.ask()
        if node.cgroup_version == "v1":
            refused(box, "is stopped by a signal", "SIGCONT")
        else:
            box.checkpoint("checkpoint:stopped")
        assert counter.ask().token == before.token


@pytest.mark.both_cgroups
def test_cuda_process_that_was_killed_while_paused(node, icebox):
    """What is left is checkpointed, and goes on."""
    box = icebox()
    box.run(IMAGE, "sh", "-c", "sample-counter --port 1234 & sample-counter; exit 7", flags=gpu.FLAGS)
    with gpu.counter(box) as counter:
        before = counter.ask()
        holders = procs.wait_until(lambda: len(h := gpu.device_holders(node.cgroups.pids(box.cgroup))) == 2 and h, "both")
        victim = next(pid for pid in holders if "1234" in procs.cmdline(pid))
        box.pause()
        procs.kill(victim)
        done = box.engine("checkpoint", "--leave-running", "--image-path", "/var/tmp/icebox-e2e-none", check=False)
        shutil.rmtree(node.path("/var/tmp/icebox-e2e-none"), ignore_errors=True)
        assert done.code == 0 or "ended" in done.stderr, str(done)
        box.resume()
        assert counter.ask().token == before.token
        box.checkpoint("checkpoint:after")
        assert counter.ask().token == before.token


def test_target_directory_with_something_odd_in_it(counting, folder):
    """CRIU writes through links: they are refused before it starts."""
    box, counter = counting
    victim = folder / "victim"
    victim.write_text("precious")
    target = folder / "dump"
    target.mkdir()
    (target / "pages-1.img").symlink_to(victim)
    with goes_on(box, counter):
        failed = box.dump(target, "--leave-running", check=False)
        assert failed.code != 0 and "pages-1.img is not a regular file" in failed.stderr, str(failed)
        assert victim.read_text() == "precious"


def test_unknown_container_leaves_nothing(node, icebox):
    box = icebox()
    for command in ("pause", "resume", "checkpoint"):
        failed = box.engine(command, check=False)
        assert failed.code != 0 and "does not exist" in failed.stderr, str(failed)
    assert not list(node.state_dir.rglob("lock"))
