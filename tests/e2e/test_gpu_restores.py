# SPDX-License-Identifier: Apache-2.0
"""Where restored containers live, what is removed after a restore, and the engine without Icebox's shim."""

import json
import os
import shlex
import subprocess

import pytest
from harness import gpu, paths, procs
from harness.container import Container
from harness.node import ENGINE, STOCK

IMAGE = "icebox.local/samples:e2e"


@pytest.mark.both_cgroups
def test_two_restores_of_one_checkpoint(node, icebox):
    """Each has a cgroup of its own, though `ctr c restore` sends the old one for both: pausing one stops only that."""
    box = icebox()
    box.run(IMAGE, "sample-counter", flags=gpu.FLAGS)
    with gpu.counter(box) as counter:
        before = counter.ask()
    box.checkpoint("checkpoint:twice")
    box.stop()
    box.remove()
    first, second = icebox(), icebox()
    first.restore_from("checkpoint:twice")
    second.restore_from("checkpoint:twice")
    for copy in (first, second):
        assert copy.pid in node.cgroups.pids(copy.cgroup)
    with gpu.counter(first) as one, gpu.counter(second) as two:
        for counter in (one, two):
            answer = counter.ask()
            assert (answer.token, answer.counter) == (before.token, before.counter + 1)
        first.pause()
        assert node.cgroups.frozen(first.cgroup) and node.cgroups.thawed(second.cgroup)
        assert two.ask().counter == before.counter + 2
        second.pause()
        first.resume()
        assert one.ask().counter == before.counter + 2
        second.resume()
        assert two.ask().counter == before.counter + 3


def test_containerds_temporary_folder_is_removed(node, icebox):
    box = icebox()
    box.run(IMAGE, "sample-counter", flags=gpu.FLAGS)
    with gpu.counter(box) as counter:
        counter.ask()
    box.checkpoint("checkpoint:temporary")
    assert not list(node.tmp.glob("ctrd-checkpoint*"))
    again = icebox()
    again.restore_from("checkpoint:temporary")
    procs.wait_until(lambda: not list(node.tmp.glob("ctrd-checkpoint*")), "the temporary folder is gone")


def test_a_folder_that_a_user_named_is_kept(drop_in_node, folder):
    """ctr passes --image-path and --exit only to a runtime with the stock shim's name: Icebox is installed under it here."""
    node = drop_in_node
    box = Container(node, node.unique("named"), STOCK)
    box.run(IMAGE, "sample-counter", flags=gpu.FLAGS)
    with gpu.counter(box) as counter:
        before = counter.ask()
        box.task("checkpoint", "--image-path", str(folder / "first"))
        assert counter.ask().token == before.token
    box.task("checkpoint", "--exit", "--image-path", str(folder / "last"))
    box.wait_status("STOPPED")
    assert box.delete_task() == 137
    box.remove()
    for name in ("first", "last"):
        assert json.loads((folder / name / "icebox.json").read_text())["container"]["id"] == box.id
    assert not list(node.tmp.iterdir())


@pytest.mark.both_cgroups
def test_engine_under_the_stock_shim(node):
    """Who keeps containerd's own shim can have the engine as its OCI runtime."""
    node.known_leaks += ["tmp/ctrd-checkpoint*", "run/s/*"]
    box = Container(node, node.unique("stock-engine"), ENGINE)
    box.run(IMAGE, "sample-counter", flags=gpu.FLAGS)
    with gpu.counter(box) as counter:
        before = counter.ask()
        box.pause()
        assert counter.try_ask(seconds=0.1) is None
        box.resume()
        counter.ask()
        box.checkpoint("checkpoint:stock-engine")
        sent = counter.sent
        assert counter.ask().token == before.token
    box.stop()
    box.remove()
    again = Container(node, node.unique("stock-engine"), ENGINE)
    again.restore_from("checkpoint:stock-engine")
    with gpu.counter(again) as counter:
        after = counter.ask()
    assert after.token == before.token and before.counter < after.counter <= before.counter + sent + 1


