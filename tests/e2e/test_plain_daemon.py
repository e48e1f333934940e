# SPDX-License-Identifier: Apache-2.0
"""Containers outlive their clients and the daemon. Same under both shims."""

import signal
import subprocess

from harness import procs

IMAGE = "icebox.local/busybox:e2e"
COUNT_ALOUD = "i=0; while :; do i=$((i+1)); echo $i; echo $i > /count.new; mv /count.new /count; sleep 0.005; done"


def counter(box) -> int:
    return int(box.wait_file("count", r"^\d+$"))


def test_container_outlives_its_client(node, container):
    """The client's death closes the FIFOs; the container must neither end by SIGPIPE nor lose the next client."""
    box = container()
    client = box.popen(IMAGE, "sh", "-c", COUNT_ALOUD, stdout=subprocess.PIPE, text=True)
    assert client.stdout.readline() == "1\n"
    client.kill()
    client.wait()
    before = counter(box)
    procs.wait_until(lambda: counter(box) > before + 20, "the container goes on")
    attached = node.ctr_popen("tasks", "attach", box.id, stdout=subprocess.PIPE, text=True)
    first = procs.wait_until(attached.stdout.readline, "the attached client shows output")
    assert int(first) > 1
    attached.kill()
    attached.wait()
    assert box.status == "RUNNING"


def test_attached_client_sees_the_exit(node, container):
    box = container()
    client = box.popen(IMAGE, "sh", "-c", "trap 'exit 21' TERM; echo ready; while :; do sleep 0.01; done",
                       stdout=subprocess.PIPE, text=True)
    assert client.stdout.readline() == "ready\n"
    client.kill()
    client.wait()
    attached = node.ctr_popen("tasks", "attach", box.id, stdout=subprocess.PIPE, text=True)
    # ctr attach waits for the task before it copies; a signal sent too early is still seen as the exit status.
    box.kill(signal.SIGTERM)
    assert attached.wait(procs.DEADLINE) == 21


def test_daemon_killed_and_started_again(node, container):
    """The shim keeps the container; the new daemon finds it, and everything still works."""
    box = container()
    box.run(IMAGE, "sh", "-c", "trap 'exit 17' TERM; " + COUNT_ALOUD)
    pid, before = box.pid, counter(box)
    node.stop_daemon(signal.SIGKILL)
    procs.wait_until(lambda: counter(box) > before, "the container goes on without a daemon")
    node.start_daemon()
    assert node.tasks()[box.id] == (pid, "RUNNING")
    assert box.exec("echo", "hello").stdout == "hello\n"
    box.pause()
    assert box.status == "PAUSED"
    box.resume()
    box.kill(signal.SIGTERM)
    box.wait_status("STOPPED")
    assert box.delete_task() == 17


def test_exit_while_the_daemon_is_away(node, container):
    """The true exit status waits in the shim."""
    box = container()
    box.run(IMAGE, "sh", "-c", "trap 'exit 19' TERM; echo > /ready; while :; do sleep 0.01; done")
    box.wait_file("ready", "")
    pid = box.pid
    node.stop_daemon(signal.SIGKILL)
    # The container's init cannot be signalled through containerd now.
    procs.kill(pid, signal.SIGTERM)
    procs.wait_until(lambda: not procs.alive(pid), "init ends")
    node.start_daemon()
    assert node.tasks()[box.id][1] == "STOPPED"
    assert box.delete_task() == 19


def test_paused_over_a_daemon_restart(node, container):
    box = container()
    box.run(IMAGE, "sh", "-c", COUNT_ALOUD)
    counter(box)
    box.pause()
    still = counter(box)
    node.stop_daemon(signal.SIGTERM)
    node.start_daemon()
    assert box.status == "PAUSED"
    assert counter(box) == still
    box.resume()
    procs.wait_until(lambda: counter(box) > still, "the counter goes on")


def test_shim_killed(node, container):
    """A dead shim takes its container along: containerd's cleanup ends it and reports the end."""
    box = container()
    box.run(IMAGE, "sh", "-c", COUNT_ALOUD)
    pid = box.pid
    shim = procs.parent(pid)
    assert shim in node.shims()
    procs.kill(shim)
    procs.wait_until(lambda: not procs.alive(pid), "the container has ended")
    procs.wait_until(lambda: box.status in ("", "STOPPED"), "containerd knows", interval=0.05)
