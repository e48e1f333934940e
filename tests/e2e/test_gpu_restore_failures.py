# SPDX-License-Identifier: Apache-2.0
"""Restores that fail: refused before anything is started, or ended without a trace; a good one works afterwards."""

import json
import os
import shlex
import shutil

import pytest
from harness import gpu, paths

IMAGE = "icebox.local/samples:e2e"


@pytest.fixture
def shared(folder):
    path = folder / "shared"
    path.mkdir()
    return path


def knobs(shared, *lines: str) -> None:
    (shared / "knobs").write_text("".join(f"{line}\n" for line in lines))


@pytest.fixture
def checkpointed(node, icebox, shared):
    """A counter that was checkpointed and removed: what it said last."""
    box = icebox()
    box.run(IMAGE, "sample-counter", flags=gpu.shared_flags(shared))
    with gpu.counter(box) as counter:
        answer = counter.ask()
    box.checkpoint("checkpoint:restore-me")
    box.stop()
    box.remove()
    return answer


def refused(icebox, *words: str) -> None:
    """A restore that fails, says all of `words`, and leaves no process; ctr itself leaves the task to be deleted."""
    box = icebox()
    failed = box.restore_from("checkpoint:restore-me", check=False)
    assert failed.code != 0, str(failed)
    for word in words:
        assert word in failed.stderr, str(failed)
    assert box.status in ("CREATED", "STOPPED")
    assert not box.node.cgroups.pids(box.cgroup)
    box.remove()


def works(icebox, before: gpu.Answer) -> None:
    box = icebox()
    box.restore_from("checkpoint:restore-me")
    with gpu.counter(box) as counter:
        after = counter.ask()
    assert after.token == before.token and after.counter == before.counter + 1


@pytest.mark.both_cgroups
@pytest.mark.parametrize("knob, word", [("restore=999", "999"), ("restore=oom_sticky", "not enough free GPU memory")],
                         ids=["error", "out of memory"])
def test_driver_restore_fails(node, icebox, shared, checkpointed, knob, word):
    knobs(shared, knob)
    refused(icebox, "the driver could not put CUDA back on the GPU", word)
    knobs(shared)
    works(icebox, checkpointed)


@pytest.mark.both_cgroups
def test_criu_fails(node, icebox, checkpointed, program_folder):
    real = shlex.quote(str(paths.criu()))
    criu = program_folder("criu", f'case "$1" in swrk) exit 1;; esac\nexec {real} "$@"')
    with node.config(criu=str(criu)):
        refused(icebox, "CRIU could not restore")
    works(icebox, checkpointed)


def test_other_gpu_and_driver(node, icebox, checkpointed):
    with node.simulated_host("gpu.0.name=Other GPU", "driver=999.9"):
        refused(icebox, "Other GPU", "Simulated GPU", "999.9", "580.0-sim")
    works(icebox, checkpointed)


def test_gpu_too_small(node, icebox, checkpointed):
    with node.simulated_host("gpu.0.memory_mib=1"):
        refused(icebox, "memory")
    works(icebox, checkpointed)


def test_older_criu(node, icebox, checkpointed, program_folder):
    real = shlex.quote(str(paths.criu()))
    criu = program_folder("criu", f'case "$1" in --version) echo Version: 4.1; exit;; esac\nexec {real} "$@"')
    with node.config(criu=str(criu)):
        refused(icebox, "CRIU here is 4.1", "install that or a later one")
    works(icebox, checkpointed)


def test_no_driver(node, icebox, checkpointed):
    with node.config(libcuda="/nowhere/libcuda.so.1"):
        refused(icebox, "/nowhere/libcuda.so.1")
    works(icebox, checkpointed)


# --- damaged checkpoint directories, by the engine's own command -------------------------------------------------------

@pytest.fixture
def dumped(icebox, folder):
    """A checkpoint directory and a bundle for its restore."""
    box = icebox()
    box.run(IMAGE, "sample-counter", flags=gpu.FLAGS)
    with gpu.counter(box) as counter:
        counter.ask()
    box.dump(folder / "dump", "--leave-running")
    bundle = folder / "bundle"
    bundle.mkdir()
    # With all that the processes have mapped, so that CRIU itself has nothing against a restore.
    shutil.copytree(box.rootfs, bundle / "rootfs", symlinks=True)
    shutil.copy(box.node.bundle(box.id) / "config.json", bundle / "config.json")
    box.stop()
    box.remove()
    return folder / "dump"


