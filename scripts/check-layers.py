#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that #include lines point one way: from higher layers to lower ones.

Usage: check-layers.py [--self-test] [ROOT]

LAYERS is the only place where the direction is written down. A folder that is not in it is an error,
so that a new one has to be given its place. THIRD_PARTY says which folders may use which library: that
is how the daemon stays without archive or crypto code, and the CUDA driver in one program.
"""

import pathlib
import re
import subprocess
import sys
import tempfile

BASE = ["oci/base"]
OCI = BASE + ["oci"]
# What acts on a container or drives a program, without knowing of a checkpoint.
HOOK_PARTS = ["runtime-hooks/" + name for name in ("container", "cuda", "criu", "memory", "app", "runtime")]
# The daemon, from below: loop <- process, ttrpc <- runtime <- task <- bootstrap <- main.
SHIM_IO = ["shim/proto", "shim/loop", "shim/process", "shim/ttrpc"]

# Folder -> folders it may include, besides itself. The longest match decides where a file belongs; a
# permission covers exactly the folder named, not the ones below it.
LAYERS = {
    "oci/base": [],
    "oci": BASE,
    "image": OCI,
    "runtime-hooks/container": OCI,
    "runtime-hooks/cuda": OCI + ["runtime-hooks/container"],
    "runtime-hooks/criu": OCI + ["runtime-hooks/container"],
    "runtime-hooks/memory": OCI + ["runtime-hooks/container"],
    "runtime-hooks/app": OCI + ["runtime-hooks/container"],
    "runtime-hooks/runtime": OCI + ["runtime-hooks/container"],
    # The checkpoint itself: plan, undo, journal, preflight. Then the command line of icebox-runc.
    "runtime-hooks/checkpoint": OCI + HOOK_PARTS,
    "runtime-hooks/engine": OCI + HOOK_PARTS + ["runtime-hooks/checkpoint"],
    "runtime-hooks": OCI + HOOK_PARTS + ["runtime-hooks/checkpoint", "runtime-hooks/engine"],
    "shim/proto": [],
    "shim/loop": BASE,
    "shim/process": BASE + ["shim/loop"],
    "shim/ttrpc": BASE + ["shim/proto", "shim/loop"],
    "shim/runtime": OCI + SHIM_IO,
    "shim/task": OCI + SHIM_IO + ["shim/runtime"],
    "shim/bootstrap": OCI + SHIM_IO + ["shim/runtime", "shim/task"],
    "shim": OCI + SHIM_IO + ["shim/runtime", "shim/task", "shim/bootstrap"],
}

# Tests may include anything; nothing else may include tests.
UNRESTRICTED = "tests"

# Headers generated from the .proto files are included by their path below shim/proto.
GENERATED = re.compile(r"\.pb\.h$")
GENERATED_FOLDER = "shim/proto"

# Header (regular expression on what stands between <>) -> folders, with all below them, that may use it.
THIRD_PARTY = {
    # In the daemon only to read config.json and logs as a stream; a tree in memory costs it too much.
    r"nlohmann/": ["oci", "runtime-hooks", "image", "shim/runtime"],
    r"toml\+\+/": ["runtime-hooks", "image"],
    r"zstd\.h": ["runtime-hooks", "image"],
    r"google/protobuf/": ["shim"],
    r"(cuda|nvml|cuda_runtime.*)\.h|dlfcn\.h": ["runtime-hooks/cuda"],
    r"sys/capability\.h|seccomp\.h": ["runtime-hooks/cuda"],
    r"archive(_entry)?\.h|openssl/|grpc": ["image"],
    r"gtest/|gmock/|benchmark/": [],
}

SOURCES = {".cc", ".h", ".c", ".cu"}
INCLUDE = re.compile(r'^\s*#\s*include\s*(?:"([^"]+)"|<([^>]+)>)')


def folder_of(path):
    """The entry of LAYERS that a path (relative, POSIX) belongs to; UNRESTRICTED; or None."""
    parts = pathlib.PurePosixPath(path).parts[:-1]
    if parts and parts[0] == UNRESTRICTED:
        return UNRESTRICTED
    for length in range(len(parts), 0, -1):
        candidate = "/".join(parts[:length])
        if candidate in LAYERS:
            # A folder below a known one, but itself unknown, has no place yet.
            return candidate if length == len(parts) else None
    return None


def within(path, folders):
    return any(path == folder or path.startswith(folder + "/") for folder in folders)


def check_file(path, text):
    """Yields (line number, what is wrong) for one file."""
    folder = folder_of(path)
    if folder is None:
        parent = pathlib.PurePosixPath(path).parent
        yield 1, f"folder {parent} has no place in LAYERS of scripts/check-layers.py"
        return
    for number, line in enumerate(text.splitlines(), 1):
        match = INCLUDE.match(line)
        if not match or folder == UNRESTRICTED:
            continue
        ours, system = match.groups()
        if system:
            for pattern, users in THIRD_PARTY.items():
                if re.match(pattern, system) and not within(path, users):
                    yield number, f"<{system}> is for {', '.join(users) or UNRESTRICTED} only"
        else:
            target = GENERATED_FOLDER if GENERATED.search(ours) else folder_of(ours)
            if target == UNRESTRICTED:
                yield number, f"\"{ours}\": nothing but tests includes tests"
            elif target is None:
                yield number, f"\"{ours}\" is not a path from the root of the repository"
            elif target != folder and target not in LAYERS[folder]:
                yield number, f"\"{ours}\": {folder} may not include {target}"


def source_files(root):
    listed = subprocess.run(
        ["git", "-C", str(root), "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        check=True, stdout=subprocess.PIPE, encoding="utf-8").stdout
    for name in sorted(set(listed.split("\0"))):
        file = root / name
        if file.suffix in SOURCES and file.is_file():
            yield name, file.read_text(encoding="utf-8", errors="replace")


def check_tree(root):
    """Prints every finding; returns (files, findings)."""
    files = findings = 0
    for name, text in source_files(root):
        files += 1
        for number, problem in check_file(name, text):
            findings += 1
            print(f"{name}:{number}: {problem}")
    return files, findings


def table_problems():
    """The table itself: names only known folders, and has no way round in a circle."""
    for folder, allowed in LAYERS.items():
        for other in allowed:
            if other not in LAYERS:
                yield f"LAYERS[{folder}] names {other}, which has no entry"
            elif folder in LAYERS[other]:
                yield f"{folder} and {other} may include each other"

    def reach(folder, path):
        for other in LAYERS.get(folder, []):
            if other in path:
                yield f"circle: {' -> '.join(path + [other])}"
            else:
                yield from reach(other, path + [other])

    for folder in LAYERS:
        for problem in reach(folder, [folder]):
            yield problem
            return


def self_test():
    """Seeds a tree with one violation of each kind and some right lines; true if exactly those are found."""
    good = {
        "oci/spec.cc": '#include "oci/spec.h"\n#include <nlohmann/json.hpp>\n#include "oci/base/file.h"\n',
        "shim/task/container.cc": '#include "shim/runtime/rootfs.h"\n#include "containerd/task_v2.pb.h"\n',
        "shim/main.cc": '#include "shim/bootstrap/args.h"\n',
        "runtime-hooks/cuda/driver.cc": '#include <dlfcn.h>\n#include "runtime-hooks/container/cgroup.h"\n',
        "runtime-hooks/engine/main.cc": '#include "runtime-hooks/checkpoint/plan.h"\n',
        "tests/unit/oci/spec_test.cc": '#include <gtest/gtest.h>\n#include "shim/task/container.h"\n',
    }
    bad = {
        "oci/up.cc": '#include "shim/loop/event_loop.h"\n',
        "oci/base/up.cc": '#include "oci/spec.h"\n',
        "shim/loop/up.cc": '#include "shim/process/supervisor.h"\n',
        "shim/process/sideways.cc": '#include "shim/ttrpc/frame.h"\n',
        "shim/task/across.cc": '#include "runtime-hooks/cuda/gpu_client.h"\n',
        "runtime-hooks/cuda/up.cc": '#include "runtime-hooks/checkpoint/plan.h"\n',
        "runtime-hooks/container/up.cc": '  #  include "runtime-hooks/engine/args.h"\n',
        "image/across.cc": '#include "runtime-hooks/criu/options.h"\n',
        "oci/test.cc": '#include "tests/fakes/cuda/driver.h"\n',
        "oci/relative.cc": '#include "spec.h"\n',
        "shim/runtime/heavy.cc": '#include <openssl/sha.h>\n',
        "runtime-hooks/engine/driver.cc": '#include <dlfcn.h>\n',
        "oci/generated.cc": '#include "containerd/types.pb.h"\n',
        "oci/product_test.cc": '#include <gtest/gtest.h>\n',
        "shim/newfolder/file.cc": "int x;\n",
        "elsewhere/file.h": "int x;\n",
    }
    with tempfile.TemporaryDirectory() as name:
        root = pathlib.Path(name)
        subprocess.run(["git", "init", "-q", name], check=True)
        for path, text in {**good, **bad}.items():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(text, encoding="utf-8")
        found = {path for path, text in source_files(root) for _ in check_file(path, text)}
    for path in sorted(set(bad) - found):
        print(f"self-test: the violation in {path} was not found")
    for path in sorted(found - set(bad)):
        print(f"self-test: {path} is right but was reported")
    return found == set(bad)


def main(arguments):
    for problem in table_problems():
        print(f"check-layers: {problem}")
        return 1
    if arguments[:1] == ["--self-test"]:
        if not self_test():
            return 1
        print("check-layers: self-test: every seeded violation was found")
        arguments = arguments[1:]
    root = pathlib.Path(arguments[0]) if arguments else pathlib.Path(__file__).resolve().parents[1]
    files, findings = check_tree(root)
    print(f"check-layers: {files} files, {findings} findings")
    # No file at all means that we looked in the wrong place, not that all is well.
    return 1 if findings or not files else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
