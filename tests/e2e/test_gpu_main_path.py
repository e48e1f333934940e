# SPDX-License-Identifier: Apache-2.0
"""What Icebox is for: containers with state on a GPU, checkpointed and restored with ctr."""

import re
import subprocess

import pytest
from harness import gpu, procs

IMAGE = "icebox.local/samples:e2e"

pytestmark = pytest.mark.both_cgroups


def assert_same_process(before: gpu.Answer, after: gpu.Answer, requests: int) -> None:
    """The state in device memory went on: same token, and not more counted than was asked for."""
    assert after.token == before.token
    assert after.pid == before.pid
    assert before.counter < after.counter <= before.counter + requests


def test_checkpoint_kill_restore(node, icebox):
    box = icebox()
    box.run(IMAGE, "sample-counter", flags=gpu.FLAGS)
    with gpu.counter(box) as counter:
        before = counter.ask()
    box.checkpoint("checkpoint:gpu")
    box.stop()
    box.remove()
    again = icebox()
    again.restore_from("checkpoint:gpu")
    assert again.status == "RUNNING"
    assert gpu.device_holders([again.pid]) == [again.pid], "the restored process is on the GPU"
    with gpu.counter(again) as counter:
        assert_same_process(before, counter.ask(), counter.sent)


def test_checkpoint_leaves_the_container_running(node, icebox):
    box = icebox()
    box.run(IMAGE, "sample-counter", flags=gpu.FLAGS)
    with gpu.counter(box) as counter:
        before = counter.ask()
        pid = box.pid
        box.checkpoint("checkpoint:leave")
        sent = counter.sent
        assert (box.status, box.pid) == ("RUNNING", pid)
        assert_same_process(before, counter.ask(), counter.sent - sent)
    assert node.cgroups.thawed(box.cgroup)


def test_what_the_checkpoint_says_about_itself(node, icebox):
    box = icebox()
    box.run(IMAGE, "sample-counter", "--mib", "16", flags=gpu.FLAGS)
    with gpu.counter(box) as counter:
        answer = counter.ask()
    pid = box.pid
    box.checkpoint("checkpoint:info")
    info = gpu.image_info(box, "checkpoint:info")
    state = info["gpu"]
    assert info["container"]["id"] == box.id
    assert state["state"] == "inline"
    assert [process["host_pid"] for process in state["processes"]] == [pid]
    assert state["processes"][0]["ns_pids"] == [answer.pid]
    assert state["processes"][0]["gpu_bytes"] >= 16 << 20
    assert [entry["uuid"] for entry in state["devices"]] == [answer.gpu]
    assert info["left_out"] == []
    files = gpu.image_files(box, "checkpoint:info")
    assert info["files"] == {name: len(data) for name, data in files.items() if name != "icebox.json"}
    assert {"suspend_gpu", "dump", "sync", "restore_gpu"} <= set(info["timings_ms"])


def test_generations(node, icebox):
    """A checkpoint of a restored container, and one of that."""
    box = icebox()
    box.run(IMAGE, "sample-counter", flags=gpu.FLAGS)
    with gpu.counter(box) as counter:
        answer = counter.ask()
    for generation in range(3):
        reference = f"checkpoint:gpu-generation{generation}"
        box.checkpoint(reference)
        box.stop()
        box.remove()
        box = icebox()
        box.restore_from(reference)
        with gpu.counter(box) as counter:
            now = counter.ask()
            assert_same_process(answer, now, counter.sent)
        answer = now
        # containerd 1.x takes its own copy of the same spec, from the checkpoint before, for an error.
        node.ctr("images", "rm", "--sync", reference)


BEAT = re.compile(r"child (\d+) pid=(\d+): beat (\d+) ok bytes=(\d+) hash=([0-9a-f]+)")


def read_beats(stream, children: int) -> dict[str, tuple]:
    """The first beat that each child reports: child -> (pid, number, bytes, hash of its device memory)."""
    beats: dict[str, tuple] = {}
    while len(beats) < children:
        line = stream.readline()
        assert line, "the container's output ended"
        assert "MISMATCH" not in line
        match = BEAT.search(line)
        if match:
            beats.setdefault(match[1], (match[2], int(match[3]), match[4], match[5]))
    return beats


def test_several_processes(node, icebox):
    """Three CUDA processes, each with a pattern of its own that it checks for ever."""
    box = icebox()
    flags = tuple(flag for flag in gpu.FLAGS if flag != "--null-io")
    client = box.popen(IMAGE, "sample-multi", "--processes", "3", "--mib", "8", "--tick-ms", "20", flags=flags,
                       stdout=subprocess.PIPE, text=True)
    before = read_beats(client.stdout, 3)
    assert len({entry[3] for entry in before.values()}) == 3
    assert len(gpu.device_holders(node.cgroups.pids(box.cgroup))) == 3
    box.checkpoint("checkpoint:multi")
    read_beats(client.stdout, 3)
    box.kill()
    client.wait(procs.DEADLINE)
    box.remove()
    again = icebox()
    again.restore_from("checkpoint:multi")
    attached = node.ctr_popen("tasks", "attach", again.id, stdout=subprocess.PIPE, text=True)
    after = read_beats(attached.stdout, 3)
    attached.kill()
    attached.wait()
    assert len(gpu.device_holders(node.cgroups.pids(again.cgroup))) == 3
    for child, (pid, number, size, content) in before.items():
        assert after[child][0] == pid and after[child][1] > number
        assert after[child][2:] == (size, content)
