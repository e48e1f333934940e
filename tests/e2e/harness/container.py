# SPDX-License-Identifier: Apache-2.0
"""One container of a node, driven through ctr as a user would."""

import pathlib
import re
import signal
import subprocess

from . import procs
from .node import ENGINE, FAULTS, ICEBOX, STOCK, Node, Output


class Container:
    """A container and its task. Nothing happens before `run`, `start` or `restore_from`."""

    def __init__(self, node: Node, id: str, runtime: str = ICEBOX):
        self.node = node
        self.id = id
        self.runtime = runtime

    # --- create ------------------------------------------------------------------------------------------------

    def run_arguments(self, image: str, *command: str, flags: tuple[str, ...] = ()) -> list[str]:
        # ctr's default asks for CPU shares, which a unified hierarchy beside v1 controllers cannot give.
        runtime = ["--runtime", self.runtime]
        if self.runtime == ENGINE:
            runtime = ["--runtime", STOCK, "--runc-binary", str(self.node.bin / "icebox-runc")]
        return ["run", *runtime, "--cpu-shares", "0", *flags, image, self.id, *command]

    def run(self, image: str, *command: str, flags: tuple[str, ...] = ("--null-io",), check: bool = True) -> Output:
        """`ctr run -d`. By default without stdio, so that nobody has to read the container's output."""
        return self.node.ctr(*self.run_arguments(image, *command, flags=("-d", *flags)), check=check)

    def run_foreground(self, image: str, *command: str, flags: tuple[str, ...] = (), input: str | bytes | None = None,
                       check: bool = True) -> Output:
        """`ctr run --rm` to the end of the container."""
        return self.node.ctr(*self.run_arguments(image, *command, flags=("--rm", *flags)), input=input, check=check)

    def popen(self, image: str, *command: str, flags: tuple[str, ...] = (), **options: object) -> subprocess.Popen:
        return self.node.ctr_popen(*self.run_arguments(image, *command, flags=flags), **options)

    def restore_from(self, reference: str, rw: bool = True, check: bool = True) -> Output:
        """`ctr c restore --live`: this container is made from a checkpoint image."""
        flags = ["--rw"] if rw else []
        return self.node.ctr("containers", "restore", *flags, "--live", self.id, reference, check=check)

    # --- look --------------------------------------------------------------------------------------------------

    @property
    def status(self) -> str:
        """RUNNING, PAUSED, STOPPED, CREATED ...; "" when there is no task."""
        return self.node.tasks().get(self.id, (0, ""))[1]

    @property
    def pid(self) -> int:
        return self.node.tasks()[self.id][0]

    @property
    def cgroup(self) -> str:
        return f"/{self.node.namespace}/{self.id}"

    @property
    def rootfs(self) -> pathlib.Path:
        """The root file system, readable from here whatever state the container is in."""
        return self.node.bundle(self.id) / "rootfs"

    def read(self, name: str) -> str:
        """A file of the root file system; "" when it does not exist."""
        try:
            return (self.rootfs / name.lstrip("/")).read_text()
        except FileNotFoundError:
            return ""

    def wait_status(self, status: str) -> None:
        procs.wait_until(lambda: self.status == status, f"task {self.id} is {status}", interval=0.03)

    def wait_file(self, name: str, pattern: str = ".") -> str:
        return procs.wait_until(lambda: self.read(name) if re.search(pattern, self.read(name)) else "",
                                f"{name} in {self.id} matches {pattern!r}")

    # --- act ---------------------------------------------------------------------------------------------------

    def task(self, verb: str, *arguments: str, check: bool = True, input: str | bytes | None = None) -> Output:
        """`ctr tasks VERB [ARGUMENTS] ID`."""
        return self.node.ctr("tasks", verb, *arguments, self.id, check=check, input=input)

    def exec(self, *command: str, flags: tuple[str, ...] = (), check: bool = True, input: str | bytes | None = None,
             exec_id: str | None = None) -> Output:
        exec_id = exec_id or self.node.unique("exec")
        return self.node.ctr("tasks", "exec", "--exec-id", exec_id, *flags, self.id, *command, check=check, input=input)

    def pause(self) -> None:
        self.task("pause")

    def resume(self) -> None:
        self.task("resume")

    def kill(self, number: int = signal.SIGKILL, check: bool = True) -> Output:
        return self.task("kill", "--signal", str(int(number)), check=check)

    def checkpoint(self, reference: str, rw: bool = True, check: bool = True) -> Output:
        """`ctr c checkpoint --task [--rw]`: an image with the container's memory."""
        flags = ["--rw"] if rw else []
        done = self.node.ctr("containers", "checkpoint", "--task", *flags, self.id, reference, check=False)
        assert not check or done.code == 0, f"{done}\nCRIU: {self.criu_errors()}"
        return done

    def engine(self, command: str, *arguments: str, check: bool = True, timeout: float = 90.0) -> Output:
        """The engine's own command line, as podman or a person at a shell would use it on this container."""
        return self.node.command(*self.engine_command(command, *arguments), check=check, timeout=timeout)

    def engine_command(self, command: str, *arguments: str) -> list[str]:
        folder = self.node.fault_bin if self.runtime == FAULTS else self.node.bin
        return [str(folder / "icebox-runc"), "--root", self.node.runc_root(), command, *arguments, self.id]

    def dump(self, directory: pathlib.Path, *options: str, check: bool = True) -> Output:
        """A checkpoint into a directory, by the engine's command; the container's state decides what follows."""
        return self.engine("checkpoint", "--image-path", str(directory), *options, check=check)

    def checkpoint_log(self) -> str:
        """CRIU's log of a checkpoint that failed, where both shims leave it."""
        path = self.node.bundle(self.id) / "criu-dump.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def criu_errors(self) -> str:
        return "\n".join(line for line in self.checkpoint_log().splitlines() if "Error" in line)

    def delete_task(self) -> int:
        """Deletes the task, which must have ended, and returns its exit status."""
        said = self.task("delete").stderr
        match = re.search(r"exit with non-zero exit code (\d+)", said)
        return int(match[1]) if match else 0

    def stop(self) -> None:
        """SIGKILL, then the task's removal."""
        self.kill()
        self.wait_status("STOPPED")
        self.delete_task()

    def remove(self) -> None:
        """Task and container, in whatever state; what a test expects to be gone already may be gone."""
        if self.status:
            self.kill(check=False)
            procs.wait_until(lambda: self.status in ("STOPPED", "CREATED", ""), f"{self.id} has ended", interval=0.03)
            if self.status:
                self.task("delete", check=False)
        if self.id in self.node.containers():
            self.node.ctr("containers", "delete", self.id)
