# SPDX-License-Identifier: Apache-2.0
"""The machine that the tests run on: the kit put into place, the driver found, the file systems prepared."""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile

from .agent import Agent
from .checks import Failed, check

# Where the kit's programs expect themselves; see build-kit.sh.
PREFIX = pathlib.Path("/opt/icebox")
# Where the driver's libraries are inside containers.
DRIVER = "/opt/driver"
# All that libcuda loads, for machines that keep the driver's libraries among the system's.
DRIVER_LIBRARIES = ("libcuda.so.1", "libnvidia-ptxjitcompiler.so.1", "libnvidia-nvvm.so.4", "libnvidia-gpucomp.so.*",
                    "libnvidia-ml.so.1")
SIMULATED_DEVICE = "/dev/nvidia0"
KNOBS = "/knobs"

# NVLink multicast is not for tests that share a host; the rest keeps programs from looking outside.
GPU_ENVIRONMENT = {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1", "NVSHMEM_DISABLE_NVLS": "1"}

_LOCK_RULES = "*filter\n:CRIU - [0:0]\n-I INPUT -j CRIU\n-A CRIU -m mark --mark 0xC114 -j ACCEPT\n-A CRIU -j DROP\nCOMMIT\n"


def default_work() -> pathlib.Path:
    """A folder on the disk with the most room: an 8 GiB checkpoint is on it three times."""
    best, room = pathlib.Path("/var/tmp"), 0
    for line in pathlib.Path("/proc/self/mounts").read_text().splitlines():
        _, mount, kind, options = line.split()[:4]
        if kind not in ("ext4", "xfs", "btrfs") or "rw" not in options.split(",") or not os.path.isdir(mount):
            continue
        free = shutil.disk_usage(mount).free
        if free > room:
            best, room = pathlib.Path("/var/tmp") if mount == "/" else pathlib.Path(mount), free
    return best / "icebox-gpu"


def run(*command: str, seconds: float = 30.0, check_code: bool = True, **options: object) -> subprocess.CompletedProcess:
    options.setdefault("stdin", subprocess.DEVNULL)
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False, **options)
    if check_code and done.returncode != 0:
        raise Failed(f"{' '.join(command)}: exit {done.returncode}: {(done.stderr or done.stdout).strip()[-800:]}")
    return done


