#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Holds device memory through the driver API until standard input closes.

hog.py MIB        allocates MIB MiB
hog.py -MIB       allocates all but MIB MiB of what is free

Prints "held BYTES free BYTES" when it holds them. Plain cuMemAlloc, as one allocation where possible.
"""

import ctypes
import sys

MIB = 1 << 20


def check(code: int, what: str) -> None:
    if code != 0:
        sys.exit(f"hog: {what}: CUDA error {code}")


def memory(cuda: ctypes.CDLL) -> int:
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    check(cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)), "cuMemGetInfo")
    return free.value


def main() -> None:
    cuda = ctypes.CDLL("libcuda.so.1")
    device, context = ctypes.c_int(), ctypes.c_void_p()
    check(cuda.cuInit(0), "cuInit")
    check(cuda.cuDeviceGet(ctypes.byref(device), 0), "cuDeviceGet")
    check(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device), "cuDevicePrimaryCtxRetain")
    check(cuda.cuCtxSetCurrent(context), "cuCtxSetCurrent")
    asked = int(sys.argv[1]) * MIB
    size = asked if asked > 0 else memory(cuda) + asked
    if size <= 0:
        sys.exit(f"hog: only {memory(cuda)} bytes are free")
    address = ctypes.c_uint64()
    check(cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(size)), f"cuMemAlloc of {size} bytes")
    print(f"held {size} free {memory(cuda)}", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
