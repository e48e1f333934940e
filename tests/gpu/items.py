# SPDX-License-Identifier: Apache-2.0
"""What is tested, one function per item. Each is judged by what the programs in the containers say, never by an exit code
alone, and returns figures for the report."""

import dataclasses
import os
import re
import subprocess
import time
from typing import Callable

from harness.agent import start_time
from harness.checks import Failed, Skipped, check, human, wait_until
from harness.counter import Counter
from harness.machine import Python, bind
from harness.node import BUSYBOX_IMAGE, Box, Node

Figures = dict[str, object]


@dataclasses.dataclass(frozen=True)
class Item:
    name: str
    title: str
    seconds: float
    function: Callable[[Node], Figures]


ITEMS: list[Item] = []


def item(name: str, title: str, seconds: float) -> Callable:
    """Registers an item. The order in this file is the order of a run: what is cheap and matters most comes first."""
    def register(function: Callable[[Node], Figures]) -> Callable[[Node], Figures]:
        ITEMS.append(Item(name, title, seconds, function))
        return function
    return register


def mib(node: Node, real: int, simulated: int) -> int:
    return simulated if node.machine.simulated else real


def real_only(node: Node, why: str) -> None:
    if node.machine.simulated:
        raise Skipped(f"needs a real GPU: {why}")


def image_name(node: Node) -> str:
    return f"icebox.local/{node.unique('checkpoint')}:latest"


# --- pattern programs ---------------------------------------------------------------------------------------------

BEAT = r"^beat (\d+) ok bytes=(\d+) hash=([0-9a-f]{16}) gpu=(\S+)$"


def beats(box: Box) -> list[tuple[int, int, str]]:
    """(number, bytes, hash) of every look that the pattern program has taken; it must have found no difference."""
    text = box.out()
    check("MISMATCH" not in text, f"{box.id} found other bytes on the GPU: {text[-300:]}")
    return [(int(m[1]), int(m[2]), m[3]) for m in re.finditer(BEAT, text, re.MULTILINE)]


def more_beats(box: Box, count: int, seconds: float) -> tuple[int, int, str]:
    """Waits for `count` more looks, that all found what was written; returns the last."""
    have = len(beats(box))
    wait_until(lambda: len(beats(box)) >= have + count or box.status not in ("RUNNING", "PAUSED"),
               f"{count} more looks of {box.id}", seconds, 0.1)
    seen = beats(box)
    check(len(seen) >= have + count, f"{box.id} has ended: {box.out()[-500:]}")
    check([beat[0] for beat in seen] == list(range(1, len(seen) + 1)), f"{box.id} lost or repeated looks: {seen[-5:]}")
    check(len({beat[1:] for beat in seen}) == 1, f"{box.id} saw different contents: {seen[-5:]}")
    return seen[-1]


def start_pattern(node: Node, size_mib: int, seed: int, stem: str = "pattern", tick_ms: int = 100) -> Box:
    box = node.box(stem)
    box.run(f"/bin/sample-pattern --mib {size_mib} --seed {seed} --tick-ms {tick_ms}")
    box.wait_out(r"^beat 2 ok", 60 + size_mib / 200)
    return box


def figures_of(info: dict, wall: float) -> Figures:
    return {"checkpoint": f"{wall:.1f} s", "phases (ms)": _phases(info["timings_ms"]),
            "GPU bytes": human(sum(process["gpu_bytes"] for process in info["gpu"]["processes"])),
            "CUDA processes": len(info["gpu"]["processes"]), "image": human(info["image_bytes"])}


def _phases(phases: dict[str, int]) -> str:
    return ", ".join(f"{name} {ms}" for name, ms in phases.items())


# --- the items ----------------------------------------------------------------------------------------------------


