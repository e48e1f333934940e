# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the end-to-end tests. tests/README.md says how to run them and how to add one."""

import io
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tarfile
import tempfile
from typing import Callable, Iterator

import pytest

from harness import cgroups, gpu, leaks, paths
from harness.container import Container
from harness.node import ENGINE, FAULTS, ICEBOX, STOCK, Node

BUSYBOX_IMAGE = "icebox.local/busybox:e2e"
SAMPLES_IMAGE = "icebox.local/samples:e2e"


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "both_cgroups: runs on a cgroup v1 and on a cgroup v2 node")
    if os.geteuid() != 0:
        raise pytest.UsageError("the end-to-end tests run containerd and need root")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Gives every test its node: the machine's own cgroup version, or both where it matters."""
    if "node" in metafunc.fixturenames:
        native = cgroups.version_of_machine()
        both = metafunc.definition.get_closest_marker("both_cgroups") and native == "v1"
        metafunc.parametrize("node_kind", ["v1", "v2"] if both else [native], scope="session")
    if "drop_in_node" in metafunc.fixturenames:
        metafunc.parametrize("drop_in_kind", [cgroups.version_of_machine()], scope="session")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All tests of one node in a row. pytest (before 8) starts a node anew at each change of any other parameter."""
    def kind(item: pytest.Item) -> str:
        return item.callspec.params.get("node_kind", "") if hasattr(item, "callspec") else ""
    items.sort(key=kind)


def make_image(output: pathlib.Path, name: str, *arguments: str) -> pathlib.Path:
    subprocess.run([sys.executable, str(paths.REPOSITORY / "scripts" / "make-image.py"), "--name", name, "--output",
                    str(output), *arguments], check=True)
    return output


@pytest.fixture(scope="session")
def archives(tmp_path_factory: pytest.TempPathFactory) -> list[pathlib.Path]:
    """The images of this session, made once and imported into each node."""
    folder = tmp_path_factory.mktemp("images")
    programs = sorted(paths.SAMPLES.glob("sample-*"))
    if not programs:
        pytest.exit(f"no sample programs in {paths.SAMPLES}: build first (ICEBOX_BIN names the folder of the programs)", 1)
    samples = [argument for program in programs for argument in ("--program", str(program))]
    samples += ["--external", "libcuda.so.1", "--file", f"{paths.FAKES}/libcuda.so.1:{gpu.LIBRARY_FOLDER}/libcuda.so.1"]
    return [make_image(folder / "busybox.tar", BUSYBOX_IMAGE),
            make_image(folder / "samples.tar", SAMPLES_IMAGE, *samples)]


def _started(kind: str, archives: list[pathlib.Path], drop_in: bool = False) -> Iterator[Node]:
    with Node(kind, drop_in) as node:
        for archive in archives:
            node.ctr("images", "import", "-", input=archive.read_bytes())
        yield node


@pytest.fixture(scope="session")
def session_node(node_kind: str, archives: list[pathlib.Path]) -> Iterator[Node]:
    yield from _started(node_kind, archives)


@pytest.fixture(scope="session")
def session_drop_in_node(drop_in_kind: str, archives: list[pathlib.Path]) -> Iterator[Node]:
    yield from _started(drop_in_kind, archives, drop_in=True)


def _checked(node: Node) -> Iterator[Node]:
    """Hands the node to one test, cleans up after it as a user would, and fails it if anything is left."""
    node.known_leaks.clear()
    if node.daemon is None or node.daemon.poll() is not None:
        node.start_daemon()  # the test before this one failed while it had the daemon down
    before = leaks.snapshot(node)
    log_start = node.log.stat().st_size
    yield node
    if node.daemon is None or node.daemon.poll() is not None:
        node.start_daemon()
    for name in node.containers():
        if name not in before["containers"]:
            try:
                Container(node, name).remove()
            except AssertionError as error:
                node.force_clean()
                pytest.fail(f"container {name} cannot be removed: {error}\n{node.log_tail()}")
    for image in node.images():
        if image not in before["images"]:
            node.ctr("images", "rm", image)
    node.remove_known_leaks()
    left = leaks.wait_for_none(node, before)
    if left:
        node.force_clean()
        with node.log.open("rb") as log:
            log.seek(log_start)
            said = log.read()[-6000:].decode(errors="replace")
        pytest.fail(f"the test left something behind:\n{left}\n--- containerd said:\n{said}")


@pytest.fixture
def node(session_node: Node) -> Iterator[Node]:
    yield from _checked(session_node)


@pytest.fixture
def busybox_rootfs(archives: list[pathlib.Path]) -> Iterator[pathlib.Path]:
    """A root file system in a folder of its own, for containers that are run from a spec."""
    yield from _unpacked(archives[0])


@pytest.fixture
def samples_rootfs(archives: list[pathlib.Path]) -> Iterator[pathlib.Path]:
    yield from _unpacked(archives[1])


def _unpacked(image: pathlib.Path) -> Iterator[pathlib.Path]:
    # Not pytest's tmp_path: nodes have a /tmp of their own.
    with tempfile.TemporaryDirectory(prefix="icebox-e2e-", dir="/var/tmp") as folder:
        rootfs = pathlib.Path(folder) / "rootfs"
        with tarfile.open(image) as archive:
            manifest = _blob(archive, json.load(archive.extractfile("index.json"))["manifests"][0])
            content = _blob(archive, json.loads(manifest)["layers"][0])
            with tarfile.open(fileobj=io.BytesIO(content)) as layer:
                layer.extractall(rootfs)
        yield rootfs


def _blob(archive: tarfile.TarFile, descriptor: dict) -> bytes:
    return archive.extractfile("blobs/" + descriptor["digest"].replace(":", "/")).read()


@pytest.fixture
def drop_in_node(session_drop_in_node: Node) -> Iterator[Node]:
    """A node on which Icebox is installed as containerd-shim-runc-v2."""
    yield from _checked(session_drop_in_node)


@pytest.fixture(params=[STOCK, ICEBOX], ids=["stock", "icebox"])
def runtime(request: pytest.FixtureRequest) -> str:
    """Both shims: what holds for one must hold for the other."""
    _require(request.param)
    return request.param


def _require(runtime: str) -> None:
    needed = {STOCK: [], ENGINE: [paths.BIN / "icebox-runc"], ICEBOX: [paths.BIN / "containerd-shim-icebox-v1", paths.BIN / "icebox-runc"],
              FAULTS: [paths.FAULT_BIN / "icebox-runc"]}[runtime]
    for program in needed:
        if not program.exists():
            if os.environ.get("ICEBOX_E2E_PARTIAL"):
                pytest.skip(f"{program} is not built")
            pytest.fail(f"{program} is not built (ICEBOX_BIN names the folder of the programs)")


@pytest.fixture
def container(node: Node, runtime: str, request: pytest.FixtureRequest) -> Callable[[], Container]:
    """Makes containers of the runtime under test, with ids that say which test they belong to."""
    if runtime == STOCK:
        node.known_leaks += ["tmp/ctrd-checkpoint*", "run/s/*"]
    return _factory(node, runtime, request)


def _factory(node: Node, runtime: str, request: pytest.FixtureRequest) -> Callable[[], Container]:
    _require(runtime)
    stem = request.node.originalname.removeprefix("test_").replace("_", "-")[:40].rstrip("-")
    return lambda: Container(node, node.unique(stem), runtime)


@pytest.fixture
def icebox(node: Node, request: pytest.FixtureRequest) -> Callable[[], Container]:
    """Makes containers under Icebox."""
    return _factory(node, ICEBOX, request)


@pytest.fixture
def faulty(node: Node, request: pytest.FixtureRequest) -> Callable[[], Container]:
    """Makes containers under Icebox with an engine that has fault points: node.faults() arms them."""
    return _factory(node, FAULTS, request)


@pytest.fixture
def program_folder(folder: pathlib.Path) -> Callable[[str, str], pathlib.Path]:
    """Makes folders with one program of our own, to stand before the real one."""
    def make(name: str, script: str) -> pathlib.Path:
        place = folder / f"programs-{name}"
        place.mkdir()
        program = place / name
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
        return program
    return make


@pytest.fixture
def folder() -> Iterator[pathlib.Path]:
    """A folder with the same path inside and outside of the nodes: for checkpoints made by the engine's own command."""
    path = pathlib.Path(tempfile.mkdtemp(prefix="icebox-e2e-folder-", dir="/var/tmp"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)
