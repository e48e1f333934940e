#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Many threads that work on the GPU and all the time take and release host memory, files and libraries: whatever a thread
of this process may hold when it is stopped, some thread holds. Prints `ready`, then `round N sum S` for ever: S is of
values that live on the GPU only and must never change."""

import argparse
import ctypes
import itertools
import os
import threading
import time

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--threads", type=int, default=12)
parser.add_argument("--stand-in", action="store_true", help="no torch and no GPU: for a machine without one")
options = parser.parse_args()

if not options.stand_in:
    import torch

counters = [0] * options.threads


def churn(number: int) -> None:
    libc = ctypes.CDLL(None)
    stream = None if options.stand_in else torch.cuda.Stream()
    for turn in itertools.count():
        blocks = [bytes(1 << (10 + (turn + i) % 9)) for i in range(40)]
        os.stat("/proc/self/maps")
        libc.malloc_trim(0)
        ctypes.CDLL("libm.so.6")
        if stream is not None:
            with torch.cuda.stream(stream):
                host = torch.ones(1 << (8 + turn % 6), pin_memory=turn % 5 == 0)
                device = host.to("cuda", non_blocking=True)
                (device @ device).item()
            if turn % 20 == 0:
                torch.cuda.empty_cache()
        counters[number] = turn + len(blocks) * 0


kept = None
if not options.stand_in:
    torch.manual_seed(1)
    kept = torch.randint(0, 1 << 30, (1 << 20,), device="cuda", dtype=torch.int64)
for index in range(options.threads):
    threading.Thread(target=churn, args=(index,), daemon=True).start()
print("ready", flush=True)
for step in itertools.count(1):
    value = 0 if kept is None else int(kept.sum().item())
    print(f"round {step} sum {value} turns {sum(counters)}", flush=True)
    time.sleep(0.02)
