# SPDX-License-Identifier: Apache-2.0
"""A client of the GPU agent, icebox-gpu: what the GPU really holds, asked without the engine."""

import json
import os
import pathlib
import socket
import struct
import subprocess

from .checks import Failed

LOCK_MS = 5000
# Checkpoint and Restore have no deadline of their own; a client that gives up here has found a hang.
ANSWER_SECONDS = 60.0


def start_time(pid: int) -> int:
    """A process's start in clock ticks, which with its pid names it for good."""
    stat = pathlib.Path(f"/proc/{pid}/stat").read_text()
    return int(stat[stat.rindex(")") + 2:].split()[19])


class Agent:
    """One agent process; use as a context manager."""

    def __init__(self, program: pathlib.Path, libcuda: str, nvml: str, caps: str | None = None):
        self._command = [str(program), "--libcuda", libcuda, "--nvml", nvml]
        if caps is not None:
            self._command += ["--caps", caps]
        self._id = 0

    def __enter__(self) -> "Agent":
        self._socket, theirs = socket.socketpair()
        self._socket.settimeout(ANSWER_SECONDS)
        # The agent expects the socket as descriptor 3; all others of ours are close-on-exec.
        self._process = subprocess.Popen(self._command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                         stderr=subprocess.PIPE, close_fds=False,
                                         preexec_fn=lambda: os.dup2(theirs.fileno(), 3))
        theirs.close()
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()
        try:
            self._process.wait(ANSWER_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stderr.close()

    def ask(self, op: str, **fields: object) -> dict:
        self._id += 1
        payload = json.dumps({"version": 1, "id": self._id, "op": op, **fields}).encode()
        try:
            self._socket.sendall(struct.pack("<I", len(payload)) + payload)
            answer = json.loads(self._read(struct.unpack("<I", self._read(4))[0]))
        except OSError as error:
            raise Failed(f"the agent does not answer {op}: {error or 'timeout'}") from error
        if "error" in answer:
            raise Failed(f"agent: {op}: {answer['error']['message']}")
        return answer

    def act(self, op: str, pid: int) -> dict:
        """One operation on one process; raises unless it succeeded."""
        fields: dict[str, object] = {"targets": [{"pid": pid, "start_time": start_time(pid)}]}
        if op not in ("checkpoint", "restore"):
            fields["timeout_ms"] = LOCK_MS
        outcome = self.ask(op, **fields)["outcomes"][0]
        if outcome["ending"] != "ok":
            raise Failed(f"{op}: {outcome['ending']}: {outcome.get('message', '')}")
        return outcome

    def driver(self) -> dict:
        return self.ask("info")["driver"]

    def processes(self) -> dict[int, int]:
        """Host pid -> bytes on all GPUs, as NVML tells."""
        used: dict[int, int] = {}
        for entry in self.ask("processes")["processes"]:
            used[entry["pid"]] = used.get(entry["pid"], 0) + entry.get("used_bytes", 0)
        return used

    def _read(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            part = self._socket.recv(size - len(data))
            if not part:
                raise ConnectionError("it has ended: " + self._process.stderr.read().decode(errors="replace").strip()[-500:])
            data += part
        return data
