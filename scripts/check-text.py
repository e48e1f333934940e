#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks what no other tool looks at: licence line, header guard, length, ends of lines.

Usage: check-text.py FILE...
"""

import pathlib
import sys

LICENCE = b"SPDX-License-Identifier: Apache-2.0"
MAX_LINES = 800


def problems(name, content):
    """Yields (line, what is wrong)."""
    if not content:
        return  # an empty __init__.py says all it has to
    lines = content.split(b"\n")
    if not any(LICENCE in line for line in lines[:3]):
        yield 1, f"no {LICENCE.decode()} line"
    if name.endswith(".h") and b"#pragma once" not in lines:
        yield 1, "no #pragma once"
    if len(lines) - 1 > MAX_LINES:
        yield len(lines) - 1, f"longer than {MAX_LINES} lines: split it by what it does"
    for number, line in enumerate(lines, 1):
        if line[-1:] in (b" ", b"\t", b"\r"):
            yield number, "blanks at the end of the line"
    if lines[-1]:
        yield len(lines), "no newline at the end of the file"


def main(names):
    findings = 0
    for name in names:
        for number, problem in problems(name, pathlib.Path(name).read_bytes()):
            findings += 1
            print(f"{name}:{number}: {problem}")
    print(f"check-text: {len(names)} files, {findings} findings")
    return 1 if findings or not names else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
