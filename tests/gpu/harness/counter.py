# SPDX-License-Identifier: Apache-2.0
"""A client of sample-counter, inside the container's network."""

import ctypes
import os
import re
import select
import socket
import time

from .checks import Failed

_CLONE_NEWNET = 0x40000000
_libc = ctypes.CDLL(None, use_errno=True)


class Counter:
    """Asks the counter in `box`; use as a context manager."""

    def __init__(self, box: object, port: int = 9999):
        self._box = box
        self._port = port

    def __enter__(self) -> "Counter":
        with open("/proc/thread-self/ns/net") as home, open(f"/proc/{self._box.pid}/ns/net") as there:
            if _libc.setns(there.fileno(), _CLONE_NEWNET) != 0:
                raise OSError(ctypes.get_errno(), "setns")
            try:
                self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            finally:
                _libc.setns(home.fileno(), _CLONE_NEWNET)
        self._socket.connect(("127.0.0.1", self._port))
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def increment(self, seconds: float = 20.0) -> tuple[int, str]:
        """(counter, token). One id for one request: however often it is sent, it counts once."""
        request = f"inc {int.from_bytes(os.urandom(6), 'big')}"
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            try:
                self._socket.send(request.encode())
                if select.select([self._socket], [], [], 1.0)[0]:
                    text = self._socket.recv(512).decode()
                    match = re.fullmatch(r"counter=(\d+) token=([0-9a-f]{32}) pid=\d+ gpu=\S+ (\d+)", text)
                    if match and match[3] == request.split()[1]:
                        return int(match[1]), match[2]
            except ConnectionRefusedError:
                time.sleep(0.05)  # nobody listens yet
        raise Failed(f"the counter of {self._box.id} does not answer")
