# SPDX-License-Identifier: Apache-2.0
"""Failing, and waiting with a deadline."""

import time
from typing import Callable, TypeVar

T = TypeVar("T")


class Failed(Exception):
    """An item is not as it should be; the text says how."""


class Skipped(Exception):
    """An item that makes no sense here; the text says why."""


def check(condition: object, text: str) -> None:
    if not condition:
        raise Failed(text)


class Deadline:
    """The end of an item. Every wait and every command of the item ends by then."""

    def __init__(self, seconds: float):
        self.end = time.monotonic() + seconds

    def left(self, at_most: float = float("inf")) -> float:
        """Seconds left, never less than a little: the command that gets it must fail, not its caller."""
        return max(0.1, min(self.end - time.monotonic(), at_most))


def wait_until(condition: Callable[[], T], what: str, seconds: float, interval: float = 0.05) -> T:
    """Polls until `condition` is truthy and returns its value. Always looks once more after the end."""
    end = time.monotonic() + seconds
    while True:
        over = time.monotonic() > end
        value = condition()
        if value:
            return value
        if over:
            raise Failed(f"waited {seconds:.0f} s in vain: {what}")
        time.sleep(interval)


def human(size: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.0f} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"
