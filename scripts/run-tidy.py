#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs clang-tidy over every source file of a build, except those it has passed before.

Usage: run-tidy.py CLANG_TIDY BUILD_FOLDER [JOBS] [PATH...]

With paths, only files below them. A file that passed leaves a stamp named by all that the result
depends on (its text, every header it includes, flags, rules, clang-tidy), so that stamps hold for ever
and for every checkout; they are in the user's cache folder, as the compiler's are. The headers come from the dependencies that ninja recorded; the
build must be up to date.
"""

import concurrent.futures
import hashlib
import json
import os
import pathlib
import shlex
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]


def recorded_dependencies(build):
    """Object file -> files it was made from, as ninja's log has them."""
    output = subprocess.run(["ninja", "-C", str(build), "-t", "deps"], check=True, stdout=subprocess.PIPE,
                            encoding="utf-8").stdout
    dependencies = {}
    current = None
    for line in output.splitlines():
        if line.startswith("    ") and current is not None:
            current.append(line.strip())
        elif "#deps" in line:
            current = dependencies.setdefault(line.split(":", 1)[0], [])
    return dependencies


def rules_for(file):
    """The .clang-tidy files that apply: those of the file's folder and of all above it."""
    folder = file.parent
    while folder.is_relative_to(ROOT):
        rules = folder / ".clang-tidy"
        if rules.exists():
            yield rules
        if folder == ROOT:
            break
        folder = folder.parent


class Stamps:
    """Which states of which files have passed."""

    def __init__(self, tidy, build):
        cache = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
        self.folder = pathlib.Path(cache) / "icebox" / "tidy-passed"
        self.folder.mkdir(parents=True, exist_ok=True)
        self.build = build
        self.version = subprocess.run([tidy, "--version"], check=True, stdout=subprocess.PIPE).stdout
        self.dependencies = recorded_dependencies(build)
        self.hashes = {}

    def hash_of(self, path):
        if path not in self.hashes:
            self.hashes[path] = hashlib.sha256(path.read_bytes()).digest()
        return self.hashes[path]

    def stamp(self, entry):
        """The stamp's path, or None when it is not known what the file includes now."""
        file = pathlib.Path(entry["file"])
        words = shlex.split(entry["command"])
        known = self.dependencies.get(words[words.index("-o") + 1]) if "-o" in words else None
        if not known or not all((self.build / name).exists() for name in known):
            return None
        key = hashlib.sha256(self.version)
        key.update(entry["command"].replace(str(ROOT), "").encode())
        for path in [*rules_for(file), file, *(self.build / name for name in known)]:
            path = path.resolve()
            if path.is_relative_to(ROOT):
                key.update(str(path.relative_to(ROOT)).encode() + self.hash_of(path))
            else:
                # The system's headers change only with their package.
                status = path.stat()
                key.update(f"{path} {status.st_size} {int(status.st_mtime)}".encode())
        return self.folder / key.hexdigest()


def run(tidy, build, entry):
    start = time.monotonic()
    folders = "oci|runtime-hooks|image|shim|tests"
    result = subprocess.run(
        [tidy, "--quiet", "-p", str(build), f"--header-filter=^{ROOT}/({folders})/",
         "--extra-arg=-Wno-unknown-warning-option", entry["file"]],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8", check=False)
    # stderr counts suppressed warnings of system headers; it matters only when there is nothing else.
    output = result.stdout or (result.stderr if result.returncode else "")
    return result.returncode, output, time.monotonic() - start


def main(arguments):
    tidy, build = arguments[0], pathlib.Path(arguments[1]).resolve()
    jobs = int(arguments[2]) if len(arguments) > 2 else os.cpu_count()
    only = [str((ROOT / name).resolve()) for name in arguments[3:]]
    entries = {}
    for entry in json.loads((build / "compile_commands.json").read_text(encoding="utf-8")):
        file = entry["file"]
        ours = file.startswith(f"{ROOT}/") and not file.startswith(f"{build.parent}/") and os.path.exists(file)
        if ours and (not only or file.startswith(tuple(only))):
            entries.setdefault(file, entry)  # compiled twice with other flags: once is enough

    stamps = Stamps(tidy, build)
    todo = []
    for entry in entries.values():
        stamp = stamps.stamp(entry)
        if stamp is None or not stamp.exists():
            todo.append((entry, stamp))
    # The big ones first, so that no thread is left alone with one at the end.
    todo.sort(key=lambda item: -os.path.getsize(item[0]["file"]))
    print(f"run-tidy: {len(entries)} files, {len(entries) - len(todo)} passed before", flush=True)

    failed = 0
    seen = set()
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        futures = {pool.submit(run, tidy, build, entry): (entry, stamp) for entry, stamp in todo}
        for future in concurrent.futures.as_completed(futures):
            entry, stamp = futures[future]
            status, output, seconds = future.result()
            name = os.path.relpath(entry["file"], ROOT)
            if status == 0:
                if stamp:
                    stamp.touch()
                continue
            failed += 1
            print(f"--- {name} ({seconds:.0f} s)")
            # A finding in a header comes back with every file that includes it.
            for line in output.splitlines():
                if ": error: " not in line or line not in seen:
                    print(line)
                if ": error: " in line:
                    seen.add(line)
            sys.stdout.flush()
    print(f"run-tidy: {len(entries)} files, {failed} failed")
    return 1 if failed or not entries else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
