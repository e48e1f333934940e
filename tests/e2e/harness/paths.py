# SPDX-License-Identifier: Apache-2.0
"""Where the programs under test and the tools they need are."""

import os
import pathlib
import shutil

REPOSITORY = pathlib.Path(__file__).resolve().parents[3]

# The build's folder of programs. The tests never build anything themselves.
BIN = pathlib.Path(os.environ.get("ICEBOX_BIN", REPOSITORY / "build" / "release" / "bin")).resolve()

# The engine with the fault points compiled in; see tests/README.md.
FAULT_BIN = pathlib.Path(os.environ.get("ICEBOX_FAULT_BIN", BIN.parent / "bin-faults")).resolve()

# The simulated driver: libcuda.so.1, libnvidia-ml.so.1, and old/libcuda.so.1 without the checkpoint API.
FAKES = pathlib.Path(os.environ.get("ICEBOX_FAKES", BIN.parent / "fakes")).resolve()

SAMPLES = pathlib.Path(os.environ.get("ICEBOX_SAMPLES", BIN.parent / "samples")).resolve()

_PREFIX_CRIU = pathlib.Path(os.environ.get("ICEBOX_PREFIX", "/opt/icebox"), "criu/bin/criu")


def criu() -> pathlib.Path:
    """The CRIU that scripts/setup.sh has put into place."""
    if _PREFIX_CRIU.exists():
        return _PREFIX_CRIU
    found = shutil.which("criu")
    if not found:
        raise FileNotFoundError("no CRIU on this machine: run scripts/setup.sh")
    return pathlib.Path(found)


def system_path(first: pathlib.Path) -> str:
    """A PATH with `first` in front, then CRIU's folder, then the system's."""
    return f"{first}:{criu().parent}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
