#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compiles every header alone, and twice in a row: it must bring what it needs and survive both.

Usage: check-headers.py BUILD_FOLDER [JOBS]

The flags are those of a source file in the header's own folder, or else in the nearest one.
"""

import concurrent.futures
import json
import os
import pathlib
import shlex
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
KEPT = ("-I", "-D", "-std=", "-f", "-m")
KEPT_WITH_VALUE = ("-I", "-D", "-isystem", "-include")


def flags_of(entry):
    """The flags of a compile command that change what a header means."""
    words = shlex.split(entry["command"])
    flags = []
    for index, word in enumerate(words):
        if word in KEPT_WITH_VALUE:
            flags += [word, words[index + 1]]
        elif word.startswith(KEPT):
            flags.append(word)
    return flags


def nearest(header, commands):
    """The compile command of the source file whose folder is closest to the header's."""
    def shared(entry):
        common = os.path.commonpath([header.parent, pathlib.Path(entry["file"]).parent])
        return len(pathlib.Path(common).parts)
    return max(commands, key=shared)


def check(header, commands):
    name = header.relative_to(ROOT).as_posix()
    result = subprocess.run(
        ["g++", *flags_of(nearest(header, commands)), "-Wall", "-Wextra", "-Werror", "-fsyntax-only", "-x", "c++", "-"],
        input=f'#include "{name}"\n#include "{name}"\n', cwd=ROOT, encoding="utf-8",
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    return name, result.returncode, result.stdout


def main(arguments):
    build = pathlib.Path(arguments[0])
    jobs = int(arguments[1]) if len(arguments) > 1 else os.cpu_count()
    commands = [entry for entry in json.loads((build / "compile_commands.json").read_text(encoding="utf-8"))
                if entry["file"].endswith(".cc")]
    listed = subprocess.run(
        ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard", "*.h"],
        check=True, stdout=subprocess.PIPE, encoding="utf-8").stdout
    headers = [ROOT / name for name in sorted(set(listed.split("\0"))) if name and (ROOT / name).is_file()]
    failed = 0
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        for name, status, output in pool.map(lambda header: check(header, commands), headers):
            if status:
                failed += 1
                print(f"{name}: does not compile alone:\n{output}")
    print(f"check-headers: {len(headers)} headers, {failed} failed")
    return 1 if failed or not headers else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
