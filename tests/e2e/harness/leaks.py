# SPDX-License-Identifier: Apache-2.0
"""What must be the same before and after every test."""

import pathlib
from typing import Iterable

from . import procs
from .node import Node


def snapshot(node: Node) -> dict[str, list[str]]:
    """Everything a test could leave behind, by kind. Two equal snapshots = nothing left."""
    assert node.holder is not None and node.daemon is not None
    daemon = node.daemon.pid
    return {
        # The shims, engines, CRIUs and containers; but not the daemon, which a test may have restarted.
        "processes": [_name(pid) for pid in node.processes() if pid != daemon and procs.alive(pid)],
        "zombies of the daemon": [_name(pid) for pid in procs.children(daemon) if procs.state(pid) == "Z"],
        "mounts": sorted(line.split()[4] for line in procs.read(node.holder.pid, "mountinfo").splitlines()),
        "cgroups": node.cgroups.below(node.namespace),
        "state_dir": _files(node.state_dir) + _folders(node.state_dir.rglob(node.namespace)),
        "/tmp": _files(node.tmp) + _folders([node.tmp]),
        # Not "fifo": those files are made by ctr, which does not remove the ones of a detached process.
        "shims' sockets": _files(node.run_dir / "s"),
        "runc's state": _folders([node.run_dir / "runc" / node.namespace]),
        "bundles": _folders([node.base / "state" / "io.containerd.runtime.v2.task" / node.namespace]),
        "containers": sorted(node.containers()),
        "images": sorted(node.images()),
    }


def _name(pid: int) -> str:
    return f"{pid} {' '.join(procs.cmdline(pid))[:160] or procs.read(pid, 'comm').strip()}"


def _files(folder: pathlib.Path) -> list[str]:
    """Files, sockets, FIFOs and links below `folder`. Folders alone are not news: daemons keep theirs."""
    return sorted(str(path) for path in folder.rglob("*") if not path.is_dir() or path.is_symlink())


def _folders(parents: Iterable[pathlib.Path]) -> list[str]:
    """The folders in `parents`, for places with one folder per container or operation."""
    return sorted(str(path) for parent in parents if parent.is_dir() for path in parent.iterdir() if path.is_dir())


def difference(before: dict[str, list[str]], after: dict[str, list[str]]) -> str:
    """"" when equal, else one line per thing that came or went."""
    lines = []
    for kind, old in before.items():
        lines += [f"{kind}: left behind: {item}" for item in after[kind] if item not in old]
        lines += [f"{kind}: vanished: {item}" for item in old if item not in after[kind]]
    return "\n".join(lines)


def wait_for_none(node: Node, before: dict[str, list[str]], deadline: float = 6.0) -> str:
    """Gives the asynchronous ends (a shim's exit, containerd's removal of a bundle) their time, then tells what is left."""
    last = ""

    def clean() -> bool:
        nonlocal last
        last = difference(before, snapshot(node))
        return not last

    try:
        procs.wait_until(clean, "no leaks", deadline, interval=0.05)
    except AssertionError:
        return last
    return ""
