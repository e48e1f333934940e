#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Builds an OCI image archive from files of this machine, without any registry.

The image holds a static busybox with its applets, and whatever is named on the command line: programs
(with the closure of the shared libraries they need, so that they run on an otherwise empty root file
system) and plain files. The archive is an OCI image layout in a tar, as `ctr images import` reads it. The
same input gives the same bytes: entries are sorted, owners, times and the tar format are fixed.

Example:
  scripts/make-image.py --name icebox.local/demo:latest --output demo.tar \\
      --program build/release/bin/sample-counter --file fake/libcuda.so.1:/opt/cuda/libcuda.so.1
"""

import argparse
import hashlib
import io
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile

DIRECTORIES = {
    "bin": 0o755, "dev": 0o755, "etc": 0o755, "proc": 0o755, "root": 0o700, "run": 0o755,
    "sbin": 0o755, "sys": 0o755, "tmp": 0o1777, "usr": 0o755, "usr/bin": 0o755, "usr/lib": 0o755,
    "var": 0o755,
}

TEXT_FILES = {
    "etc/passwd": "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n",
    "etc/group": "root:x:0:\nnogroup:x:65534:\n",
    "etc/hosts": "127.0.0.1 localhost\n",
}

# `ldd` prints "name => /path (0xADDR)", "/lib64/ld-linux-x86-64.so.2 (0xADDR)", and lines without a file
# for the vDSO.
LDD_LINE = re.compile(r"^\s*(?:(?P<name>\S+) => )?(?P<path>/\S+) \(0x[0-9a-f]+\)$")


class ImageError(Exception):
    """Something on the command line or on this machine makes the image impossible; the text says what."""


def shared_libraries(program: pathlib.Path, external: list[str]) -> list[tuple[str, pathlib.Path]]:
    """The shared libraries `program` needs: (path inside the image, file on this machine).

    Those named in `external` are left out, whether this machine has them or not.
    """
    # On a static program ldd says "not a dynamic executable" on stderr and exits with 1.
    out = subprocess.run(["ldd", str(program)], capture_output=True, text=True, check=False,
                         env={**os.environ, "LC_ALL": "C"})
    missing = set(re.findall(r"^\s*(\S+) => not found", out.stdout, re.MULTILINE)) - set(external)
    if missing:
        raise ImageError(f"{program} needs {', '.join(sorted(missing))}, which this machine does not have")
    libraries = []
    for line in out.stdout.splitlines():
        match = LDD_LINE.match(line)
        if not match:
            continue
        path = pathlib.Path(match["path"])
        name = match["name"] or path.name
        if name in external:
            continue
        # A library that a RUNPATH found in a build folder moves to where the loader looks by itself.
        standard = path.parts[1] in ("lib", "lib64") or path.parts[1:3] in (("usr", "lib"), ("usr", "lib64"))
        folder = path.parent if standard else pathlib.Path("/usr/lib")
        libraries.append((str(folder / name).lstrip("/"), path))
    return libraries


class Rootfs:
    """Collects the entries of the image's single layer."""

    def __init__(self) -> None:
        self._entries: dict[str, tuple[tarfile.TarInfo, bytes | None]] = {}

    def _info(self, path: str, kind: bytes, mode: int) -> tarfile.TarInfo:
        info = tarfile.TarInfo(path)
        info.type, info.mode, info.mtime = kind, mode, 0
        info.uid = info.gid = 0
        info.uname = info.gname = "root"
        return info

    def directory(self, path: str, mode: int = 0o755) -> None:
        parent = os.path.dirname(path)
        if parent and parent not in self._entries:
            self.directory(parent)
        self._entries.setdefault(path, (self._info(path, tarfile.DIRTYPE, mode), None))

    def file(self, path: str, content: bytes, mode: int) -> None:
        path = path.lstrip("/")
        if os.path.dirname(path):
            self.directory(os.path.dirname(path))
        info = self._info(path, tarfile.REGTYPE, mode)
        info.size = len(content)
        self._entries[path] = (info, content)

    def symlink(self, path: str, target: str) -> None:
        info = self._info(path, tarfile.SYMTYPE, 0o777)
        info.linkname = target
        self._entries.setdefault(path, (info, None))

    def copy(self, source: pathlib.Path, path: str, mode: int | None = None) -> None:
        if mode is None:
            mode = 0o755 if os.access(source, os.X_OK) else 0o644
        self.file(path, source.read_bytes(), mode)

    def tar(self) -> bytes:
        out = io.BytesIO()
        with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as archive:
            for path in sorted(self._entries):
                info, content = self._entries[path]
                archive.addfile(info, io.BytesIO(content) if content is not None else None)
        return out.getvalue()


