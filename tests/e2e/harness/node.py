# SPDX-License-Identifier: Apache-2.0
"""A node: a private containerd inside a mount namespace of its own, and everything tests do with it.

The namespace gives each node its own /run/containerd (runc's state, the shims' sockets and FIFOs), its own /tmp
(containerd's checkpoint folders), its own /dev with a simulated GPU's node, and, for version 2, a unified
cgroup file system. So nodes neither see nor disturb each other or the machine's own containerd, and whatever
is left behind in one of these places was left by a test.
"""

import contextlib
import dataclasses
import json
import os
import pathlib
import secrets
import shutil
import signal
import socket
import subprocess
import threading
import time
from typing import Iterator

from . import cgroups, paths, procs
from .cgroups import Cgroups

STOCK = "io.containerd.runc.v2"
ICEBOX = "io.containerd.runc.icebox.v1"
# The stock shim with Icebox's engine as its OCI runtime; harness name only.
ENGINE = "engine"
# The same shim beside an engine with fault points; harness name only.
FAULTS = "io.containerd.runc.iceboxfaults.v1"

COMMAND_TIMEOUT = 90.0

_NAMESPACE_SETUP = r"""
set -eu
base=$1 cgroup=$2
mkdir -p /run/containerd
mount --bind "$base/run" /run/containerd
mount --bind "$base/tmp" /tmp
mount -t tmpfs -o mode=755,size=1m devices "$base/dev"
cp -ax /dev/. "$base/dev/"
rm -rf "$base"/dev/nvidia*
mknod -m 666 "$base/dev/nvidia0" c 10 237
mount --rbind /dev/pts "$base/dev/pts"
mount -t tmpfs shm "$base/dev/shm"
mount --rbind "$base/dev" /dev
if [ "$cgroup" = v2 ] && [ ! -e /sys/fs/cgroup/cgroup.controllers ]; then
  mount -t cgroup2 none /sys/fs/cgroup
fi
echo ready
exec sleep infinity
"""

_CONTAINERD_CONFIG = """
version = 2
root = "{base}/root"
state = "{base}/state"
disabled_plugins = ["io.containerd.grpc.v1.cri", "io.containerd.internal.v1.opt", "io.containerd.internal.v1.restart",
  "io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.devmapper",
  "io.containerd.snapshotter.v1.zfs", "io.containerd.tracing.processor.v1.otlp", "io.containerd.internal.v1.tracing"]
[grpc]
  address = "{base}/c.sock"
"""


@dataclasses.dataclass(frozen=True)
class Output:
    """What a finished command said."""

    command: list[str]
    code: int
    stdout: str
    stderr: str

    @property
    def text(self) -> str:
        return self.stdout + self.stderr

    def __str__(self) -> str:
        return f"{' '.join(self.command)}\nexit {self.code}\nstdout: {self.stdout[-4000:]}\nstderr: {self.stderr[-4000:]}"


