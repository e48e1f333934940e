# SPDX-License-Identifier: Apache-2.0
"""`ctr run` of containers without CUDA: exit statuses, standard streams, errors. Same under both shims."""

import hashlib
import signal
import subprocess

import pytest
from harness import procs
from harness.leaks import snapshot
from harness.node import Events

IMAGE = "icebox.local/busybox:e2e"
MEGABYTE = 1 << 20


def test_output_and_success(container):
    done = container().run_foreground(IMAGE, "sh", "-c", "echo out; echo err >&2")
    assert (done.code, done.stdout, done.stderr) == (0, "out\n", "err\n")


@pytest.mark.parametrize("code", [1, 7, 255])
def test_exit_code(container, code):
    assert container().run_foreground(IMAGE, "sh", "-c", f"exit {code}", check=False).code == code


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGHUP, signal.SIGTERM, signal.SIGUSR2, signal.SIGABRT])
def test_exit_by_signal(container, number):
    """128 + signal, for a process that the kernel lets be killed: a child of init gives its status on."""
    done = container().run_foreground(IMAGE, "sh", "-c", f"sh -c 'kill -{int(number)} $$'; exit $?", check=False)
    assert done.code == 128 + number


def test_killed_init_is_137(container):
    box = container()
    client = box.popen(IMAGE, "sleep", "1000", flags=("--rm",))
    box.wait_status("RUNNING")
    box.kill(signal.SIGKILL)
    assert client.wait(procs.DEADLINE) == 137


def test_ctr_forwards_signals(container):
    box = container()
    client = box.popen(IMAGE, "sh", "-c", "trap 'exit 42' USR1; echo ready; while :; do sleep 0.01; done", flags=("--rm",),
                       stdout=subprocess.PIPE, text=True)
    assert client.stdout.readline() == "ready\n"

    def ended() -> bool:
        # ctr starts to forward at some moment after the container has started; before that it drops this signal.
        client.send_signal(signal.SIGUSR1)
        return client.poll() is not None

    procs.wait_until(ended, "the container ends by the forwarded signal", interval=0.05)
    assert client.returncode == 42


def test_many_short_containers(container):
    """The exit of a process that ends at once must not be lost between create, start and wait."""
    for code in (0, 3, 0, 4, 0, 5):
        assert container().run_foreground(IMAGE, "sh", "-c", f"exit {code}", check=False).code == code


def test_rm_leaves_no_container(node, container):
    before = snapshot(node)["containers"]
    container().run_foreground(IMAGE, "true")
    assert node.containers() == before


def test_standard_input_and_its_end(container):
    # The input stays open until the first answer: ctr loses an end of input that comes before it has the task.
    client = container().popen(IMAGE, "sh", "-c", "cat; echo end", flags=("--rm",), stdin=subprocess.PIPE,
                               stdout=subprocess.PIPE)
    client.stdin.write(b"one\ntwo\n")
    client.stdin.flush()
    assert client.stdout.readline() + client.stdout.readline() == b"one\ntwo\n"
    client.stdin.close()
    assert client.stdout.read() == b"end\n"
    assert client.wait(procs.DEADLINE) == 0


def test_large_output_is_complete(node, container):
    """10 MiB through the FIFO, many times its size, arrive unchanged although the container ends at once after them."""
    box = container()
    client = box.popen(IMAGE, "sh", "-c", "dd if=/dev/urandom of=/data bs=1M count=10 2>/dev/null; sha256sum /data >&2; cat /data",
                       flags=("--rm",), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    out, err = client.communicate(timeout=60)
    assert client.returncode == 0
    assert len(out) == 10 * MEGABYTE
    assert hashlib.sha256(out).hexdigest() == err.decode().split()[0]


def test_large_input_is_complete(container):
    data = bytes(range(256)) * (8 * MEGABYTE // 256) + b"tail"
    done = container().run_foreground(IMAGE, "sha256sum", input=data)
    assert done.stdout.split()[0] == hashlib.sha256(data).hexdigest()


def test_output_of_a_slow_reader(container):
    """Backpressure: a container that writes more than the pipes hold waits for its reader and loses nothing."""
    box = container()
    client = box.popen(IMAGE, "sh", "-c", "seq 1 100000; echo done > /finished; exit 9", flags=("--rm",), stdout=subprocess.PIPE)
    box.wait_status("RUNNING")
    assert not box.read("finished")
    lines = client.stdout.read().split()
    assert lines == [str(number).encode() for number in range(1, 100001)]
    assert client.wait(procs.DEADLINE) == 9


def test_environment_and_working_folder(container):
    done = container().run_foreground(IMAGE, "sh", "-c", "echo $COLOUR; pwd", flags=("--env", "COLOUR=blue", "--cwd", "/tmp"))
    assert done.stdout == "blue\n/tmp\n"


def test_null_io(container):
    assert container().run_foreground(IMAGE, "sh", "-c", "echo lost; exit 6", flags=("--null-io",), check=False).code == 6


def test_missing_program(container):
    box = container()
    done = box.run_foreground(IMAGE, "/no/such/program", check=False)
    assert done.code != 0
    assert "OCI runtime create failed" in done.text and "/no/such/program" in done.text
    assert "no such file or directory" in done.text


def test_missing_program_detached(container):
    """The failed task is gone, and its id is free again."""
    box = container()
    assert "no such file or directory" in box.run(IMAGE, "/no/such/program", check=False).text
    assert box.status == ""
    box.remove()
    assert box.run_foreground(IMAGE, "echo", "again").stdout == "again\n"


def test_missing_working_folder_is_made(container):
    assert container().run_foreground(IMAGE, "pwd", flags=("--cwd", "/made/here")).stdout == "/made/here\n"


def test_not_executable(container):
    done = container().run_foreground(IMAGE, "/etc/passwd", check=False)
    assert done.code != 0
    assert "permission denied" in done.text


def test_read_only_root(container):
    done = container().run_foreground(IMAGE, "sh", "-c", "echo x > /x", flags=("--read-only",), check=False)
    assert done.code != 0 and "Read-only file system" in done.stderr


def test_memory_limit_kills(node, container):
    """The out-of-memory kill is the exit status, and an event says why."""
    box = container()
    with Events(node) as events:
        done = box.run_foreground(IMAGE, "sh", "-c", "x=0123456789; while :; do x=$x$x; done", check=False,
                                  flags=("--memory-limit", str(16 * MEGABYTE)))
        procs.wait_until(lambda: "/tasks/oom" in [topic for topic, _ in events.of_tasks(box.id)], "an oom event")
    assert done.code == 137
