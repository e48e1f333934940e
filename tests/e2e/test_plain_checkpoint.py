# SPDX-License-Identifier: Apache-2.0
"""Checkpoint and restore of containers without CUDA. Same under both shims."""

import subprocess

import pytest
from harness import procs

IMAGE = "icebox.local/busybox:e2e"
# A start writes a new random token; only memory that survived can go on with the old one.
COUNTER = ("t=$(cat /proc/sys/kernel/random/uuid); i=0; "
           "while :; do i=$((i+1)); echo $t $i > /count.new; mv /count.new /count; done")

pytestmark = pytest.mark.both_cgroups


def look(box) -> tuple[str, int]:
    token, number = box.wait_file("count", r"^\S+ \d+$").split()
    return token, int(number)


def wait_beyond(box, number: int) -> None:
    procs.wait_until(lambda: look(box)[1] > number, f"{box.id} counts beyond {number}")


def test_checkpoint_leaves_the_container_running(node, container):
    box = container()
    box.run(IMAGE, "sh", "-c", COUNTER)
    token, before = look(box)
    box.checkpoint("checkpoint:running")
    assert box.status == "RUNNING"
    wait_beyond(box, before)
    assert look(box)[0] == token


def test_checkpoint_kill_restore(node, container):
    box = container()
    box.run(IMAGE, "sh", "-c", COUNTER)
    token, before = look(box)
    box.checkpoint("checkpoint:restore")
    after_checkpoint = look(box)[1]
    box.stop()
    box.remove()
    again = container()
    again.restore_from("checkpoint:restore")
    assert again.status == "RUNNING"
    restored_token, first = look(again)
    assert restored_token == token
    wait_beyond(again, first)
    assert before <= first
    assert first < after_checkpoint + 100000, "the counter went on from the checkpoint"


def test_checkpoint_takes_the_files_along(node, container):
    box = container()
    box.run(IMAGE, "sh", "-c", "echo precious > /data; rm /etc/hosts; " + COUNTER)
    look(box)
    box.checkpoint("checkpoint:files")
    box.stop()
    box.remove()
    again = container()
    again.restore_from("checkpoint:files")
    assert again.read("data") == "precious\n"
    assert again.read("etc/hosts") == ""
    assert again.exec("cat", "/data").stdout == "precious\n"


def test_generations(node, container):
    """A checkpoint of a restored container, three times over."""
    box = container()
    box.run(IMAGE, "sh", "-c", COUNTER)
    token, number = look(box)
    for generation in range(3):
        wait_beyond(box, number)
        number = look(box)[1]
        box.checkpoint(f"checkpoint:generation{generation}")
        box.stop()
        box.remove()
        box = container()
        box.restore_from(f"checkpoint:generation{generation}")
        now = look(box)
        assert now[0] == token and now[1] >= number
        # containerd 1.x takes its own copy of the same spec, from the checkpoint before, for an error.
        node.ctr("images", "rm", "--sync", f"checkpoint:generation{generation}")
    wait_beyond(box, number)


def test_restored_container_is_a_whole_container(node, container):
    box = container()
    box.run(IMAGE, "sh", "-c", COUNTER)
    look(box)
    box.checkpoint("checkpoint:whole")
    box.stop()
    box.remove()
    again = container()
    again.restore_from("checkpoint:whole")
    assert again.exec("sh", "-c", "exit 9", check=False).code == 9
    assert again.pid in [int(row.split()[0]) for row in again.task("ps").stdout.splitlines()[1:]]
    again.pause()
    still = look(again)
    assert again.status == "PAUSED" and look(again) == still
    again.resume()
    wait_beyond(again, still[1])
    again.kill()
    again.wait_status("STOPPED")
    assert again.delete_task() == 137


def test_task_checkpoint(node, container):
    """`ctr tasks checkpoint`, which makes an image of the task alone."""
    box = container()
    box.run(IMAGE, "sh", "-c", COUNTER)
    _, before = look(box)
    images = set(node.images())
    box.task("checkpoint")
    assert len(set(node.images()) - images) == 1
    assert box.status == "RUNNING"
    wait_beyond(box, before)


def test_open_pipes_survive(node, container):
    """Bytes inside the container's own pipes, and the blocked reader of another one."""
    box = container()
    box.run(IMAGE, "sh", "-c", "mkfifo /p; (sleep 1000 > /p) & (read -r line < /p; echo never) & "
            "(while [ ! -e /go ]; do sleep 0.01; done; echo passed) | cat > /out & echo > /ready; wait")
    box.wait_file("ready", "")
    box.checkpoint("checkpoint:pipes")
    box.stop()
    box.remove()
    again = container()
    again.restore_from("checkpoint:pipes")
    again.exec("touch", "/go")
    again.wait_file("out", "passed")


def test_output_of_a_restored_container(node, container):
    """The standard streams of a restored container are its own again."""
    box = container()
    client = box.popen(IMAGE, "sh", "-c", "while :; do echo tick; sleep 0.01; done", stdout=subprocess.PIPE, text=True)
    assert client.stdout.readline() == "tick\n"
    box.checkpoint("checkpoint:output")
    assert client.stdout.readline() == "tick\n"
    box.kill()
    assert client.wait(procs.DEADLINE) == 137
    box.remove()
    again = container()
    again.restore_from("checkpoint:output")
    attached = node.ctr_popen("tasks", "attach", again.id, stdout=subprocess.PIPE, text=True)
    for _ in range(5):
        assert attached.stdout.readline() == "tick\n"
    attached.kill()
    attached.wait()


def test_restore_from_what_is_no_checkpoint(node, container):
    box = container()
    assert box.restore_from(IMAGE, check=False).code != 0
    assert box.status == ""