class Node:
    """One private containerd. `start` and `close` frame its life; use it as a context manager."""

    def __init__(self, cgroup: str, drop_in: bool = False):
        """`cgroup` is "v1" or "v2". With `drop_in` Icebox is installed under the stock shim's name."""
        name = secrets.token_hex(4)
        self.cgroup_version = cgroup
        beside_v1 = cgroup == "v2" and cgroups.version_of_machine() == "v1"
        self.v1_home = cgroups.V1Home(f"icebox-e2e-{name}") if beside_v1 else None
        self.drop_in = drop_in
        self.base = pathlib.Path(f"/var/tmp/icebox-e2e-{name}")
        self.base.mkdir(mode=0o755)
        self.namespace = f"e2e-{name}"
        self.bin = self.base / "bin"
        self.fault_bin = self.base / "bin-faults"
        # The simulated driver as the engine loads it; its host file lies beside it.
        self.cuda = self.base / "cuda"
        self.state_dir = self.base / "icebox"
        self.tmp = self.base / "tmp"
        self.run_dir = self.base / "run"
        self.fault_file = self.base / "faults"
        self.config_file = self.base / "icebox.toml"
        self.log = self.base / "containerd.log"
        self.daemon: subprocess.Popen | None = None
        self.holder: subprocess.Popen | None = None
        # What the stock shim, the oracle, is known to leave behind: patterns below `base`.
        self.known_leaks: list[str] = []
        self._counter = 0

    # --- life -------------------------------------------------------------------------------------------------

    def __enter__(self) -> "Node":
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> None:
        for folder in (self.run_dir, self.tmp, self.base / "dev", self.state_dir):
            folder.mkdir()
        self.tmp.chmod(0o1777)
        self._stage_programs()
        self.fault_file.touch()
        self.write_config()
        if self.v1_home is not None:
            self.v1_home.make()
        self.holder = subprocess.Popen(
            ["unshare", "--mount", "--propagation", "private", "sh", "-c", _NAMESPACE_SETUP, "sh", str(self.base),
             self.cgroup_version], stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True)
        assert self.holder.stdout is not None
        if self.holder.stdout.readline().strip() != "ready":
            raise RuntimeError("cannot set the node's mount namespace up; these tests need root")
        (self.base / "containerd.toml").write_text(_CONTAINERD_CONFIG.format(base=self.base))
        self.start_daemon()

    def _stage_programs(self) -> None:
        """Copies the programs, so that a rebuild in the middle of a run cannot mix two versions."""
        for folder in (self.bin, self.fault_bin):
            folder.mkdir()
        shutil.copytree(paths.FAKES, self.cuda)
        if not (paths.BIN / "containerd-shim-icebox-v1").exists():
            return
        shim = "containerd-shim-runc-v2" if self.drop_in else "containerd-shim-icebox-v1"
        for source, target in ((paths.BIN / "containerd-shim-icebox-v1", self.bin / shim),
                               (paths.BIN / "icebox-runc", self.bin / "icebox-runc"),
                               (paths.BIN / "icebox-gpu", self.bin / "icebox-gpu"),
                               (paths.BIN / "containerd-shim-icebox-v1", self.fault_bin / "containerd-shim-iceboxfaults-v1"),
                               (paths.FAULT_BIN / "icebox-runc", self.fault_bin / "icebox-runc"),
                               (paths.BIN / "icebox-gpu", self.fault_bin / "icebox-gpu")):
            if source.exists():
                shutil.copy2(source, target)

    def start_daemon(self) -> None:
        with self.log.open("ab") as log:
            self.daemon = subprocess.Popen(
                self.enter("containerd", "--config", str(self.base / "containerd.toml")),
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self.environment(), start_new_session=True,
                preexec_fn=self.v1_home.enter if self.v1_home is not None else None)
        procs.wait_until(self._daemon_answers, "containerd answers on its socket")

    def _daemon_answers(self) -> bool:
        assert self.daemon is not None
        if self.daemon.poll() is not None:
            raise RuntimeError(f"containerd ended at once:\n{self.log_tail()}")
        try:
            with socket.socket(socket.AF_UNIX) as probe:
                probe.connect(f"{self.base}/c.sock")
        except OSError:
            return False
        return self.ctr("version", check=False).code == 0

    def stop_daemon(self, number: int = signal.SIGTERM) -> None:
        if self.daemon is not None:
            procs.kill(self.daemon.pid, number)
            try:
                self.daemon.wait(COMMAND_TIMEOUT)
            except subprocess.TimeoutExpired:
                self.daemon.kill()
                self.daemon.wait()
            self.daemon = None

    def close(self) -> None:
        """Ends every process of the node, whatever state a test left it in, and removes the node's folder."""
        if self.holder is not None:
            with contextlib.suppress(AssertionError, OSError):
                self.force_clean()
        self.stop_daemon()
        if self.holder is not None:
            self.holder.kill()
            self.holder.wait()
            self.holder = None
        cgroups.remove_everywhere(self.namespace)
        if self.v1_home is not None:
            self.v1_home.remove()
        if "ICEBOX_E2E_KEEP" not in os.environ:
            shutil.rmtree(self.base, ignore_errors=True)

    # --- commands ---------------------------------------------------------------------------------------------

    def environment(self) -> dict[str, str]:
        """The environment of containerd, which its shims and their engines inherit."""
        return {"PATH": paths.system_path(self.bin) + f":{self.fault_bin}", "HOME": "/root", "LC_ALL": "C",
                "ICEBOX_CONFIG": str(self.config_file), "ICEBOX_FAULT_FILE": str(self.fault_file)}

    def enter(self, *command: str) -> list[str]:
        """`command` as to be run inside the node's mount namespace."""
        assert self.holder is not None
        return ["nsenter", f"--mount=/proc/{self.holder.pid}/ns/mnt", "--", *command]

    def command(self, *command: str, check: bool = True, input: str | bytes | None = None,
                timeout: float = COMMAND_TIMEOUT, env: dict[str, str] | None = None) -> Output:
        """Runs `command` in the node to its end. With `check` a non-zero exit fails the test with all it said."""
        data = input.encode() if isinstance(input, str) else input
        done = subprocess.run(self.enter(*command), input=data, stdin=subprocess.DEVNULL if data is None else None,
                              capture_output=True, timeout=timeout, check=False, env={**self.environment(), **(env or {})})
        output = Output(list(command), done.returncode, done.stdout.decode(errors="replace"),
                        done.stderr.decode(errors="replace"))
        assert not check or output.code == 0, str(output)
        return output

    def popen(self, *command: str, **options: object) -> subprocess.Popen:
        options.setdefault("stdin", subprocess.DEVNULL)
        options.setdefault("env", self.environment())
        return subprocess.Popen(self.enter(*command), **options)  # type: ignore[call-overload]

    def ctr_command(self, *arguments: str) -> list[str]:
        return ["ctr", "--address", f"{self.base}/c.sock", "--namespace", self.namespace, *arguments]

    def ctr(self, *arguments: str, check: bool = True, input: str | bytes | None = None,
            timeout: float = COMMAND_TIMEOUT) -> Output:
        return self.command(*self.ctr_command(*arguments), check=check, input=input, timeout=timeout)

    def ctr_popen(self, *arguments: str, **options: object) -> subprocess.Popen:
        return self.popen(*self.ctr_command(*arguments), **options)

    # --- what the node looks like ------------------------------------------------------------------------------

    def path(self, inside: str | pathlib.Path) -> pathlib.Path:
        """A path inside the node's mount namespace, as this process can open it."""
        assert self.holder is not None
        return pathlib.Path(f"/proc/{self.holder.pid}/root") / str(inside).lstrip("/")

    @property
    def cgroups(self) -> Cgroups:
        return Cgroups(self.path("/sys/fs/cgroup"), self.cgroup_version)

    def bundle(self, container: str) -> pathlib.Path:
        return self.path(self.base / "state" / "io.containerd.runtime.v2.task" / self.namespace / container)

    def runc_root(self) -> str:
        return f"/run/containerd/runc/{self.namespace}"

    def tasks(self) -> dict[str, tuple[int, str]]:
        """Container id -> (pid, status) of every task, as `ctr t ls` shows it."""
        rows = [line.split() for line in self.ctr("tasks", "ls").stdout.splitlines()[1:]]
        return {row[0]: (int(row[1]), row[2]) for row in rows}

    def containers(self) -> list[str]:
        return self.ctr("containers", "ls", "-q").stdout.split()

    def images(self) -> list[str]:
        return self.ctr("images", "ls", "-q").stdout.split()

    def processes(self) -> list[int]:
        """Every process that belongs to this node: in its mount namespace, or in a cgroup of its containers."""
        assert self.holder is not None
        namespace = procs.mount_namespace(self.holder.pid)
        mine = {pid for pid in procs.pids() if procs.mount_namespace(pid) == namespace
                or f"/{self.namespace}/" in procs.read(pid, "cgroup")}
        return sorted(mine - {self.holder.pid})

    def shims(self) -> list[int]:
        """The shim daemons, of whatever kind."""
        return [pid for pid in self.processes() if "containerd-shim-" in procs.cmdline(pid)[0]]

    def log_tail(self, size: int = 6000) -> str:
        return self.log.read_text(errors="replace")[-size:] if self.log.exists() else ""

    def spec(self, image: str, *command: str, flags: tuple[str, ...] = ()) -> dict:
        """The runtime spec that ctr makes for a container of `image`, to be changed and run with --config."""
        name = self.unique("spec")
        self.ctr("containers", "create", *flags, image, name)
        try:
            spec = json.loads(self.ctr("containers", "info", name).stdout)["Spec"]
            spec["process"]["args"] = list(command)
            return spec
        finally:
            self.ctr("containers", "delete", name)

    # --- settings of the engine --------------------------------------------------------------------------------

    def write_config(self, **settings: str | int) -> None:
        """Writes the engine's configuration; the engine reads it at each command."""
        values: dict[str, str | int] = {"criu": str(paths.criu()), "state_dir": str(self.state_dir),
                                        "libcuda": str(self.cuda / "libcuda.so.1"),
                                        "libnvidia_ml": str(self.cuda / "libnvidia-ml.so.1"),
                                        **settings}
        self.config_file.write_text("".join(f"{key} = {json.dumps(value)}\n" for key, value in values.items()))

    @contextlib.contextmanager
    def config(self, **settings: str | int) -> Iterator[None]:
        """Other settings for the length of a `with` block."""
        before = self.config_file.read_text()
        self.write_config(**settings)
        try:
            yield
        finally:
            self.config_file.write_text(before)

    @contextlib.contextmanager
    def simulated_host(self, *lines: str) -> Iterator[None]:
        """Another machine, as the simulated driver shows it to the engine, for the length of a `with` block."""
        host = self.cuda / "icebox-sim.conf"
        host.write_text("".join(f"{line}\n" for line in lines))
        try:
            yield
        finally:
            host.unlink()

    @contextlib.contextmanager
    def faults(self, *lines: str) -> Iterator[None]:
        """Fault points for the length of a `with` block; only the FAULTS runtime has any."""
        self.fault_file.write_text("".join(f"{line}\n" for line in lines))
        try:
            yield
        finally:
            self.fault_file.write_text("")

    # --- names -------------------------------------------------------------------------------------------------

    def unique(self, stem: str) -> str:
        self._counter += 1
        return f"{stem}-{self._counter}"

    # --- cleaning ----------------------------------------------------------------------------------------------

    def force_clean(self) -> None:
        """Brings the node back to "no containers" without any help of the programs under test."""
        own = self.cgroups
        for relative in own.below(self.namespace):
            for file, value in (("freezer.state", "THAWED"), ("cgroup.freeze", "0")):
                path = own.root / relative / file
                with contextlib.suppress(OSError):
                    if path.exists():
                        path.write_text(value)
        keep = {self.daemon.pid} if self.daemon is not None else set()
        end = time.monotonic() + procs.DEADLINE
        while time.monotonic() < end:
            left = [pid for pid in self.processes() if pid not in keep and procs.alive(pid)]
            if not left:
                break
            for pid in left:
                procs.kill(pid)
            time.sleep(0.01)
        if self.daemon is not None and self.daemon.poll() is None:
            for container in list(self.tasks()):
                self.ctr("tasks", "delete", "--force", container, check=False)
            for container in self.containers():
                self.ctr("containers", "delete", container, check=False)
        self._unmount_left()
        for hierarchy in own.hierarchies():
            cgroups.remove_tree(hierarchy / self.namespace)
        # Only now that nothing is mounted below them: a recursive removal must never cross a mount.
        if not self._mounts_of_containers():
            for folder in (self.tmp, self.state_dir, self.run_dir / "runc"):
                for child in (folder.iterdir() if folder.exists() else ()):
                    shutil.rmtree(child) if child.is_dir() and not child.is_symlink() else child.unlink()

    def remove_known_leaks(self) -> None:
        for pattern in self.known_leaks:
            for path in self.base.glob(pattern):
                shutil.rmtree(path) if path.is_dir() else path.unlink()

    def _mounts_of_containers(self) -> list[str]:
        assert self.holder is not None
        mounts = [line.split()[4] for line in procs.read(self.holder.pid, "mountinfo").splitlines()]
        places = (f"{self.base}/state/", "/run/containerd/", "/tmp/", f"{self.base}/tmp/", f"{self.base}/run/",
                  f"{self.base}/icebox/")
        return [mount for mount in mounts if mount.startswith(places)]

    def _unmount_left(self) -> None:
        for mount in reversed(self._mounts_of_containers()):
            self.command("umount", "--lazy", mount, check=False)


class Events:
    """Records what containerd publishes while it is in use as a context manager."""

    def __init__(self, node: Node):
        self._node = node
        self._lines: list[str] = []

    def __enter__(self) -> "Events":
        self._process = self._node.ctr_popen("events", stdout=subprocess.PIPE, text=True)
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()
        # The subscription is made some time after `ctr events` starts: provoke events until one arrives.
        def subscribed() -> bool:
            self._node.ctr("namespaces", "label", self._node.namespace, f"probe={self._node.unique('p')}")
            return bool(self._lines)
        procs.wait_until(subscribed, "ctr events delivers", interval=0.05)
        return self

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.append(line.rstrip("\n"))

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait()
        self._thread.join()

    def of_tasks(self, container: str) -> list[tuple[str, dict]]:
        """(topic, event) of the task events about `container`, in order of arrival."""
        found = []
        for line in list(self._lines):
            if " /tasks/" not in line:
                continue
            topic = line[line.index(" /tasks/") + 1:].split()[0]
            event = json.loads(line[line.index("{"):])
            if event.get("container_id") == container:
                found.append((topic, event))
        return found
