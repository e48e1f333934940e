#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""What `icebox-runc state` costs above the runtime's own: at most 2 ms in the median of 200 calls.

    tests/bench/state_overhead.py PATH/TO/icebox-runc [CALLS]

Both are called in turn, so that whatever else the machine does hits both alike. The container does not exist: the
runtime answers that at once, and what is measured is the way there. Exit status 1 if the budget is exceeded.
"""

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

BUDGET_MS = 2.0
WARM_UP = 10


def call_ms(command: list[str], environment: dict[str, str]) -> float:
    start = time.perf_counter()
    done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environment, check=False)
    elapsed = (time.perf_counter() - start) * 1000
    if b"does not exist" not in done.stderr:
        sys.exit(f"{command[0]}: an answer other than 'does not exist': {done.stderr.decode(errors='replace')}")
    return elapsed


def main() -> int:
    engine = os.path.abspath(sys.argv[1])
    calls = int(sys.argv[2]) if len(sys.argv) > 2 else 200
    runtime = shutil.which("runc")
    if runtime is None:
        sys.exit("runc is not installed: run scripts/setup.sh")
    with tempfile.TemporaryDirectory(prefix="icebox-bench-") as folder:
        config = os.path.join(folder, "config.toml")
        with open(config, "w", encoding="utf-8") as file:
            file.write(f'runtime = "{runtime}"\nstate_dir = "{folder}/state"\n')
        environment = {**os.environ, "ICEBOX_CONFIG": config}
        times: dict[str, list[float]] = {runtime: [], engine: []}
        for number in range(calls + WARM_UP):
            for program, measured in times.items():
                elapsed = call_ms([program, "--root", f"{folder}/root", "state", "nobody"], environment)
                if number >= WARM_UP:
                    measured.append(elapsed)
    base, ours = (statistics.median(times[program]) for program in (runtime, engine))
    print(f"state: runc {base:.2f} ms, icebox-runc {ours:.2f} ms (median of {calls}): {ours - base:+.2f} ms, "
          f"x{ours / base:.3f}; budget +{BUDGET_MS:g} ms")
    return 0 if ours - base <= BUDGET_MS else 1


if __name__ == "__main__":
    sys.exit(main())