def restore_refused(node, dumped, *words: str) -> str:
    before = (dumped.parent / "bundle" / "config.json").read_text()
    done = node.command(str(node.bin / "icebox-runc"), "--root", node.runc_root(), "restore", "--detach", "--image-path",
                        str(dumped), "--bundle", str(dumped.parent / "bundle"), node.unique("refused"), check=False)
    assert done.code != 0
    for word in words:
        assert word in done.stderr, str(done)
    assert (dumped.parent / "bundle" / "config.json").read_text() == before
    return done.stderr


def edit(dumped, change) -> None:
    path = dumped / "icebox.json"
    info = json.loads(path.read_text())
    change(info)
    path.write_text(json.dumps(info))


def test_cut_description(node, dumped):
    path = dumped / "icebox.json"
    path.write_text(path.read_text()[:100])
    restore_refused(node, dumped, str(path))


def test_foreign_description(node, dumped):
    (dumped / "icebox.json").write_text('{"format": "something else"}')
    restore_refused(node, dumped, "not written by Icebox")


def test_later_format(node, dumped):
    edit(dumped, lambda info: info["version"].update(major=2))
    restore_refused(node, dumped, "format version 2.0", "use the Icebox that made it")


def test_unfinished(node, dumped):
    (dumped / "icebox.json").rename(dumped / "icebox.json.partial")
    restore_refused(node, dumped, "unfinished checkpoint", "take it again")


def test_missing_file(node, dumped):
    (dumped / "pages-1.img").unlink()
    restore_refused(node, dumped, "pages-1.img is missing", "copy it again")


def test_cut_file(node, dumped):
    path = dumped / "pages-1.img"
    path.write_bytes(path.read_bytes()[:-4096])
    restore_refused(node, dumped, "damaged", "pages-1.img")


def test_no_checkpoint_at_all(node, dumped):
    shutil.rmtree(dumped)
    dumped.mkdir()
    restore_refused(node, dumped, "holds no checkpoint")


def test_every_difference_is_named(node, dumped):
    def change(info: dict) -> None:
        info["host"]["cpu_features"].append("avx9000")
        info["host"]["criu"] = "99.0"
        info["gpu"]["driver"] = "1.2.3"
        info["gpu"]["devices"][0]["model"] = "Bigger GPU"
    edit(dumped, change)
    restore_refused(node, dumped, "lacks avx9000", "99.0", "1.2.3", "Bigger GPU")


def test_description_is_a_pipe(node, dumped):
    """Nobody writes to it: the engine must not wait."""
    (dumped / "icebox.json").unlink()
    os.mkfifo(dumped / "icebox.json")
    restore_refused(node, dumped, "icebox.json")


def forget_the_gpu(info: dict) -> None:
    info["gpu"].update(state="none", processes=[])


def forget_one_field(info: dict) -> None:
    info["gpu"].update(processes=[])


@pytest.mark.both_cgroups
@pytest.mark.parametrize("damage", ["description is gone", "description denies the GPU"])
def test_gpu_state_that_is_not_described(node, dumped, damage):
    """CUDA would stay suspended for ever, and the restore would call itself a success."""
    if damage == "description is gone":
        (dumped / "icebox.json").unlink()
    else:
        edit(dumped, forget_the_gpu)
    restore_refused(node, dumped, "uses CUDA", "icebox.json", "not complete")


def test_gpu_state_without_processes(node, dumped):
    edit(dumped, forget_one_field)
    restore_refused(node, dumped, "lists 0 CUDA processes")


@pytest.mark.both_cgroups
@pytest.mark.parametrize("paused", [False, True], ids=["running", "paused"])
def test_restore_onto_a_container_that_exists(node, icebox, folder, paused):
    """It is refused, and that container is not touched."""
    box = icebox()
    box.run(IMAGE, "sample-counter", flags=gpu.FLAGS)
    with gpu.counter(box) as counter:
        before = counter.ask()
        box.dump(folder / "dump", "--leave-running")
        if paused:
            box.pause()
        for directory in (folder / "dump", folder / "nothing"):
            failed = box.engine("restore", "--detach", "--image-path", str(directory), "--bundle",
                                str(node.bundle(box.id)), check=False)
            assert failed.code != 0 and "exists already" in failed.stderr, str(failed)
        if paused:
            assert node.cgroups.frozen(box.cgroup)
            box.resume()
        after = counter.ask()
        assert after.token == before.token and after.counter == before.counter + 1
        box.checkpoint("checkpoint:after")
        assert counter.ask().token == before.token
