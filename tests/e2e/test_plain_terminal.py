# SPDX-License-Identifier: Apache-2.0
"""Containers and execs with a terminal. Same under both shims."""

import pytest
from harness import procs
from harness.terminal import Terminal

IMAGE = "icebox.local/busybox:e2e"


def test_run_with_a_terminal(node, container):
    box = container()
    with Terminal(node, *box.run_arguments(IMAGE, "sh", flags=("--rm", "-t"))) as terminal:
        terminal.expect("# ")
        terminal.type("tty; echo [$((40+2))]\n")
        shown = terminal.expect("[42]")
        assert "/dev/" in shown
        terminal.type("exit 11\n")
        assert terminal.wait() == 11


def test_terminal_size_follows_the_users(node, container):
    box = container()
    with Terminal(node, *box.run_arguments(IMAGE, "sh", flags=("--rm", "-t")), rows=31, columns=111) as terminal:
        terminal.expect("# ")

        def size_is(rows: int, columns: int) -> bool:
            # The first resize may still be on its way when the prompt is there.
            terminal.type("stty size; echo 'e''nd'\n")
            return f"\n{rows} {columns}\n" in terminal.expect("\nend\n")

        procs.wait_until(lambda: size_is(31, 111), "the terminal has the user's size")
        terminal.resize(25, 90)
        procs.wait_until(lambda: size_is(25, 90), "the terminal has the new size")
        terminal.type("exit\n")
        assert terminal.wait() == 0


def test_interrupt_key(node, container):
    """The terminal's line discipline inside the container turns ^C into SIGINT for the foreground group there."""
    box = container()
    with Terminal(node, *box.run_arguments(IMAGE, "sh", flags=("--rm", "-t"))) as terminal:
        terminal.expect("# ")
        terminal.type("sh -c 'trap \"echo g''ot it; exit 3\" INT; echo re''ady; while :; do sleep 0.01; done'; echo [$?]\n")
        terminal.expect("ready")
        terminal.type("\x03")
        terminal.expect("got it")
        terminal.expect("[3]")
        terminal.type("exit\n")
        assert terminal.wait() == 0


def test_terminal_output_is_complete(node, container):
    """What the container writes just before its end is shown before ctr ends."""
    box = container()
    with Terminal(node, *box.run_arguments(IMAGE, "sh", "-c", "seq 1 20000; echo last", flags=("--rm", "-t"))) as terminal:
        shown = terminal.expect("last\n")
        assert shown.split() == [*[str(number) for number in range(1, 20001)], "last"]
        assert terminal.wait() == 0


def test_terminal_without_init_does_not_hang(node, container):
    """A process of the container that outlives init on the terminal must not keep ctr from ending."""
    box = container()
    command = "trap '' HUP; sleep 1000 & echo started; exit 8"
    with Terminal(node, *box.run_arguments(IMAGE, "sh", "-c", command, flags=("--rm", "-t"))) as terminal:
        terminal.expect("started")
        assert terminal.wait() == 8


@pytest.mark.parametrize("with_terminal", [False, True], ids=["init-without", "init-with"])
def test_exec_with_a_terminal(node, container, with_terminal):
    box = container()
    if with_terminal:
        client = Terminal(node, *box.run_arguments(IMAGE, "sleep", "1000", flags=("-t",)))
    else:
        box.run(IMAGE, "sleep", "1000")
        client = None
    if client is not None:
        client.__enter__()
        box.wait_status("RUNNING")
    try:
        with Terminal(node, "tasks", "exec", "-t", "--exec-id", "shell", box.id, "sh") as terminal:
            terminal.expect("# ")
            terminal.type("tty; echo [$((2+3))]\n")
            assert "/dev/" in terminal.expect("[5]")
            terminal.type("exit 12\n")
            assert terminal.wait() == 12
    finally:
        if client is not None:
            client.__exit__()
