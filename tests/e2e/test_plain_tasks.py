# SPDX-License-Identifier: Apache-2.0
"""`ctr tasks ...` on containers without CUDA. Same under both shims."""

import concurrent.futures
import json
import re
import signal
import subprocess

import pytest
from harness import procs
from harness.node import Events

IMAGE = "icebox.local/busybox:e2e"
COUNT_INTO_FILE = "i=0; while :; do i=$((i+1)); echo $i > /count.new; mv /count.new /count; done"


def counter(box) -> int:
    return int(box.wait_file("count", r"^\d+$"))


def test_life_of_a_detached_task(node, container):
    box = container()
    box.run(IMAGE, "sh", "-c", "trap 'exit 33' TERM; echo > /ready; while :; do sleep 0.01; done")
    box.wait_file("ready", "")
    assert box.status == "RUNNING"
    assert procs.alive(box.pid)
    assert box.pid in [int(row.split()[0]) for row in box.task("ps").stdout.splitlines()[1:]]
    box.kill(signal.SIGTERM)
    box.wait_status("STOPPED")
    assert box.delete_task() == 33
    assert box.status == ""


def test_states_refuse_what_they_must(node, container):
    box = container()
    box.run(IMAGE, "sleep", "1000")
    assert "already exists" in box.task("start", check=False).text
    assert "must be stopped" in box.task("delete", check=False).text
    assert box.task("resume", check=False).code != 0
    box.pause()
    assert box.task("pause", check=False).code != 0
    assert box.exec("true", check=False).code != 0
    box.resume()
    assert box.exec("true").code == 0
    box.kill()
    box.wait_status("STOPPED")
    assert box.task("pause", check=False).code != 0
    assert box.exec("true", check=False).code != 0
    assert box.kill(check=False).code != 0
    assert box.delete_task() == 137
    assert "not found" in box.task("pause", check=False).text


def test_forced_delete_of_a_running_task(node, container):
    box = container()
    box.run(IMAGE, "sleep", "1000")
    pid = box.pid
    box.task("delete", "--force", check=False)
    assert box.status == ""
    assert not procs.alive(pid)


def test_task_started_again(node, container):
    """A new task of the same container, after the first one was deleted."""
    box = container()
    box.run(IMAGE, "sh", "-c", "echo x >> /runs; exec sleep 1000")
    box.wait_file("runs")
    box.stop()
    box.task("start", "--detach", "--null-io")
    assert box.status == "RUNNING"
    box.wait_file("runs", "x\nx\n")


@pytest.mark.both_cgroups
def test_pause_stops_and_resume_continues(node, container):
    box = container()
    box.run(IMAGE, "sh", "-c", COUNT_INTO_FILE)
    counter(box)
    box.pause()
    assert box.status == "PAUSED"
    assert node.cgroups.frozen(box.cgroup)
    still = counter(box)
    box.task("ps")
    assert counter(box) == still
    box.resume()
    assert box.status == "RUNNING"
    assert node.cgroups.thawed(box.cgroup)
    procs.wait_until(lambda: counter(box) > still, "the counter goes on")


@pytest.mark.both_cgroups
def test_kill_of_a_paused_task(node, container):
    box = container()
    box.run(IMAGE, "sleep", "1000")
    box.pause()
    box.kill(signal.SIGKILL)
    # The stock shim leaves it to the client to thaw on v2 before the signal arrives.
    if box.status == "PAUSED":
        box.task("resume", check=False)
    box.wait_status("STOPPED")
    assert box.delete_task() == 137


def test_exec_streams_and_status(node, container):
    box = container()
    box.run(IMAGE, "sleep", "1000")
    done = box.exec("sh", "-c", "echo out; echo err >&2; exit 5", check=False)
    assert (done.code, done.stdout, done.stderr) == (5, "out\n", "err\n")
    assert box.exec("sh", "-c", "kill -9 $$", check=False).code == 137
    assert box.exec("pwd", flags=("--cwd", "/etc")).stdout == "/etc\n"
    assert "no such file or directory" in box.exec("/no/such/program", check=False).text
    assert box.exec("echo", "still fine").stdout == "still fine\n"


def test_detached_exec_and_its_kill(node, container):
    box = container()
    box.run(IMAGE, "sleep", "1000")
    box.exec("sh", "-c", "trap 'echo term > /trapped; exit 0' TERM; echo > /ready; while :; do sleep 0.01; done",
             flags=("--detach",), exec_id="worker")
    box.wait_file("ready", "")
    assert "worker" in box.task("ps").stdout
    assert "already exists" in box.exec("true", exec_id="worker", check=False).text
    node.ctr("tasks", "kill", "--exec-id", "worker", "--signal", "TERM", box.id)
    box.wait_file("trapped", "term")
    node.ctr("tasks", "delete", "--exec-id", "worker", box.id)
    assert "worker" not in box.task("ps").stdout
    assert box.status == "RUNNING"


def test_execs_side_by_side(node, container):
    """Twenty at once: every status reaches its own client."""
    box = container()
    box.run(IMAGE, "sleep", "1000")
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        codes = list(pool.map(lambda code: box.exec("sh", "-c", f"exit {code}", check=False, exec_id=f"e{code}").code,
                              range(20)))
    assert codes == list(range(20))