class Machine:
    """Everything that does not change from item to item."""

    def __init__(self, kit: pathlib.Path, work: pathlib.Path, simulated: bool):
        self.work = work
        self.simulated = simulated
        self.kit = _unpacked(kit, work)
        self.bin = PREFIX / "kit" / "bin"
        self.samples = PREFIX / "kit" / "samples"
        self.facts: dict[str, str] = {}
        self._prepare_mounts()
        self._find_driver()
        self._choose_network_lock()
        self._describe()

    # --- file systems ------------------------------------------------------------------------------------------

    def _prepare_mounts(self) -> None:
        """Mounts of our own, in the private mount namespace that run.py has entered: they are gone with it."""
        for folder in ("run", "tmp", "icebox", "logs", "dev"):
            (self.work / folder).mkdir(parents=True, exist_ok=True)
        PREFIX.mkdir(parents=True, exist_ok=True)
        run("mount", "-t", "tmpfs", "-o", "mode=755,size=1m", "icebox", str(PREFIX))
        for name, source in (("kit", self.kit), ("criu", self.kit / "criu")):
            (PREFIX / name).mkdir()
            run("mount", "--bind", str(source), str(PREFIX / name))
        pathlib.Path("/run/containerd").mkdir(parents=True, exist_ok=True)
        run("mount", "--bind", str(self.work / "run"), "/run/containerd")
        if self.simulated:
            self._simulate_device()

    def _simulate_device(self) -> None:
        """A /dev of our own with a GPU's node, which has the numbers of a device that CRIU cannot dump."""
        dev = self.work / "dev"
        run("mount", "-t", "tmpfs", "-o", "mode=755,size=1m", "devices", str(dev))
        run("sh", "-c", f"cp -ax /dev/. {dev}/ && rm -rf {dev}/nvidia* && mknod -m 666 {dev}/nvidia0 c 10 237")
        run("mount", "--rbind", "/dev/pts", str(dev / "pts"))
        run("mount", "-t", "tmpfs", "shm", str(dev / "shm"))
        run("mount", "--rbind", str(dev), "/dev")

    # --- the driver --------------------------------------------------------------------------------------------

    def _find_driver(self) -> None:
        if self.simulated:
            self.driver_folder = PREFIX / "kit" / "fakes"
            self.devices = [SIMULATED_DEVICE]
        else:
            self.driver_folder = _real_driver_folder()
            # The agent cannot run nvidia-modprobe (its filter forbids it), which makes this node on demand.
            modprobe = shutil.which("nvidia-modprobe")
            if not os.path.exists("/dev/nvidia-uvm") and modprobe:
                run(modprobe, "-u", "-c", "0", check_code=False)
            self.devices = sorted(str(path) for path in pathlib.Path("/dev").glob("nvidia*")
                                  if re.fullmatch(r"nvidia([0-9]+|ctl|-uvm)", path.name))
            check(self.devices, "there is no /dev/nvidia* on this machine")
        self.libcuda = str(self.driver_folder / "libcuda.so.1")
        self.nvml = str(self.driver_folder / "libnvidia-ml.so.1")

    def agent(self, caps: str | None = None) -> Agent:
        return Agent(self.bin / "icebox-gpu", self.libcuda, self.nvml, caps)

    def container_flags(self) -> list[str]:
        """Flags of `ctr run` that give a container the GPU: devices, the driver's libraries, the way to them."""
        flags = [word for device in self.devices for word in ("--device", device)]
        if (self.driver_folder / "libc.so.6").exists():
            for pattern in DRIVER_LIBRARIES:
                for file in sorted(self.driver_folder.glob(pattern)):
                    flags += bind(file.resolve(), f"{DRIVER}/{file.name}")
        else:
            flags += bind(self.driver_folder.resolve(), DRIVER)
        environment = {"LD_LIBRARY_PATH": DRIVER, **GPU_ENVIRONMENT}
        if self.simulated:
            environment["ICEBOX_SIM_KNOBS"] = KNOBS
        return flags + [word for name, value in environment.items() for word in ("--env", f"{name}={value}")]

    def host_environment(self) -> dict[str, str]:
        """The environment of a CUDA program that runs outside of any container."""
        return {**os.environ, **GPU_ENVIRONMENT, "LD_LIBRARY_PATH":
                f"{self.driver_folder}:{os.environ.get('LD_LIBRARY_PATH', '')}".rstrip(":")}

    def utilization(self) -> int | None:
        """Per cent of the first GPU's time in use, by nvidia-smi; None in simulation."""
        if self.simulated:
            return None
        said = run(self._nvidia_smi(), "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits").stdout
        return int(said.splitlines()[0])

    def _nvidia_smi(self) -> str:
        found = shutil.which("nvidia-smi", path=os.environ["PATH"] + ":/usr/local/nvidia/bin")
        check(found, "nvidia-smi is not on this machine")
        return str(found)

    # --- CRIU's network lock -----------------------------------------------------------------------------------

    def _choose_network_lock(self) -> None:
        """CRIU closes the container's network with iptables-restore: takes the kind that this kernel can do."""
        self.tools = self.work / "tools"
        shutil.rmtree(self.tools, ignore_errors=True)
        self.tools.mkdir()
        said = []
        for kind in ("nft", "legacy"):
            folder = PREFIX / "kit" / "xtables" / kind
            tried = run("unshare", "--net", str(folder / "iptables-restore"), "-w", input=_LOCK_RULES, stdin=None,
                        check_code=False)
            if tried.returncode == 0:
                for program in folder.iterdir():
                    (self.tools / program.name).symlink_to(program)
                self.facts["network lock"] = f"iptables-restore ({kind})"
                return
            said.append(f"{kind}: {tried.stderr.strip()[-200:]}")
        # The containers here have a network of their own without anything outside: nothing can get in meanwhile.
        for name in ("iptables-restore", "ip6tables-restore"):
            (self.tools / name).write_text("#!/bin/sh\nexec cat >/dev/null\n")
            (self.tools / name).chmod(0o755)
        self.facts["network lock"] = "none, this kernel refuses the rules: " + "; ".join(said)

    # --- what the report says ----------------------------------------------------------------------------------

    def _describe(self) -> None:
        with self.agent() as agent:
            driver = agent.driver()
        gpu = driver["gpus"][0]
        memory = {line.split(":")[0]: line.split()[1] for line in pathlib.Path("/proc/meminfo").read_text().splitlines()}
        unified = os.path.exists("/sys/fs/cgroup/cgroup.controllers")
        kit = dict(line.split(": ", 1) for line in (self.kit / "KIT").read_text().splitlines())
        self.facts.update({
            "GPU": f"{gpu['name']}, {gpu['total_bytes'] >> 20} MiB, compute capability "
                   f"{gpu['compute_major']}.{gpu['compute_minor']}, persistence mode {'on' if gpu['persistence_mode'] else 'off'}",
            "GPUs": str(len(driver["gpus"])),
            "driver": f"{driver['driver_version']}, CUDA {driver['cuda_version'] // 1000}.{driver['cuda_version'] % 1000 // 10}",
            "libcuda": driver["libcuda"], "kernel": os.uname().release, "cgroup": "v2" if unified else "v1",
            "CPUs": str(os.cpu_count()), "memory": f"{int(memory['MemTotal']) >> 20} GiB (as shown at the start)",
            "disk": f"{shutil.disk_usage(self.work).free >> 30} GiB free at {self.work}",
            "containerd": kit["containerd"], "runc": kit["runc"], "CRIU": kit["criu"], "commit": kit["commit"],
        })
        self.gpu_bytes = gpu["total_bytes"]


