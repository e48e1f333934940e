# SPDX-License-Identifier: Apache-2.0
"""What a checkpoint does with the container: the engine's own command, as podman or a script uses it."""

import json

import pytest
from harness import gpu, procs

IMAGE = "icebox.local/samples:e2e"

pytestmark = pytest.mark.both_cgroups


@pytest.fixture
def counting(icebox):
    """A running counter."""
    box = icebox()
    box.run(IMAGE, "sample-counter", flags=gpu.FLAGS)
    with gpu.counter(box) as counter:
        counter.ask()
        yield box, counter


def sealed(folder) -> dict:
    assert not (folder / "icebox.json.partial").exists()
    return json.loads((folder / "icebox.json").read_text())


def test_leave_running_from_running(node, counting, folder):
    box, counter = counting
    before = counter.ask()
    box.dump(folder / "dump", "--leave-running")
    assert sealed(folder / "dump")["gpu"]["state"] == "inline"
    assert box.status == "RUNNING" and node.cgroups.thawed(box.cgroup)
    after = counter.ask()
    assert (after.token, after.counter) == (before.token, before.counter + 1)


def test_leave_running_from_paused(node, counting, folder):
    box, counter = counting
    before = counter.ask()
    box.pause()
    box.dump(folder / "dump", "--leave-running")
    assert sealed(folder / "dump")["gpu"]["state"] == "inline"
    assert box.status == "PAUSED" and node.cgroups.frozen(box.cgroup)
    box.resume()
    after = counter.ask()
    assert (after.token, after.counter) == (before.token, before.counter + 1)


@pytest.mark.parametrize("paused", [False, True], ids=["running", "paused"])
def test_without_leave_running_the_container_ends(node, counting, folder, paused):
    box, _ = counting
    if paused:
        box.pause()
    box.dump(folder / "dump")
    assert sealed(folder / "dump")
    box.wait_status("STOPPED")
    assert box.delete_task() == 137


def test_the_container_ends_only_after_the_seal(node, faulty, folder):
    """A failure up to the very last step before the kill leaves the workload alive."""
    box = faulty()
    box.run(IMAGE, "sample-counter", flags=gpu.FLAGS)
    with gpu.counter(box) as counter:
        before = counter.ask()
        with node.faults("checkpoint.seal fail"):
            failed = box.dump(folder / "dump", check=False)
        assert failed.code != 0
        assert not (folder / "dump" / "icebox.json").exists()
        assert box.status == "RUNNING"
        assert counter.ask().token == before.token
    with node.faults("checkpoint.kill hang"):
        process = node.popen(*box.engine_command("checkpoint", "--image-path", str(folder / "again")))
        procs.wait_until((folder / "again" / "icebox.json").exists, "the checkpoint is sealed")
        assert box.status == "RUNNING", "still alive (and frozen) when the checkpoint is complete"
    assert process.wait(procs.DEADLINE) == 0
    box.wait_status("STOPPED")


def test_options_that_make_no_complete_directory_are_refused(counting, folder):
    box, counter = counting
    for option in ("--pre-dump", "--lazy-pages"):
        failed = box.dump(folder / "dump", option, check=False)
        assert failed.code != 0 and "not supported" in failed.stderr
    counter.ask()