def test_kill_all(node, container):
    box = container()
    box.run(IMAGE, "sleep", "1000")
    box.exec("sleep", "1000", flags=("--detach",), exec_id="other")
    processes = node.cgroups.pids(box.cgroup)
    assert len(processes) == 2
    box.task("kill", "--all", "--signal", "KILL")
    box.wait_status("STOPPED")
    procs.wait_until(lambda: not any(procs.alive(pid) for pid in processes), "all processes end")


def test_every_signal_arrives(node, container):
    box = container()
    names = {signal.SIGHUP, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGWINCH, signal.SIGCONT}
    traps = "".join(f"trap 'echo {int(number)} >> /got' {int(number)}; " for number in names)
    box.run(IMAGE, "sh", "-c", f"{traps} echo > /ready; while :; do sleep 0.01; done")
    box.wait_file("ready", "")
    for number in names:
        box.kill(number)
        box.wait_file("got", rf"(?m)^{int(number)}$")


def test_metrics(node, container):
    box = container()
    box.run(IMAGE, "sh", "-c", COUNT_INTO_FILE)
    counter(box)
    text = box.task("metrics").stdout
    assert box.id in text
    usage = [int(value) for value in re.findall(r"^cpuacct.usage\s+(\d+)", text, re.MULTILINE)]
    if node.cgroup_version == "v1":
        assert usage and usage[0] > 0, text


def test_exec_standard_input_and_its_end(node, container):
    box = container()
    box.run(IMAGE, "sleep", "1000")
    client = node.ctr_popen("tasks", "exec", "--exec-id", "cat", box.id, "sh", "-c", "cat; exit 6", stdin=subprocess.PIPE,
                            stdout=subprocess.PIPE)
    client.stdin.write(b"in\n")
    client.stdin.flush()
    assert client.stdout.readline() == b"in\n"
    client.stdin.close()
    assert client.wait(procs.DEADLINE) == 6


def test_processes_left_by_init_are_reaped(node, container, busybox_rootfs):
    """In the host's pid namespace orphans fall to the shim, which must neither keep zombies nor take them for its own."""
    box = container()
    spec = node.spec(IMAGE, "sh", "-c", "(sh -c 'sleep 0.05; exit 9' &); echo > /ready; exec sleep 1000")
    spec["linux"]["namespaces"] = [entry for entry in spec["linux"]["namespaces"] if entry["type"] != "pid"]
    spec["root"]["path"] = str(busybox_rootfs)
    spec["linux"]["cgroupsPath"] = box.cgroup
    config = busybox_rootfs.parent / "config.json"
    config.write_text(json.dumps(spec))
    node.ctr("run", "--runtime", box.runtime, "--detach", "--null-io", "--config", str(config), box.id)
    procs.wait_until((busybox_rootfs / "ready").exists, "the container's shell has run")
    shim = procs.parent(box.pid)
    assert "containerd-shim" in procs.cmdline(shim)[0]
    procs.wait_until(lambda: procs.children(shim) == [box.pid], "the shim has only init as a child")
    assert box.status == "RUNNING"


@pytest.mark.parametrize("with_exec", [False, True], ids=["alone", "with-exec"])
def test_events_in_order(node, container, with_exec):
    """create < start < exit < delete, exec events nested, each exit published once, with the true status."""
    box = container()
    with Events(node) as events:
        client = box.popen(IMAGE, "sh", "-c", "echo ready; trap 'exit 3' TERM; while :; do sleep 0.01; done", flags=("--rm",),
                           stdout=subprocess.PIPE, text=True)
        assert client.stdout.readline() == "ready\n"
        expected = ["/tasks/create", "/tasks/start"]
        if with_exec:
            assert box.exec("sh", "-c", "exit 4", exec_id="extra", check=False).code == 4
            expected += ["/tasks/exec-added", "/tasks/exec-started", "/tasks/exit"]
        box.pause()
        box.resume()
        box.kill(signal.SIGTERM)
        assert client.wait(procs.DEADLINE) == 3
        expected += ["/tasks/paused", "/tasks/resumed", "/tasks/exit", "/tasks/delete"]
        procs.wait_until(lambda: len(events.of_tasks(box.id)) >= len(expected), "all events")
        seen = events.of_tasks(box.id)
    assert [topic for topic, _ in seen] == expected
    exits = {event["id"]: event.get("exit_status", 0) for topic, event in seen if topic == "/tasks/exit"}
    assert exits == ({box.id: 3, "extra": 4} if with_exec else {box.id: 3})


def test_exec_exits_before_init(node, container):
    """When init dies, the exits of its execs are published before its own."""
    box = container()
    with Events(node) as events:
        box.run(IMAGE, "sleep", "1000")
        for name in ("a", "b"):
            box.exec("sleep", "1000", flags=("--detach",), exec_id=name)
        box.kill()
        box.wait_status("STOPPED")
        procs.wait_until(lambda: sum(topic == "/tasks/exit" for topic, _ in events.of_tasks(box.id)) == 3, "three exits")
        order = [event["id"] for topic, event in events.of_tasks(box.id) if topic == "/tasks/exit"]
    assert order[-1] == box.id and sorted(order[:2]) == ["a", "b"]
