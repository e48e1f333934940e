# SPDX-License-Identifier: Apache-2.0
"""Containers with a simulated GPU: how they are started, asked and disturbed."""

import contextlib
import ctypes
import dataclasses
import json
import os
import pathlib
import re
import select
import socket
import struct
import subprocess
import tarfile
import time
from typing import Iterator

from . import procs
from .container import Container
from .node import STOCK

# Where the driver and its knobs are inside the container.
LIBRARY_FOLDER = "/opt/cuda"
KNOBS = "/knobs"
DEVICE = "/dev/nvidia0"
PORT = 9999

# Flags of `ctr run`. The knob file does not exist at first: no knobs.
FLAGS = ("--null-io", "--device", DEVICE, "--env", f"LD_LIBRARY_PATH={LIBRARY_FOLDER}", "--env", f"ICEBOX_SIM_KNOBS={KNOBS}")

_CLONE_NEWNET = 0x40000000
_libc = ctypes.CDLL(None, use_errno=True)


def shared_flags(folder: pathlib.Path) -> tuple[str, ...]:
    """The same with the knobs in a folder of the host, which a restored container sees as well."""
    mount = f"type=bind,src={folder},dst=/shared,options=rbind:rw"
    return (*FLAGS[:-1], "ICEBOX_SIM_KNOBS=/shared/knobs", "--mount", mount)


@dataclasses.dataclass(frozen=True)
class Answer:
    counter: int
    token: str
    pid: int
    gpu: str


def set_knobs(box: Container, *lines: str) -> None:
    """Makes the simulated driver of the container's processes misbehave from the next operation on."""
    target = box.rootfs / KNOBS.lstrip("/")
    partial = target.with_suffix(".new")
    partial.write_text("".join(f"{line}\n" for line in lines))
    partial.rename(target)


def device_holders(pids: list[int]) -> list[int]:
    """Those of the processes that have a GPU's device node open."""
    return [pid for pid in pids if any(os.path.basename(path).startswith("nvidia") for path in _open_files(pid))]


def _open_files(pid: int) -> Iterator[str]:
    folder = f"/proc/{pid}/fd"
    with contextlib.suppress(OSError):
        for name in os.listdir(folder):
            with contextlib.suppress(OSError):
                yield os.readlink(f"{folder}/{name}")


@contextlib.contextmanager
def _network_of(pid: int) -> Iterator[None]:
    """This thread in the network namespace of `pid`, for the length of a `with` block."""
    with open("/proc/thread-self/ns/net") as home, open(f"/proc/{pid}/ns/net") as there:
        if _libc.setns(there.fileno(), _CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), "setns")
        try:
            yield
        finally:
            _libc.setns(home.fileno(), _CLONE_NEWNET)


class Counter:
    """A client of sample-counter in `box`, inside the container's network."""

    def __init__(self, box: Container, port: int = PORT):
        self.box = box
        # How many "inc" were sent: the counter cannot have grown by more.
        self.sent = 0
        with _network_of(box.pid):
            if box.runtime == STOCK:
                # runc brings the loopback up at create but neither saves nor restores it. Icebox does.
                subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
            self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.connect(("127.0.0.1", port))
        self._id = int.from_bytes(os.urandom(4), "big")

    def close(self) -> None:
        self._socket.close()

    def try_ask(self, verb: str = "inc", seconds: float = 1.0) -> Answer | None:
        """One request; None when there is no answer to it in time."""
        self._id += 1
        end = time.monotonic() + seconds
        try:
            self._socket.send(f"{verb} {self._id}".encode())
            self.sent += verb == "inc"
            while select.select([self._socket], [], [], max(0.0, end - time.monotonic()))[0]:
                text = self._socket.recv(512).decode()
                match = re.fullmatch(r"counter=(\d+) token=([0-9a-f]{32}) pid=(\d+) gpu=(\S+) (\d+)", text)
                assert match, f"the counter answers nonsense: {text!r}"
                if int(match[5]) == self._id:
                    return Answer(int(match[1]), match[2], int(match[3]), match[4])
        except ConnectionRefusedError:
            time.sleep(0.01)  # nobody listens yet
        return None

    def ask(self, verb: str = "inc") -> Answer:
        """One answered request, sent again while there is no answer."""
        return procs.wait_until(lambda: self.try_ask(verb), f"the counter of {self.box.id} answers")


@contextlib.contextmanager
def counter(box: Container, port: int = PORT) -> Iterator[Counter]:
    client = Counter(box, port)
    try:
        yield client
    finally:
        client.close()


# --- sample-busy --------------------------------------------------------------------------------------------------

def read_board(path: pathlib.Path) -> list[int]:
    """The counts of one sample-busy process, one per thread; empty as long as it has not begun."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return []
    if len(data) < 4096:
        return []
    used = struct.unpack_from("<Q", data)[0]
    return [struct.unpack_from("<Q", data, 64 * (index + 1))[0] for index in range(used)]


class Boards:
    """The counters of several sample-busy processes: in the root file system, and in the container's /dev/shm."""

    def __init__(self, box: Container, *files: str):
        """`files` are paths inside the container."""
        self.box = box
        self._files = files

    def _path(self, file: str) -> pathlib.Path:
        if file.startswith("/dev/shm/"):
            return pathlib.Path(f"/proc/{self.box.pid}/root") / file.lstrip("/")
        return self.box.rootfs / file.lstrip("/")

    def read(self) -> dict[str, list[int]]:
        return {file: read_board(self._path(file)) for file in self._files}

    def wait_all_count(self) -> None:
        """Waits until every thread of every process has counted on."""
        start: dict[str, list[int]] = {}

        def moved() -> bool:
            now = self.read()
            for file, counts in now.items():
                if counts and len(start.get(file, [])) != len(counts):
                    start[file] = counts
            return all(counts and all(new > old for new, old in zip(counts, start[file])) for file, counts in now.items())
        procs.wait_until(moved, f"all of {', '.join(self._files)} count on")


# --- checkpoint images ------------------------------------------------------------------------------------------

def image_info(box: Container, reference: str) -> dict:
    """icebox.json of a checkpoint image in containerd's content store."""
    return json.loads(image_files(box, reference)["icebox.json"])


def image_files(box: Container, reference: str) -> dict[str, bytes]:
    """The checkpoint directory inside a checkpoint image: name -> content."""
    node = box.node
    rows = [line.split() for line in node.ctr("images", "ls").stdout.splitlines()]
    digest = next(row[2] for row in rows if row[0] == reference)
    index = json.loads(node.ctr("content", "get", digest).stdout)
    criu = next(entry for entry in index["manifests"] if "criu" in entry["mediaType"])
    path = node.base / "root/io.containerd.content.v1.content/blobs" / criu["digest"].replace(":", "/")
    with tarfile.open(path) as archive:
        return {member.name.removeprefix("./"): archive.extractfile(member).read() for member in archive if member.isfile()}