@item("probe", "driver and agent: what the agent needs to suspend a process", 90)
def probe(node: Node) -> Figures:
    machine = node.machine
    target = node.helper(machine.kit / "samples/sample-pattern", "--mib", "64", "--tick-ms", "50", stdout=subprocess.PIPE,
                         text=True)
    check(target.stdout.readline().startswith("ready"), "the CUDA program on the host does not start")

    def cycle(caps: str | None) -> str:
        """"" when lock, checkpoint, restore and unlock work with these capabilities, else why not."""
        try:
            with machine.agent(caps) as agent:
                for op in ("lock", "checkpoint", "restore", "unlock"):
                    agent.act(op, target.pid)
            return ""
        except Failed as error:
            _back_to_running(machine, target.pid)
            return str(error)

    said = cycle(None)
    if said:
        everything = ",".join(sorted(_all_capabilities()))
        wider = cycle(everything)
        raise Failed(f"with the agent's capabilities: {said}; with all capabilities: {wider or 'works'}")
    default = ["cap_sys_ptrace", "cap_dac_read_search", "cap_dac_override"]
    needed = list(default)
    refused = {}
    for cap in default:
        without = [other for other in needed if other != cap]
        refused[cap] = cycle(",".join(without) or "")
        if not refused[cap]:
            needed = without
    start = time.monotonic()
    check(cycle(None) == "", "a second cycle fails")
    seconds = time.monotonic() - start
    check(target.poll() is None, "the CUDA program has ended")
    return {"capabilities of the agent": "enough, with its seccomp filter",
            "needed for a target of root": ", ".join(needed) or "none",
            "without them": "; ".join(f"{cap}: {refused[cap]}"[:200] for cap in needed) or "-",
            "lock, checkpoint, restore, unlock of 64 MiB": f"{seconds:.2f} s"}


def _all_capabilities() -> list[str]:
    last = int(open("/proc/sys/kernel/cap_last_cap").read())
    names = ("chown dac_override dac_read_search fowner fsetid kill setgid setuid setpcap linux_immutable net_bind_service "
             "net_broadcast net_admin net_raw ipc_lock ipc_owner sys_module sys_rawio sys_chroot sys_ptrace sys_pacct "
             "sys_admin sys_boot sys_nice sys_resource sys_time sys_tty_config mknod lease audit_write audit_control setfcap "
             "mac_override mac_admin syslog wake_alarm block_suspend audit_read perfmon bpf checkpoint_restore").split()
    return [f"cap_{name}" for name in names[:last + 1]]


def _back_to_running(machine: object, pid: int) -> None:
    """After a cycle that broke off, with the agent's own capabilities."""
    with machine.agent() as agent:
        for op in ("restore", "unlock"):
            try:
                agent.act(op, pid)
            except Failed:
                pass  # it was not in that state
        check(agent.act("state", pid).get("state") == "running", "the CUDA program is stuck")


@item("counter", "a counter and a token in device memory, through checkpoint, kill, remove and restore", 90)
def counter(node: Node) -> Figures:
    box, image = node.box("counter"), image_name(node)
    box.run("/bin/sample-counter")
    box.wait_out(r"^ready", 60)
    with Counter(box) as client:
        before = [client.increment() for _ in range(5)][-1]
    wall = box.checkpoint(image)
    info = node.checkpoint_info(image)
    with Counter(box) as client:
        check(client.increment() == (before[0] + 1, before[1]), "the container does not go on after its checkpoint")
    box.stop()
    again = node.box("counter")
    restored = again.restore(image)
    with Counter(again) as client:
        after = [client.increment() for _ in range(5)][-1]
    check(after[1] == before[1], f"the token was {before[1]} and is {after[1]}: a new start, not the old state")
    check(after[0] == before[0] + 5, f"the counter was {before[0]}, 5 requests later it is {after[0]}")
    return {"counter": f"{before[0]} before, {after[0]} after 5 more requests", "token": "equal",
            **figures_of(info, wall), "restore": f"{restored:.1f} s", "restore phases (ms)": _phases(again.engine_log())}


@item("pattern", "8 GiB of known bytes, checkpointed and restored; then a restore without room on the GPU", 330)
def pattern(node: Node) -> Figures:
    size = mib(node, 8192, 128)
    box, image = start_pattern(node, size, seed=11), image_name(node)
    first = beats(box)[0]
    check(first[1] == size << 20, f"{box.id} looks at {first[1]} bytes")
    wall = box.checkpoint(image)
    info = node.checkpoint_info(image)
    # What it finds from here on it finds after the driver put 8 GiB back.
    check(more_beats(box, 2, 90)[1:] == first[1:], "other contents after the checkpoint")
    box.stop()
    again = node.box("pattern")
    restored = again.restore(image)
    with_restored = len(beats(again))
    check(more_beats(again, 2, 90)[1:] == first[1:], "other contents after the restore")
    check(with_restored >= 2, "it started again from nothing")
    figures = {**figures_of(info, wall), "restore": f"{restored:.1f} s", "restore phases (ms)": _phases(again.engine_log())}
    again.stop()
    figures.update(_restore_without_room(node, image, first))
    node.remove_image(image)
    return figures


