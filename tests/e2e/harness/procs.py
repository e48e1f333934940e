# SPDX-License-Identifier: Apache-2.0
"""What /proc says about processes, and waiting for something to become true."""

import os
import pathlib
import signal
import time
from typing import Callable, Iterator, TypeVar

T = TypeVar("T")

# The deadline of a wait that a correct product ends within milliseconds. It is long because a loaded
# two-core machine may be slow; a test that reaches it has failed.
DEADLINE = 15.0


def wait_until(condition: Callable[[], T], what: str, deadline: float = DEADLINE, interval: float = 0.01) -> T:
    """Polls `condition` until it is truthy and returns its value; fails with `what` after `deadline` seconds."""
    end = time.monotonic() + deadline
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise AssertionError(f"waited {deadline:g} s in vain for: {what} (last value: {value!r})")
        time.sleep(interval)


def pids() -> Iterator[int]:
    for name in os.listdir("/proc"):
        if name.isdigit():
            yield int(name)


def read(pid: int, name: str) -> str:
    """/proc/PID/NAME, or "" when the process is gone."""
    try:
        return pathlib.Path(f"/proc/{pid}/{name}").read_text(errors="replace")
    except (OSError, ProcessLookupError):
        return ""


def stat_fields(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the third (state) on; empty when the process is gone."""
    text = read(pid, "stat")
    return text[text.rindex(")") + 2:].split() if ")" in text else []


def state(pid: int) -> str:
    """R, S, D, T, t, Z ...; "" when the process is gone."""
    fields = stat_fields(pid)
    return fields[0] if fields else ""


def parent(pid: int) -> int:
    fields = stat_fields(pid)
    return int(fields[1]) if fields else 0


def alive(pid: int) -> bool:
    return state(pid) not in ("", "Z", "X")


def cmdline(pid: int) -> list[str]:
    return read(pid, "cmdline").rstrip("\0").split("\0")


def mount_namespace(pid: int) -> str:
    try:
        return os.readlink(f"/proc/{pid}/ns/mnt")
    except OSError:
        return ""


def children(pid: int) -> list[int]:
    return [child for child in pids() if parent(child) == pid]


def descendants(pid: int) -> list[int]:
    found = []
    for child in children(pid):
        found += [child, *descendants(child)]
    return found


def threads(pid: int) -> list[int]:
    try:
        return sorted(int(name) for name in os.listdir(f"/proc/{pid}/task"))
    except OSError:
        return []


def tracer(pid: int) -> int:
    for line in read(pid, "status").splitlines():
        if line.startswith("TracerPid:"):
            return int(line.split()[1])
    return 0


def describe(pid: int) -> str:
    return f"{pid} [{state(pid) or 'gone'}] {' '.join(cmdline(pid))[:160] or read(pid, 'comm').strip()}"


def kill(pid: int, number: int = signal.SIGKILL) -> None:
    """Signals one process of ours; a process that is gone already is fine."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass
