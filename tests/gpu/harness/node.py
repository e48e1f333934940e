# SPDX-License-Identifier: Apache-2.0
"""A private containerd, and containers driven through ctr as a user would."""

import contextlib
import glob
import json
import os
import pathlib
import re
import signal
import shutil
import subprocess
import tarfile
import time
from typing import Iterator

from .checks import Deadline, Failed, check, wait_until
from .machine import KNOBS, Machine

NAMESPACE = "icebox-gpu"
RUNTIME = "io.containerd.runc.icebox.v1"
SAMPLES_IMAGE = "icebox.local/gpu-samples:latest"
BUSYBOX_IMAGE = "icebox.local/gpu-busybox:latest"
LOCK_TIMEOUT_MS = 10000

_CONFIG = """
version = 2
root = "{work}/root"
state = "{work}/state"
disabled_plugins = ["io.containerd.grpc.v1.cri", "io.containerd.internal.v1.opt", "io.containerd.internal.v1.restart",
  "io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.devmapper",
  "io.containerd.snapshotter.v1.zfs", "io.containerd.tracing.processor.v1.otlp", "io.containerd.internal.v1.tracing"]
[grpc]
  address = "{work}/c.sock"
"""


class Node:
    """The containerd of one run; `start` and `stop` frame its life."""

    def __init__(self, machine: Machine):
        self.machine = machine
        self.work = machine.work
        self.deadline = Deadline(60)
        self.config_file = self.work / "icebox.toml"
        self.log = self.work / "logs" / "containerd.log"
        self.daemon: subprocess.Popen | None = None
        self.boxes: list["Box"] = []
        self.helpers: list[subprocess.Popen] = []
        self._counter = 0

    # --- life --------------------------------------------------------------------------------------------------

    def start(self) -> None:
        self._end_earlier_run()
        self.configure()
        (self.work / "containerd.toml").write_text(_CONFIG.format(work=self.work))
        with self.log.open("wb") as log:
            self.daemon = subprocess.Popen(["containerd", "--config", str(self.work / "containerd.toml")],
                                           executable=str(self.machine.bin / "containerd"), stdin=subprocess.DEVNULL,
                                           stdout=log, stderr=log, env=self.environment(), start_new_session=True)
        wait_until(self._answers, "containerd answers", 30)
        self.snapshotter = "overlayfs" if self._overlay_works() else "native"
        for image in ("samples", "busybox"):
            self.ctr("images", "import", "--snapshotter", self.snapshotter, str(self.machine.kit / "images" / f"{image}.tar"))

    def _end_earlier_run(self) -> None:
        """What a run that was cut off has left in this work folder."""
        for pid in self.leftovers() + self.stray():
            os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not self.leftovers() and not self.stray(), "an earlier run's processes are gone", 20)
        for left in ("root", "state", "icebox", "tmp", "run"):
            _empty(self.work / left)

    def leftovers(self) -> list[int]:
        """containerd and shims of this work folder."""
        return [pid for pid, words in _command_lines() if f"{self.work}/c.sock" in words or
                f"{self.work}/containerd.toml" in words]

    def left_behind(self) -> list[str]:
        """What must not be there once all containers are removed: shims, processes, mounts, checkpoint folders, state."""
        assert self.daemon is not None
        mounts = [line.split()[1] for line in pathlib.Path("/proc/self/mounts").read_text().splitlines()]
        found = [f"process {pid}: {' '.join(words)}" for pid, words in _command_lines()
                 if f"{self.work}/c.sock" in words and pid != self.daemon.pid]
        found += [f"process {pid} in a container's cgroup" for pid in self.stray()]
        found += [f"mount {mount}" for mount in mounts if mount.startswith(f"{self.work}/state/")]
        found += [str(path) for path in (self.work / "tmp").iterdir()]
        found += [str(path) for path in (self.work / "icebox").rglob("*") if path.is_file()]
        return found

    def _answers(self) -> bool:
        assert self.daemon is not None
        if self.daemon.poll() is not None:
            raise Failed(f"containerd ended at once: {self.log.read_text(errors='replace')[-800:]}")
        return self.ctr("version", check_code=False).returncode == 0

    def _overlay_works(self) -> bool:
        plugins = self.ctr("plugins", "ls").stdout
        return bool(re.search(r"snapshotter\.v1\s+overlayfs\s+\S+\s+ok", plugins))

    def stop(self) -> None:
        if self.daemon is None:
            return
        self.clean()
        self.daemon.terminate()
        try:
            self.daemon.wait(20)
        except subprocess.TimeoutExpired:
            self.daemon.kill()
            self.daemon.wait()
        self.daemon = None
        # The containers' cgroups are gone; the one above them runc leaves.
        for parent in (f"/sys/fs/cgroup/{NAMESPACE}", *glob.glob(f"/sys/fs/cgroup/*/{NAMESPACE}")):
            with contextlib.suppress(OSError):
                os.rmdir(parent)

    def clean(self) -> None:
        """After an item: nothing of it runs on, whatever state it was left in."""
        for helper in self.helpers:
            if helper.poll() is None:
                helper.kill()
            helper.wait()
        self.helpers.clear()
        self.deadline = Deadline(45)
        for box in self.boxes:
            try:
                box.remove()
            except (Failed, subprocess.TimeoutExpired) as error:
                print(f"  (cleaning {box.id}: {error})", flush=True)
        self.boxes.clear()
        for pid in self.stray():
            os.kill(pid, signal.SIGKILL)

    def stray(self) -> list[int]:
        """Processes in cgroups of our containers: thawed here, so that a signal reaches them."""
        found = []
        for entry in pathlib.Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                groups = (entry / "cgroup").read_text()
            except OSError:
                continue
            match = re.search(rf"/{NAMESPACE}/(\S+)", groups)
            if match:
                found.append(int(entry.name))
                for file, value in ((f"/sys/fs/cgroup/{NAMESPACE}/{match[1]}/cgroup.freeze", "0"),
                                    (f"/sys/fs/cgroup/freezer/{NAMESPACE}/{match[1]}/freezer.state", "THAWED")):
                    if os.path.exists(file):
                        pathlib.Path(file).write_text(value)
        return found

    # --- commands ----------------------------------------------------------------------------------------------

    def environment(self) -> dict[str, str]:
        """Of containerd, and through it of the shims, the engine and CRIU. Nothing of the machine's but the basics."""
        return {"PATH": f"{self.machine.tools}:{self.machine.bin}:/usr/bin:/bin", "HOME": "/root", "LC_ALL": "C",
                "TMPDIR": str(self.work / "tmp"), "ICEBOX_CONFIG": str(self.config_file)}

    def configure(self, **settings: str | int) -> None:
        """The engine's configuration, read at each of its commands."""
        values: dict[str, str | int] = {"criu": "/opt/icebox/criu/bin/criu", "runtime": str(self.machine.bin / "runc"),
                                        "state_dir": str(self.work / "icebox"), "libcuda": self.machine.libcuda,
                                        "libnvidia_ml": self.machine.nvml, "lock_timeout_ms": LOCK_TIMEOUT_MS, **settings}
        self.config_file.write_text("".join(f"{key} = {json.dumps(value)}\n" for key, value in values.items()))

    def ctr(self, *arguments: str, check_code: bool = True, seconds: float = 600) -> subprocess.CompletedProcess:
        command = self.ctr_command(*arguments)
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace",
                              timeout=self.deadline.left(seconds), env=self.environment(), check=False)
        if check_code and done.returncode != 0:
            raise Failed(f"ctr {' '.join(arguments)[:200]}: exit {done.returncode}: {(done.stderr + done.stdout).strip()[-1200:]}")
        return done

    def ctr_command(self, *arguments: str) -> list[str]:
        return [str(self.machine.bin / "ctr"), "--address", f"{self.work}/c.sock", "--namespace", NAMESPACE, *arguments]

    def helper(self, *command: str, **options: object) -> subprocess.Popen:
        """A program beside the containers, ended with the item."""
        options.setdefault("stdin", subprocess.DEVNULL)
        options.setdefault("env", self.machine.host_environment())
        process = subprocess.Popen(command, **options)
        self.helpers.append(process)
        return process

    def tasks(self) -> dict[str, tuple[int, str]]:
        rows = [line.split() for line in self.ctr("tasks", "ls").stdout.splitlines()[1:]]
        return {row[0]: (int(row[1]), row[2]) for row in rows}

    def unique(self, stem: str) -> str:
        self._counter += 1
        return f"{stem}-{self._counter}"

    def box(self, stem: str) -> "Box":
        box = Box(self, self.unique(stem))
        self.boxes.append(box)
        return box

    def remove_image(self, reference: str) -> None:
        self.ctr("images", "rm", "--sync", reference, check_code=False)

    def checkpoint_info(self, reference: str) -> dict:
        """icebox.json out of a checkpoint image: its blob is read in place, up to that file."""
        blobs = self.work / "root/io.containerd.content.v1.content/blobs/sha256"
        listed = self.ctr("images", "ls", f"name=={reference}").stdout
        index = json.loads((blobs / re.search(r"sha256:([0-9a-f]{64})", listed)[1]).read_text())
        for entry in index["manifests"]:
            if "criu" not in entry["mediaType"]:
                continue
            with tarfile.open(blobs / entry["digest"].removeprefix("sha256:"), mode="r|*") as archive:
                for member in archive:
                    if member.name.lstrip("./") == "icebox.json":
                        return {**json.load(archive.extractfile(member)), "image_bytes": entry["size"]}
        raise Failed(f"{reference} holds no icebox.json")


class Box:
    """One container."""

    def __init__(self, node: Node, id: str):
        self.node = node
        self.id = id

    def run(self, command: str, image: str = SAMPLES_IMAGE, flags: list[str] | None = None) -> None:
        """Starts `command`, its output going to /out in the container's root file system."""
        node = self.node
        node.ctr("run", "--detach", "--null-io", "--runtime", RUNTIME, "--snapshotter", node.snapshotter, "--cpu-shares", "0",
                 *node.machine.container_flags(), *(flags or []), image, self.id, "sh", "-c", f"exec {command} >/out 2>&1")

    def checkpoint(self, reference: str, check_code: bool = True) -> float:
        """`ctr c checkpoint --task --rw`; returns the seconds it took."""
        start = time.monotonic()
        self.node.ctr("containers", "checkpoint", "--task", "--rw", self.id, reference, check_code=check_code)
        return time.monotonic() - start

    def checkpoint_fails(self, reference: str) -> str:
        done = self.node.ctr("containers", "checkpoint", "--task", "--rw", self.id, reference, check_code=False)
        said = done.stderr + done.stdout
        check(done.returncode != 0, f"the checkpoint succeeded: {said}")
        return said

    def restore(self, reference: str) -> float:
        start = time.monotonic()
        self.node.ctr("containers", "restore", "--rw", "--live", self.id, reference)
        return time.monotonic() - start

    def task(self, verb: str, *arguments: str, check_code: bool = True) -> subprocess.CompletedProcess:
        return self.node.ctr("tasks", verb, *arguments, self.id, check_code=check_code,
                             seconds=180 if verb == "checkpoint" else 30)

    @property
    def status(self) -> str:
        return self.node.tasks().get(self.id, (0, ""))[1]

    @property
    def pid(self) -> int:
        tasks = self.node.tasks()
        check(self.id in tasks and tasks[self.id][0], f"{self.id} has no running task; its output: {self.out()[-500:]}")
        return tasks[self.id][0]

    @property
    def bundle(self) -> pathlib.Path:
        return self.node.work / "state/io.containerd.runtime.v2.task" / NAMESPACE / self.id

    @property
    def rootfs(self) -> pathlib.Path:
        return self.bundle / "rootfs"

    def out(self) -> str:
        """What the program has written, up to the last whole line."""
        try:
            text = (self.rootfs / "out").read_text(errors="replace")
        except OSError:
            return ""
        return text[:text.rfind("\n") + 1]

    def wait_out(self, pattern: str, seconds: float, after: int = 0) -> re.Match:
        """Waits until what the program wrote behind `after` matches."""
        def look() -> re.Match | None:
            text = self.out()
            found = re.search(pattern, text[after:], re.MULTILINE)
            if not found and self.status not in ("RUNNING", "PAUSED"):
                raise Failed(f"{self.id} has ended ({self.status or 'no task'}); its output: {text[-800:]}")
            return found
        return wait_until(look, f"{self.id} writes {pattern!r}; it wrote: {self.out()[-300:]!r}", seconds, 0.2)

    def pids(self) -> list[int]:
        """The host pids of all its processes."""
        said = self.task("ps").stdout
        return [int(line.split()[0]) for line in said.splitlines()[1:]]

    def knobs(self, *lines: str) -> None:
        """Simulation only: makes the driver of the container's processes misbehave."""
        target = self.rootfs / KNOBS.lstrip("/")
        target.with_suffix(".new").write_text("".join(f"{line}\n" for line in lines))
        target.with_suffix(".new").rename(target)

    def engine_log(self) -> dict[str, int]:
        """Phase -> milliseconds of the engine's commands for this task, from the log that the shim has it write."""
        phases: dict[str, int] = {}
        try:
            lines = (self.bundle / "log.json").read_text().splitlines()
        except OSError:
            return phases
        for line in lines:
            try:
                entry = json.loads(line)
            except json.JSONDecodeError:
                continue
            if entry.get("event") == "done":
                phases[entry["phase"]] = phases.get(entry["phase"], 0) + int(entry["ms"])
        return phases

    def stop(self) -> None:
        """Kills and removes task and container, all by ctr."""
        self.task("kill", "--signal", "SIGKILL")
        wait_until(lambda: self.status == "STOPPED", f"{self.id} has stopped", self.node.deadline.left(20))
        self.task("delete", check_code=False)
        self.node.ctr("containers", "delete", self.id)

    def remove(self) -> None:
        """Whatever state it is in. A task whose restore failed is left by ctr in the state CREATED, without a process."""
        if self.status not in ("", "CREATED"):
            self.task("kill", "--signal", "SIGKILL", check_code=False)
            try:
                wait_until(lambda: self.status in ("STOPPED", ""), f"{self.id} ends", self.node.deadline.left(15))
            except Failed:
                for pid in self.node.stray():
                    os.kill(pid, signal.SIGKILL)
        if self.status:
            self.task("delete")
        self.node.ctr("containers", "delete", self.id, check_code=False)


def _command_lines() -> Iterator[tuple[int, list[str]]]:
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                yield int(entry.name), (entry / "cmdline").read_text(errors="replace").split("\0")
            except OSError:
                pass


def _empty(folder: pathlib.Path) -> None:
    """Empties a folder, which may itself be mounted elsewhere. Never across a mount: that would empty what is there."""
    mounts = [line.split()[1] for line in pathlib.Path("/proc/self/mounts").read_text().splitlines()]
    check(not any(mount.startswith(f"{folder}/") for mount in mounts), f"something is mounted below {folder}")
    folder.mkdir(exist_ok=True)
    for child in folder.iterdir():
        shutil.rmtree(child) if child.is_dir() and not child.is_symlink() else child.unlink()
