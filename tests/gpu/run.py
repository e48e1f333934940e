#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the GPU tests from a kit (build-kit.sh) on a machine with an NVIDIA driver. README.md says what they prove.

  run.py [ITEM...]            what has not passed yet in this work folder, or the named items
  run.py --simulated [ITEM..] the same on the simulated driver, as far as it can
  run.py --list

Needs root and Python, nothing else. Nothing of the machine is changed: all mounts are in a mount namespace of its own.
"""

import argparse
import os
import pathlib
import signal
import subprocess
import sys
import tarfile
import time
import traceback

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
sys.dont_write_bytecode = True

from harness import machine as machines  # noqa: E402
from harness.checks import Deadline, Failed, Skipped, wait_until  # noqa: E402
from harness.node import Node  # noqa: E402
from harness.report import Report  # noqa: E402
from items import ITEMS, Item  # noqa: E402

# After an item's own deadline its waits have ended; this is for what waits without one.
GRACE_SECONDS = 20
# Most of what an item's limit allows is for slow machines.
USUAL_SHARE = 0.6


class ItemTimeout(Exception):
    pass


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("items", nargs="*", metavar="ITEM")
    parser.add_argument("--list", action="store_true", help="name the items")
    parser.add_argument("--simulated", action="store_true")
    parser.add_argument("--kit", type=pathlib.Path, default=HERE.parents[1] / ".kit",
                        help="folder with the kit's archives, or a staged kit (default: .kit of the repository)")
    parser.add_argument("--work", type=pathlib.Path, help="work folder (default: icebox-gpu on the disk with the most room)")
    parser.add_argument("--out", type=pathlib.Path, default=os.environ.get("OUT"),
                        help="also put results and logs here (default: $OUT)")
    parser.add_argument("--python", help="the Python that has PyTorch (default: python3 in PATH)")
    parser.add_argument("--budget", type=float, default=520,
                        help="seconds for all items of this call (520); what does not fit is for the next call")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    unknown = set(args.items) - {item.name for item in ITEMS}
    if unknown:
        parser.error(f"unknown items: {', '.join(sorted(unknown))}; --list names them")
    return args


def run_item(node: Node, item: Item, limit: float, report: Report) -> None:
    print(f"== {item.name}: {item.title}", flush=True)
    node.deadline = Deadline(limit)
    start = time.monotonic()
    status, figures, problem = "failed", {}, ""

    def expire(*_: object) -> None:
        raise ItemTimeout(f"still not done after {limit + GRACE_SECONDS:.0f} s")

    signal.signal(signal.SIGALRM, expire)
    signal.setitimer(signal.ITIMER_REAL, limit + GRACE_SECONDS)
    try:
        figures = item.function(node)
        status = "passed"
    except Skipped as reason:
        status, problem = "skipped", str(reason)
    except (Failed, ItemTimeout, subprocess.TimeoutExpired) as error:
        problem = f"{type(error).__name__ if not isinstance(error, Failed) else ''} {error}".strip()
    except Exception as error:  # a fault of the test: the others run all the same
        problem = f"{type(error).__name__}: {error}"
        traceback.print_exc()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    seconds = time.monotonic() - start
    if status == "failed":
        keep_logs(node, item)
    for key, value in figures.items():
        print(f"   {key}: {value}")
    print(f"   {status}{': ' + problem if problem else ''} ({seconds:.1f} s)", flush=True)
    report.add(item.name, item.title, status, seconds, figures, problem)
    try:
        node.clean()
    except Exception as error:  # the next item shows whether it matters
        print(f"   (cleaning: {error})", flush=True)


def keep_logs(node: Node, item: Item) -> None:
    """Of a failed item: what the programs wrote, the engine's log and CRIU's, before the containers go."""
    with (node.work / "logs" / f"{item.name}.log").open("w") as log:
        for box in node.boxes:
            found = [box.rootfs / "out", *box.bundle.glob("*.log"), box.bundle / "log.json"]
            found += (node.work / "icebox").rglob("*.log")
            for path in dict.fromkeys(found):
                try:
                    text = path.read_text(errors="replace")
                except OSError:
                    continue
                log.write(f"##### {path}\n{text[:4000]}\n...\n{text[-16000:]}\n" if len(text) > 20000 else f"##### {path}\n{text}\n")


def left_behind(node: Node, report: Report) -> None:
    """After the last item, as an item of its own."""
    start = time.monotonic()
    title, problem = "all containers removed: no process, mount, folder or state is left", ""
    node.deadline = Deadline(30)
    try:
        # A shim ends after it has answered.
        wait_until(lambda: not node.left_behind(), "everything is gone", 10)
    except Failed:
        problem = "; ".join(node.left_behind()[:10])
    report.add("clean", title, "failed" if problem else "passed", time.monotonic() - start, {}, problem)


def inside(args: argparse.Namespace) -> int:
    started = time.monotonic()
    work = args.work
    report = Report([work, *([args.out] if args.out else [])], args.simulated)
    machine = machines.Machine(args.kit.resolve(), work, args.simulated)
    machine.python = args.python
    report.set_machine(machine.facts)
    for name, value in machine.facts.items():
        print(f"{name}: {value}")
    node = Node(machine)
    node.start()
    machine.facts["snapshotter"] = node.snapshotter
    wanted = [item for item in ITEMS
              if (item.name in args.items if args.items else not report.passed(item.name))]
    left = []
    try:
        for item in wanted:
            # Limits are generous: an item gets what is left, as long as it would usually do.
            limit = min(item.seconds, args.budget - (time.monotonic() - started))
            if left or limit < item.seconds * USUAL_SHARE:
                left.append(item.name)
                continue
            run_item(node, item, limit, report)
        left_behind(node, report)
    finally:
        node.stop()
        report.write()
        if args.out:
            with tarfile.open(args.out / "logs.tar.gz", "w:gz") as archive:
                archive.add(work / "logs", "logs")
    print(f"\n{report.table()}")
    if left:
        print(f"not started, the budget of {args.budget:.0f} s is over: {' '.join(left)} (run again)")
    names = [item.name for item in wanted if item.name not in left] + ["clean"]
    failed = [name for name in names if report.data["items"][name]["status"] == "failed"]
    print(f"gpu: {'FAILED: ' + ' '.join(failed) if failed else 'OK'} ({time.monotonic() - started:.0f} s)")
    return 1 if failed else 0


def main() -> int:
    args = arguments()
    if args.list:
        for item in ITEMS:
            print(f"{item.name:15} {item.title}")
        return 0
    if os.geteuid() != 0:
        sys.exit("run.py: needs root")
    if args.inside:
        return inside(args)
    work = args.work or machines.default_work()
    work.mkdir(parents=True, exist_ok=True)
    os.execvp("unshare", ["unshare", "--mount", "--propagation", "private", sys.executable, __file__, "--inside",
                          "--work", str(work.resolve()), *sys.argv[1:]])


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Failed as problem:
        sys.exit(f"run.py: {problem}")
