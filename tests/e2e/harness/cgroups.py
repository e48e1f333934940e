# SPDX-License-Identifier: Apache-2.0
"""The cgroups of a node's containers, in both versions."""

import pathlib

from . import procs

V1_FREEZER = "freezer"


class Cgroups:
    """A view of the cgroup file system as the daemon of a node sees it.

    `root` is that file system's path as this process reaches it (through /proc/PID/root, because the node has
    mounts of its own).
    """

    def __init__(self, root: pathlib.Path, version: str):
        self.root = root
        self.version = version

    def hierarchies(self) -> list[pathlib.Path]:
        if self.version == "v2":
            return [self.root]
        return [path for path in self.root.iterdir() if path.is_dir() and not path.is_symlink()]

    def freezer(self, path: str) -> pathlib.Path:
        """The folder that holds the freezer of cgroup `path` ("/namespace/id")."""
        base = self.root if self.version == "v2" else self.root / V1_FREEZER
        return base / path.lstrip("/")

    def below(self, namespace: str) -> list[str]:
        """Every cgroup of `namespace`'s containers, in all hierarchies."""
        found = []
        for hierarchy in self.hierarchies():
            base = hierarchy / namespace
            if base.is_dir():
                found += [str(path.relative_to(self.root)) for path in sorted(base.rglob("*")) if path.is_dir()]
        return found

    def frozen(self, path: str) -> bool:
        folder = self.freezer(path)
        if self.version == "v2":
            events = dict(line.split() for line in (folder / "cgroup.events").read_text().splitlines())
            return events["frozen"] == "1"
        return (folder / "freezer.state").read_text().strip() == "FROZEN"

    def thawed(self, path: str) -> bool:
        """Neither frozen nor on the way there."""
        folder = self.freezer(path)
        if self.version == "v2":
            return (folder / "cgroup.freeze").read_text().strip() == "0" and not self.frozen(path)
        return (folder / "freezer.state").read_text().strip() == "THAWED"

    def freeze(self, path: str) -> None:
        if self.version == "v2":
            (self.freezer(path) / "cgroup.freeze").write_text("1")
        else:
            (self.freezer(path) / "freezer.state").write_text("FROZEN")
        procs.wait_until(lambda: self.frozen(path), f"cgroup {path} frozen")

    def thaw(self, path: str) -> None:
        if self.version == "v2":
            (self.freezer(path) / "cgroup.freeze").write_text("0")
        else:
            (self.freezer(path) / "freezer.state").write_text("THAWED")

    def pids(self, path: str, recursive: bool = True) -> list[int]:
        """The processes in cgroup `path` and, by default, in the cgroups below it."""
        folder = self.freezer(path)
        files = [folder / "cgroup.procs"]
        if recursive:
            files += folder.rglob("*/cgroup.procs")
        found: set[int] = set()
        for file in files:
            try:
                found.update(int(line) for line in file.read_text().split())
            except OSError:
                pass
        return sorted(found)


class V1Home:
    """A cgroup of its own in every v1 hierarchy of the machine, for the daemon of a v2 node.

    A v2 node's containers stay in whatever v1 cgroups their shim is in. Were that the root, CRIU would save all cgroups
    of the machine with each container, and make them again at each restore.
    """

    def __init__(self, name: str):
        self.folders = [path / name for path in pathlib.Path("/sys/fs/cgroup").glob("*/")
                        if (path / "cgroup.procs").exists() and not path.is_symlink() and path.name != "unified"]

    def make(self) -> None:
        for folder in self.folders:
            folder.mkdir()
            for file in ("cpuset.cpus", "cpuset.mems"):  # empty at first, and then nothing may enter
                if (folder / file).exists():
                    (folder / file).write_text((folder.parent / file).read_text())

    def enter(self) -> None:
        """Moves the calling process in."""
        for folder in self.folders:
            (folder / "cgroup.procs").write_text("0")

    def remove(self) -> None:
        for folder in self.folders:
            remove_tree(folder)


def remove_tree(folder: pathlib.Path) -> None:
    """Removes a cgroup and those below it, as far as they are empty."""
    for path in sorted([*folder.rglob("*/"), folder], key=lambda path: len(path.parts), reverse=True):
        try:
            path.rmdir()
        except OSError:
            pass


def remove_everywhere(name: str) -> None:
    """Removes the cgroup `name` below the root of every hierarchy of the machine."""
    for root in [pathlib.Path("/sys/fs/cgroup"), *pathlib.Path("/sys/fs/cgroup").glob("*/")]:
        remove_tree(root / name)


def version_of_machine() -> str:
    """"v2" on a machine with the unified hierarchy alone, else "v1" (which includes hybrid)."""
    return "v2" if pathlib.Path("/sys/fs/cgroup/cgroup.controllers").exists() else "v1"