def bind(source: pathlib.Path | str, target: str, writable: bool = False) -> list[str]:
    """A bind mount for `ctr run`: not recursive, so that mounts below the source stay outside."""
    return ["--mount", f"type=bind,src={source},dst={target},options=bind:{'rw' if writable else 'ro'}"]


def _unpacked(kit: pathlib.Path, work: pathlib.Path) -> pathlib.Path:
    """The kit as a staged folder: `kit` itself, or its archives unpacked into `work`, once."""
    if (kit / "KIT").exists():
        return kit
    archives = sorted(kit.glob("*.tar.xz"))
    check(archives, f"no kit in {kit}: build it with tests/gpu/build-kit.sh")
    target, stamp = work / "kit", work / "kit.stamp"
    label = "".join(f"{archive.name} {archive.stat().st_size} {archive.stat().st_mtime_ns}\n" for archive in archives)
    if not (stamp.exists() and stamp.read_text() == label):
        shutil.rmtree(target, ignore_errors=True)
        for archive in archives:
            with tarfile.open(archive) as opened:
                opened.extractall(target)
        stamp.write_text(label)
    return target


def _real_driver_folder() -> pathlib.Path:
    cache = run("ldconfig", "-p", check_code=False, env={"PATH": os.environ["PATH"] + ":/usr/sbin:/sbin"}).stdout
    listed = re.findall(r"libcuda\.so\.1 \(.*x86-64.*\) => (\S+)", cache)
    folders = [os.path.dirname(path) for path in listed] + os.environ.get("LD_LIBRARY_PATH", "").split(":")
    for folder in [*folders, "/usr/local/nvidia/lib64", "/usr/local/nvidia/lib", "/usr/lib/x86_64-linux-gnu", "/usr/lib64"]:
        if folder and os.path.exists(f"{folder}/libcuda.so.1") and os.path.exists(f"{folder}/libnvidia-ml.so.1"):
            return pathlib.Path(folder)
    raise Failed("libcuda.so.1 and libnvidia-ml.so.1 are not on this machine")


class Python:
    """The host's Python as a container can use it: its prefixes and the system's libraries, bound read-only."""

    def __init__(self, wanted: str | None):
        self.program = wanted or shutil.which("python3") or sys.executable
        told = run(self.program, "-c", "import json, sys, importlib.util as u; print(json.dumps([sys.prefix, "
                   "sys.base_prefix, sys.executable, [p for p in sys.path if p], bool(u.find_spec('torch'))]))", seconds=60)
        prefix, base, executable, path, self.has_torch = json.loads(told.stdout)
        self._folders = [prefix, base, *path]
        self._executable = executable

    def flags(self) -> list[str]:
        wanted = {"/usr/lib": "/usr/lib", "/lib": "/usr/lib", "/lib64": "/usr/lib64", "/usr/lib64": "/usr/lib64"}
        for folder in self._folders:
            # Of /usr itself only the interpreter is missing: its modules are below /usr/lib.
            if os.path.isdir(folder) and folder != "/usr":
                wanted[folder] = folder
        # The interpreter, by every name on the way to it: a venv's is a link, often to a link.
        link = self._executable
        while True:
            wanted[link] = os.path.realpath(link)
            if not os.path.islink(link):
                break
            link = os.path.normpath(os.path.join(os.path.dirname(link), os.readlink(link)))
        flags = []
        for target in sorted(wanted, key=len):
            source = os.path.realpath(wanted[target])
            covered = any(target.startswith(other + "/") and source == os.path.join(wanted[other], target[len(other) + 1:])
                          for other in wanted if other != target)
            if os.path.exists(source) and not covered:
                flags += bind(source, target)
        return flags