def _restore_without_room(node: Node, image: str, first: tuple[int, int, str]) -> Figures:
    """Another process has the memory: refused with both figures, nothing left; and works when there is room again."""
    leave = mib(node, 4096, 64)
    with node.machine.agent() as agent:
        before = agent.processes()
    hog = node.helper("python3", str(_workload("hog.py")), str(-leave), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    held = hog.stdout.readline()
    check(held.startswith("held"), f"the memory cannot be taken: {held}")
    box = node.box("no-room")
    done = node.ctr("containers", "restore", "--rw", "--live", box.id, image, check_code=False)
    said = (done.stderr + done.stdout).strip()
    check(done.returncode != 0, "restored without room on the GPU")
    match = re.search(r"GPU \S+ has ([\d.]+ [KMG]iB) free, (?:the checkpoint needs|but) ([\d.]+ [KMG]iB)", said)
    check(match, f"the failure does not name both figures: {said[-600:]}")
    check(box.status in ("", "STOPPED", "CREATED"), f"the failed restore left a task: {box.status}")
    check(not node.stray(), "the failed restore left processes")
    hog.stdin.close()
    hog.wait(node.deadline.left(30))
    with node.machine.agent() as agent:
        check(set(agent.processes()) <= set(before), "the failed restore left something on the GPU")
    box.remove()
    later = node.box("room-again")
    later.restore(image)
    check(more_beats(later, 1, 60)[1:] == first[1:], "other contents after the later restore")
    later.stop()
    return {"restore without room": f"refused: {match[0]}", "restore with room again": "works"}


@item("multi", "three CUDA processes in one container", 150)
def multi(node: Node) -> Figures:
    size = mib(node, 1024, 32)
    box, image = node.box("multi"), image_name(node)
    box.run(f"/bin/sample-multi --processes 3 --mib {size} --seed 21 --tick-ms 100")

    def looks(box: Box) -> dict[str, list[tuple[int, str]]]:
        text = box.out()
        check("MISMATCH" not in text and "ended" not in text, f"a process failed: {text[-400:]}")
        found: dict[str, list[tuple[int, str]]] = {}
        for m in re.finditer(r"^child (\d) pid=\d+: beat (\d+) ok bytes=\d+ hash=(\w+) ", text, re.MULTILINE):
            found.setdefault(m[1], []).append((int(m[2]), m[3]))
        return found

    def wait_for_looks(box: Box, more: int) -> dict[str, list[tuple[int, str]]]:
        have = {child: len(seen) for child, seen in looks(box).items()}
        wait_until(lambda: len(looks(box)) == 3 and all(len(seen) >= have.get(child, 0) + more
                                                        for child, seen in looks(box).items()),
                   f"{more} looks of each process; output: {box.out()[-300:]}", 60, 0.2)
        seen = looks(box)
        for child, lines in seen.items():
            check([number for number, _ in lines] == list(range(1, len(lines) + 1)), f"process {child} lost looks: {lines}")
            check(len({hash for _, hash in lines}) == 1, f"process {child} saw different contents: {lines}")
        return seen

    before = wait_for_looks(box, 2)
    wall = box.checkpoint(image)
    info = node.checkpoint_info(image)
    check(len(info["gpu"]["processes"]) == 3, f"icebox.json lists {len(info['gpu']['processes'])} CUDA processes")
    wait_for_looks(box, 2)
    box.stop()
    again = node.box("multi")
    restored = again.restore(image)
    after = wait_for_looks(again, 2)
    hashes = {child: lines[0][1] for child, lines in before.items()}
    check({child: lines[-1][1] for child, lines in after.items()} == hashes, "other contents after the restore")
    check(len(set(hashes.values())) == 3, "the three patterns are not distinct")
    node.remove_image(image)
    return {**figures_of(info, wall), "restore": f"{restored:.1f} s", "restore phases (ms)": _phases(again.engine_log())}


@item("torch", "PyTorch: a transformer generates; every step equals an undisturbed run", 330)
def torch(node: Node) -> Figures:
    python = Python(node.machine.python)
    engine = "stand-in" if node.machine.simulated else "torch"
    check(engine == "stand-in" or python.has_torch, f"{python.program} has no torch")
    command = f"{python.program} -u /workloads/generate.py --engine {engine} --seed 7"
    environment = {"HOME": "/root", "PYTHONDONTWRITEBYTECODE": "1", "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
                   "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    flags = python.flags() + bind(_workload(""), "/workloads")
    flags += [word for name, value in environment.items() for word in ("--env", f"{name}={value}")]
    reference_log = node.work / "logs" / "generate-reference.log"
    with reference_log.open("wb") as log:
        node.helper(*command.replace("/workloads/", f"{_workload('')}/").split(), stdout=log, stderr=subprocess.STDOUT,
                    env={**node.machine.host_environment(), **environment})
    box, image = node.box("torch"), image_name(node)
    started = time.monotonic()
    box.run(f"{command} --tick-ms 20", BUSYBOX_IMAGE, flags)
    ready = box.wait_out(r"^ready after .*$", 180)[0]
    cold = time.monotonic() - started
    box.wait_out(r"^step 40 ", 60)
    wall = box.checkpoint(image)
    info = node.checkpoint_info(image)
    done = len(steps(box.out()))
    box.wait_out(rf"^step {done + 5} ", 60)
    box.stop()
    again = node.box("torch")
    restored = again.restore(image)
    at_restore = len(steps(again.out()))
    check(40 <= at_restore <= done + 200, f"the restored container has {at_restore} steps: it started again")
    again.wait_out(rf"^step {at_restore + 100} ", 90)
    mine = steps(again.out())
    expected = wait_until(lambda: (lambda seen: seen if len(seen) >= len(mine) else None)(
        steps(reference_log.read_text(errors="replace"))), "the undisturbed run has as many steps", 120, 0.5)
    check([step[:3] for step in mine] == [step[:3] for step in expected[:len(mine)]], _first_difference(mine, expected))
    check(len({step[3] for step in mine}) == 1, "the nonce on the GPU changed: this was a second start")
    check(mine[0][3] != expected[0][3], "the nonces of two starts are equal")
    distinct = len({step[1] for step in mine})
    check(distinct >= 64, f"only {distinct} distinct tokens")
    (node.work / "logs" / "generate.log").write_text(again.out())
    node.remove_image(image)
    return {"program": ready.split(": ", 1)[1], "steps equal to an undisturbed run":
            f"{len(mine)} ({at_restore} before the restore), tokens, hashes of the logits; {distinct} distinct tokens",
            "cold start": f"{cold:.1f} s", **figures_of(info, wall), "restore": f"{restored:.1f} s",
            "restore phases (ms)": _phases(again.engine_log())}


@item("cycles", "PyTorch with many busy threads: every suspend comes back, whatever a stopped thread holds", 180)
def cycles(node: Node) -> Figures:
    """CRIU is made to fail at once, so that a cycle is what the driver does and its undo."""
    real_only(node, "the simulated driver needs no lock of its process")
    python = Python(node.machine.python)
    check(python.has_torch, f"{python.program} has no torch")
    flags = python.flags() + bind(_workload(""), "/workloads") + ["--env", "HOME=/root", "--env", "PYTHONDONTWRITEBYTECODE=1"]
    box = node.box("cycles")
    box.run(f"{python.program} -u /workloads/churn.py", BUSYBOX_IMAGE, flags)
    box.wait_out(r"^ready", 120)
    first = box.wait_out(r"^round \d+ sum (\d+)", 60)[1]
    criu = node.work / "criu-that-fails" / "criu"  # the engine insists on the name
    criu.parent.mkdir(exist_ok=True)
    criu.write_text('#!/bin/sh\n[ "$1" != swrk ] || exit 1\nexec /opt/icebox/criu/bin/criu "$@"\n')
    criu.chmod(0o755)
    node.configure(criu=str(criu))
    times: list[float] = []
    slow: list[str] = []
    try:
        while len(times) < 40 and node.deadline.left(600) > 60:
            rounds = len(re.findall(r"^round ", box.out(), re.MULTILINE))
            start = time.monotonic()
            process = subprocess.Popen(node.ctr_command("tasks", "checkpoint", box.id), stdout=subprocess.DEVNULL,
                                       stderr=subprocess.PIPE, text=True, env=node.environment())
            try:
                _, said = process.communicate(timeout=20)
            except subprocess.TimeoutExpired:
                slow.append(f"cycle {len(times) + 1}:\n{_threads_of(box.pid)}")
                _, said = process.communicate(timeout=node.deadline.left(100))
            times.append(time.monotonic() - start)
            check("CRIU could not dump" in said, f"cycle {len(times)}: {said[-600:]}")
            wait_until(lambda: len(re.findall(r"^round ", box.out(), re.MULTILINE)) >= rounds + 2, "it goes on", 20, 0.05)
    finally:
        (node.work / "logs" / "cycles-stalls.log").write_text("\n".join(slow))
        node.configure()
    check(len(times) >= 20, f"only {len(times)} cycles in the time of this item")
    check(not slow, f"{len(slow)} cycles took over 20 s: see cycles-stalls.log")
    sums = set(re.findall(r"^round \d+ sum (\d+)", box.out(), re.MULTILINE))
    check(sums == {first}, f"values on the GPU changed: {sums}")
    return {"cycles": len(times), "median": f"{sorted(times)[len(times) // 2]:.2f} s", "longest": f"{max(times):.2f} s",
            "cycles over 20 s": len(slow)}


def _threads_of(pid: int) -> str:
    """What every thread waits in; for one in a futex, the futex's words (glibc keeps the owner of a mutex in the third)."""
    lines = []
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        for tid in sorted(os.listdir(f"/proc/{pid}/task"), key=int):
            fields = {}
            for name in ("comm", "syscall", "wchan", "status"):
                try:
                    with open(f"/proc/{pid}/task/{tid}/{name}", encoding="utf-8") as file:
                        fields[name] = file.read().strip()
                except OSError as error:
                    fields[name] = str(error)
            state = re.search(r"^State:\s*(\S+)", fields["status"], re.MULTILINE)
            line = f"{tid} {fields['comm']} {state[1] if state else '?'} {fields['wchan']} {fields['syscall']}"
            words = fields["syscall"].split()
            if words and words[0] == "202":
                try:
                    memory.seek(int(words[1], 16))
                    line += f" futex words {[int.from_bytes(memory.read(4), 'little') for _ in range(5)]}"
                except (OSError, ValueError) as error:
                    line += f" ({error})"
            lines.append(line)
    return "\n".join(lines)


def steps(text: str) -> list[tuple[int, int, str, str]]:
    """(number, token, hash of the logits, nonce) of every step on record."""
    found = re.findall(r"^step (\d+) token (\d+) logits (\w+) nonce (\w+)$", text, re.MULTILINE)
    return [(int(number), int(token), digest, nonce) for number, token, digest, nonce in found]


def _first_difference(mine: list[tuple], expected: list[tuple]) -> str:
    for have, want in zip(mine, expected):
        if have[:3] != want[:3]:
            return f"differs from the undisturbed run: {have[:3]} instead of {want[:3]}"
    return "differs from the undisturbed run in length"


def _workload(name: str) -> str:
    return os.path.join(os.path.dirname(os.path.abspath(__file__)), "workloads", name).rstrip("/")


@item("pause", "pause stops the work on the GPU, resume goes on", 90)
def pause(node: Node) -> Figures:
    box = node.box("pause")
    simulated = node.machine.simulated
    if simulated:
        box.run("/bin/sample-pattern --mib 64 --tick-ms 5")
        box.wait_out(r"^beat 5 ok", 30)
    else:
        box.run("/bin/sample-graph --mib 4096 --tick-ms 0")
        box.wait_out(r"^step 100 ", 60)
        time.sleep(1.5)  # the driver's figure is over the last second
    busy = node.machine.utilization()
    start = time.monotonic()
    box.task("pause")
    took = time.monotonic() - start
    check(box.status == "PAUSED", f"the task is {box.status}")
    frozen = box.out()
    with node.machine.agent() as agent:
        on_gpu = set(agent.processes()) & set(box.pids())
        state = [agent.ask("restore_thread", targets=[_target(pid)], timeout_ms=3000)["outcomes"][0]["ending"] for pid in on_gpu]
    check(on_gpu, "the paused process is not on the GPU any more")
    time.sleep(2.5)  # what is measured: that nothing happens meanwhile
    idle = node.machine.utilization()
    check(box.out() == frozen, "the program went on while it was paused")
    if not simulated:
        check(busy and busy >= 20, f"the GPU was busy for {busy} % only: this proves nothing")
        check(idle <= 1, f"the GPU was busy for {idle} % while the container was paused")
    box.task("resume")
    check(box.status == "RUNNING", f"the task is {box.status}")
    wait_until(lambda: len(box.out()) > len(frozen), "the program goes on", 20)
    check(box.out().startswith(frozen), "the program lost lines")
    return {"GPU in use": "-" if simulated else f"{busy} % before, {idle} % while paused",
            "processes on the GPU while paused": f"{len(on_gpu)} ({', '.join(state)})", "pause": f"{took * 1000:.0f} ms"}


def _target(pid: int) -> dict[str, int]:
    return {"pid": pid, "start_time": start_time(pid)}


@item("lock-timeout", "a kernel that outlasts the lock's deadline: pause fails, nothing changes, a later pause works", 90)
def lock_timeout(node: Node) -> Figures:
    box = node.box("spin")
    if node.machine.simulated:
        box.run("/bin/sample-pattern --mib 16 --tick-ms 100")
        box.wait_out(r"^beat 1 ok", 30)
        box.knobs("lock=busy")
    else:
        box.run("/bin/spin --spin-ms 15000")
        box.wait_out(r"^spinning", 60)
    node.configure(lock_timeout_ms=2000)
    try:
        start = time.monotonic()
        done = box.task("pause", check_code=False)
        seconds = time.monotonic() - start
    finally:
        node.configure()
    said = (done.stderr + done.stdout).strip()
    check(done.returncode != 0, "the pause succeeded while a kernel was running")
    check(2 <= seconds < 12, f"the pause failed after {seconds:.1f} s")
    check("could not be locked" in said and str(box.pid) in said, f"the failure does not say why, or not which process: {said}")
    check(box.status == "RUNNING", f"the task is {box.status}")
    if node.machine.simulated:
        box.knobs()
    else:
        box.wait_out(r"^step 3$", 40)
    box.task("pause")
    frozen = box.out()
    time.sleep(1)
    check(box.out() == frozen, "the program went on while it was paused")
    box.task("resume")
    wait_until(lambda: len(box.out()) > len(frozen), "the program goes on", 20)
    return {"pause with lock_timeout_ms = 2000": f"failed after {seconds:.1f} s: {said.splitlines()[-1][-240:]}",
            "a later pause": "works"}


@item("exec-refused", "a CUDA process that was exec'ed into the container is refused by name", 90)
def exec_refused(node: Node) -> Figures:
    box = node.box("execed")
    box.run("/bin/sample-pattern --mib 16 --tick-ms 100")
    box.wait_out(r"^beat 1 ok", 60)
    node.ctr("tasks", "exec", "--detach", "--exec-id", "cuda", box.id, "sh", "-c",
             "exec /bin/sample-pattern --mib 16 --seed 3 --tick-ms 100 >/out2 2>&1")
    wait_until(lambda: "beat 1 ok" in _read(box, "out2"), "the exec'ed program runs", 60, 0.2)
    said = box.checkpoint_fails(image_name(node))
    check("started with exec" in said, f"the failure does not say why: {said[-600:]}")
    check(box.status == "RUNNING", f"the task is {box.status}")
    more_beats(box, 3, 30)
    have = _read(box, "out2")
    wait_until(lambda: len(_read(box, "out2")) > len(have), "the exec'ed program goes on", 30)
    return {"checkpoint": f"refused: {said.strip().splitlines()[-1][-260:]}"}


def _read(box: Box, name: str) -> str:
    try:
        return (box.rootfs / name).read_text(errors="replace")
    except OSError:
        return ""


@item("two-restores", "two restores of one checkpoint at once on one GPU; pausing one leaves the other alone", 150)
def two_restores(node: Node) -> Figures:
    box, image = start_pattern(node, mib(node, 1024, 64), seed=31), image_name(node)
    first = beats(box)[0]
    box.checkpoint(image)
    box.stop()
    pair = [node.box("twin"), node.box("twin")]
    start = time.monotonic()
    restores = [node.helper(*node.ctr_command("containers", "restore", "--rw", "--live", twin.id, image), env=node.environment(),
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) for twin in pair]
    for process in restores:
        said = process.communicate(timeout=node.deadline.left(90))[0]
        check(process.returncode == 0, f"a restore failed: {said[-800:]}")
    wall = time.monotonic() - start
    for twin in pair:
        check(more_beats(twin, 2, 60)[1:] == first[1:], f"other contents in {twin.id}")
    with node.machine.agent() as agent:
        on_gpu = set(agent.processes())
    check(all(on_gpu & set(twin.pids()) for twin in pair), "not both of them are on the GPU")
    pair[0].task("pause")
    frozen = pair[0].out()
    more_beats(pair[1], 3, 60)
    check(pair[0].out() == frozen, "the paused one went on")
    pair[0].task("resume")
    for twin in pair:
        check(more_beats(twin, 2, 60)[1:] == first[1:], f"other contents in {twin.id}")
    node.remove_image(image)
    return {"both restores": f"{wall:.1f} s", "contents": "both as written", "pausing one": "leaves the other running"}


@item("leave-running", "checkpoints that leave the container running, twice, and the second one can be restored", 150)
def leave_running(node: Node) -> Figures:
    box, image = start_pattern(node, mib(node, 1024, 64), seed=41), image_name(node)
    first = beats(box)[0]
    wall = box.checkpoint(image)
    check(box.status == "RUNNING", f"the task is {box.status}")
    check(more_beats(box, 3, 60)[1:] == first[1:], "other contents after the first checkpoint")
    # containerd 1.x cannot take a second checkpoint of a container while it has the first ("content already exists").
    node.remove_image(image)
    second = box.checkpoint(image)
    check(box.status == "RUNNING", f"the task is {box.status}")
    check(more_beats(box, 3, 60)[1:] == first[1:], "other contents after the second checkpoint")
    done = len(beats(box))
    box.stop()
    again = node.box("pattern")
    restored = again.restore(image)
    at_restore = len(beats(again))
    check(5 <= at_restore <= done, f"restored after {at_restore} looks of {done}: not the second checkpoint")
    check(more_beats(again, 2, 60)[1:] == first[1:], "other contents after the restore")
    node.remove_image(image)
    return {"first checkpoint": f"{wall:.1f} s", "second": f"{second:.1f} s", "restore of the second": f"{restored:.1f} s",
            "container": "runs on, contents as written, after both"}


@item("graph", "kernels, streams and a CUDA graph: checksums equal an undisturbed run", 120)
def graph(node: Node) -> Figures:
    real_only(node, "kernels")
    box, image = node.box("graph"), image_name(node)
    box.run("/bin/sample-graph --mib 512 --seed 5 --tick-ms 20")
    box.wait_out(r"^step 50 ", 60)
    wall = box.checkpoint(image)
    info = node.checkpoint_info(image)
    box.stop()
    again = node.box("graph")
    restored = again.restore(image)
    at_restore = len(_sums(again.out()))
    check(at_restore >= 50, f"the restored program has {at_restore} steps: it started again")
    again.wait_out(rf"^step {at_restore + 100} ", 60)
    mine = _sums(again.out())
    again.stop()
    reference = node.helper(node.machine.kit / "samples/sample-graph", "--mib", "512", "--seed", "5", "--tick-ms", "0",
                            "--steps", str(len(mine)), stdout=subprocess.PIPE, text=True)
    expected = _sums(reference.communicate(timeout=node.deadline.left(60))[0])
    check(mine == expected, f"differs from an undisturbed run of {len(expected)} steps")
    check(len(set(mine)) == len(mine), "checksums repeat: they prove nothing")
    node.remove_image(image)
    return {"checksums equal": f"{len(mine)} ({at_restore} before the restore)", **figures_of(info, wall),
            "restore": f"{restored:.1f} s"}


def _sums(text: str) -> list[str]:
    return re.findall(r"^step \d+ sum=(\w+)$", text, re.MULTILINE)
