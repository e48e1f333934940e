# SPDX-License-Identifier: Apache-2.0
"""A user's terminal: a pty with a process group of its own on it."""

import fcntl
import os
import pty
import select
import struct
import subprocess
import termios
import time

from . import procs
from .node import Node


class Terminal:
    """Runs ctr with a pty as its controlling terminal; use as a context manager."""

    def __init__(self, node: Node, *arguments: str, rows: int = 30, columns: int = 100):
        self._node = node
        self._arguments = arguments
        self._size = (rows, columns)
        self._seen = ""

    def __enter__(self) -> "Terminal":
        self._master, slave = pty.openpty()
        self._set_size(*self._size)

        def take_terminal() -> None:
            os.setsid()
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)

        # pty slaves are made on this process's devpts, which the node shares.
        self.process = subprocess.Popen(self._node.enter(*self._node.ctr_command(*self._arguments)), stdin=slave, stdout=slave,
                                        stderr=slave, env={**self._node.environment(), "TERM": "xterm"},
                                        preexec_fn=take_terminal)
        os.close(slave)
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self._master)

    def _set_size(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def resize(self, rows: int, columns: int) -> None:
        """As when the user drags the window's corner: the kernel sends SIGWINCH to ctr."""
        self._set_size(rows, columns)

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def expect(self, text: str, deadline: float = procs.DEADLINE) -> str:
        """Reads until `text` has come; returns everything up to and including it, without carriage returns."""
        end = time.monotonic() + deadline
        while text not in self._seen:
            left = end - time.monotonic()
            if left <= 0 or not select.select([self._master], [], [], left)[0]:
                raise AssertionError(f"the terminal never showed {text!r}, only {self._seen!r}")
            try:
                data = os.read(self._master, 65536)
            except OSError:  # EIO: the other side has closed
                data = b""
            if not data:
                raise AssertionError(f"the terminal closed without {text!r}, after {self._seen!r}")
            self._seen += data.decode(errors="replace").replace("\r", "")
        before, _, self._seen = self._seen.partition(text)
        return before + text

    def wait(self) -> int:
        """Waits for ctr's end, draining the terminal meanwhile; returns the exit code."""
        end = time.monotonic() + procs.DEADLINE
        while self.process.poll() is None:
            assert time.monotonic() < end, f"ctr does not end; the terminal showed {self._seen!r}"
            if select.select([self._master], [], [], 0.02)[0]:
                try:
                    self._seen += os.read(self._master, 65536).decode(errors="replace").replace("\r", "")
                except OSError:
                    pass
        return self.process.returncode