def add_busybox(rootfs: Rootfs, busybox: pathlib.Path) -> None:
    rootfs.copy(busybox, "bin/busybox", 0o755)
    applets = subprocess.run([str(busybox), "--list"], capture_output=True, text=True, check=True).stdout.split()
    for applet in applets:
        if applet != "busybox":
            rootfs.symlink(f"bin/{applet}", "busybox")


def build_rootfs(busybox: pathlib.Path, programs: list[str], files: list[str], external: list[str]) -> bytes:
    rootfs = Rootfs()
    for path, mode in DIRECTORIES.items():
        rootfs.directory(path, mode)
    for path, text in TEXT_FILES.items():
        rootfs.file(path, text.encode(), 0o644)
    add_busybox(rootfs, busybox)
    placed: list[tuple[pathlib.Path, str]] = []
    for argument in programs:
        source, _, target = argument.partition(":")
        placed.append((pathlib.Path(source), target or f"/bin/{os.path.basename(source)}"))
    for argument in files:
        source, separator, target = argument.partition(":")
        if not separator or not target.startswith("/"):
            raise ImageError(f"--file {argument}: expected SOURCE:/PATH/IN/THE/IMAGE")
        placed.append((pathlib.Path(source), target))
    for source, target in placed:
        if not source.is_file():
            raise ImageError(f"{source}: no such file; build it first")
        rootfs.copy(source, target)
        for library_target, library in shared_libraries(source, external):
            rootfs.copy(library, library_target, 0o755)
    return rootfs.tar()


def write_archive(output: pathlib.Path, name: str, layer: bytes, command: list[str], env: list[str]) -> None:
    """Writes the OCI image layout: one manifest, one uncompressed layer."""
    architecture = {"x86_64": "amd64", "aarch64": "arm64"}.get(os.uname().machine, os.uname().machine)
    blobs: dict[str, bytes] = {}

    def add(content: bytes, media_type: str) -> dict:
        digest = hashlib.sha256(content).hexdigest()
        blobs[digest] = content
        return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": len(content)}

    def encode(value: dict) -> bytes:
        return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()

    layer_descriptor = add(layer, "application/vnd.oci.image.layer.v1.tar")
    config = {
        "architecture": architecture, "os": "linux", "created": "1970-01-01T00:00:00Z",
        "config": {"Env": ["PATH=/usr/bin:/bin:/sbin", *env], "Cmd": command, "WorkingDir": "/"},
        "rootfs": {"type": "layers", "diff_ids": [layer_descriptor["digest"]]},
    }
    manifest = {
        "schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": add(encode(config), "application/vnd.oci.image.config.v1+json"),
        "layers": [layer_descriptor],
    }
    descriptor = add(encode(manifest), "application/vnd.oci.image.manifest.v1+json")
    descriptor["platform"] = {"architecture": architecture, "os": "linux"}
    descriptor["annotations"] = {"io.containerd.image.name": name, "org.opencontainers.image.ref.name": name}
    members = {f"blobs/sha256/{digest}": content for digest, content in blobs.items()}
    members["oci-layout"] = encode({"imageLayoutVersion": "1.0.0"})
    members["index.json"] = encode({"schemaVersion": 2, "manifests": [descriptor]})

    partial = output.with_name(output.name + ".partial")
    with tarfile.open(partial, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for path in sorted(members):
            info = tarfile.TarInfo(path)
            info.size, info.mode, info.mtime = len(members[path]), 0o644, 0
            archive.addfile(info, io.BytesIO(members[path]))
    partial.rename(output)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--name", required=True, help="image reference, e.g. icebox.local/demo:latest")
    parser.add_argument("--output", required=True, type=pathlib.Path, help="archive to write")
    parser.add_argument("--busybox", type=pathlib.Path, help="static busybox (default: the one in PATH)")
    parser.add_argument("--program", action="append", default=[], metavar="FILE[:PATH]",
                        help="program to add, with the libraries it needs (default path: /bin/NAME)")
    parser.add_argument("--file", action="append", default=[], metavar="FILE:PATH",
                        help="file to add, with the libraries it needs when it is an ELF file")
    parser.add_argument("--external", action="append", default=[], metavar="LIBRARY",
                        help="shared library that the container gets from elsewhere, e.g. libcuda.so.1")
    parser.add_argument("--env", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--command", nargs="+", default=["/bin/sh"], metavar="ARG",
                        help="what a container of this image runs by default")
    args = parser.parse_args()
    try:
        busybox = args.busybox or pathlib.Path(shutil.which("busybox") or "busybox")
        if not busybox.is_file():
            raise ImageError("busybox not found; install the distribution's busybox-static package")
        if shared_libraries(busybox, []):
            raise ImageError(f"{busybox} is not static; install the distribution's busybox-static package")
        layer = build_rootfs(busybox, args.program, args.file, args.external)
        write_archive(args.output, args.name, layer, args.command, args.env)
    except (ImageError, OSError) as error:
        print(f"make-image: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