# --- the engine without any shim, as podman runs it ------------------------------------------------------------------

class Bare:
    """A container that icebox-runc runs from a bundle."""

    def __init__(self, node, folder, rootfs, program_folder: str):
        self.node = node
        self.id = node.unique("bare")
        self.program = f"{program_folder}/icebox-runc"
        self.bundle = folder / self.id
        self.bundle.mkdir()
        spec = node.spec(IMAGE, "sample-counter", flags=tuple(flag for flag in gpu.FLAGS if flag != "--null-io"))
        spec["linux"]["cgroupsPath"] = f"/{node.namespace}/{self.id}"
        spec["linux"]["resources"].pop("cpu", None)
        spec["root"] = {"path": str(rootfs)}
        (self.bundle / "config.json").write_text(json.dumps(spec))

    def command(self, *arguments: str) -> list[str]:
        return [self.program, "--root", self.node.runc_root(), *arguments]

    def run(self, *arguments: str, check: bool = True) -> int:
        done = self.node.popen(*self.command(*arguments), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        code = done.wait(60)
        assert not check or code == 0, arguments
        return code

    def restore(self, directory) -> list[str]:
        return self.command("restore", "--detach", "--image-path", str(directory), "--bundle", str(self.bundle), self.id)

    def delete(self) -> None:
        self.node.command(*self.command("delete", "--force", self.id))


@pytest.mark.both_cgroups
@pytest.mark.parametrize("moment", ["before CRIU", "CRIU at work", "GPU suspended"])
def test_killed_restore_leaves_the_root_file_system_alone(node, samples_rootfs, folder, program_folder, moment):
    """runc's own `delete --force` after a killed restore empties it through a mount that was left behind."""
    source = Bare(node, folder, samples_rootfs, node.fault_bin)
    source.run("run", "--detach", "--bundle", str(source.bundle), source.id)
    dump = folder / "dump"
    procs.wait_until(lambda: gpu.device_holders(node.cgroups.pids(f"/{node.namespace}/{source.id}")), "the counter runs")
    source.run("checkpoint", "--image-path", str(dump), source.id)
    source.delete()
    content = sorted(os.listdir(samples_rootfs)), sorted(os.listdir(samples_rootfs / "bin"))

    hanging = program_folder("criu", f'case "$1" in swrk) exec sleep 1000;; esac\nexec {shlex.quote(str(paths.criu()))} "$@"')
    box = Bare(node, folder, samples_rootfs, node.fault_bin)
    faults = {"before CRIU": ["restore.criu hang"], "GPU suspended": ["restore.restore_gpu hang"]}.get(moment, [])
    settings = {"criu": str(hanging)} if moment == "CRIU at work" else {}
    with node.config(**settings), node.faults(*faults):
        process = node.popen(*box.restore(dump), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        phase = {"before CRIU": "criu", "CRIU at work": "criu", "GPU suspended": "restore_gpu"}[moment]
        procs.wait_until(lambda: any(f'"phase": "{phase}"' in path.read_text() for path in node.state_dir.rglob("journal.json")),
                         f"the restore is at {phase}")
        if moment == "CRIU at work":
            procs.wait_until(lambda: [pid for pid in procs.descendants(process.pid) if procs.cmdline(pid)[0] == "sleep"],
                             "CRIU has been started")
        for victim in [process.pid, *procs.descendants(process.pid)]:
            if procs.cmdline(victim)[0] != "sample-counter":
                procs.kill(victim)
        process.wait()
    box.delete()
    assert (sorted(os.listdir(samples_rootfs)), sorted(os.listdir(samples_rootfs / "bin"))) == content

    good = Bare(node, folder, samples_rootfs, node.bin)
    assert node.popen(*good.restore(dump), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).wait(60) == 0
    assert gpu.device_holders(node.cgroups.pids(f"/{node.namespace}/{good.id}"))
    good.delete()
