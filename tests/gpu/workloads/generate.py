#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A language model that generates for ever, every step on record.

The model is built from a seeded configuration (random weights: what counts is that every bit of it comes back), tokens are
sampled with a seeded generator on the GPU. Each step writes one line: its number, the token, a hash of the logits, and a
nonce that was drawn at the start and lives on the GPU. Two undisturbed runs differ in the nonce only.

--engine torch: a Llama of transformers, bfloat16, with its key-value cache.
--engine stand-in: no model; a number in device memory, through the driver API. For machines without PyTorch, where it
proves the test around it.
"""

import argparse
import ctypes
import hashlib
import os
import struct
import sys
import time


class TorchEngine:
    def __init__(self, seed: int, nonce: int):
        import torch
        import transformers
        self.torch = torch
        torch.use_deterministic_algorithms(True, warn_only=True)  # the comparison is the judge
        torch.manual_seed(seed)
        torch.set_default_dtype(torch.bfloat16)
        config = transformers.LlamaConfig(vocab_size=32000, hidden_size=1024, intermediate_size=2816, num_hidden_layers=24,
                                          num_attention_heads=16, num_key_value_heads=16, max_position_embeddings=8192)
        with torch.device("cuda"):
            self.model = transformers.LlamaForCausalLM(config).eval()
        self.generator = torch.Generator(device="cuda").manual_seed(seed)
        self.nonce = torch.tensor([nonce], dtype=torch.int64, device="cuda")
        self.token = torch.ones((1, 1), dtype=torch.int64, device="cuda")
        self.cache = None
        size = sum(p.numel() for p in self.model.parameters())
        self.name = (f"transformers {transformers.__version__} LlamaForCausalLM, {size / 1e6:.0f}M parameters, bfloat16, "
                     f"torch {torch.__version__}")

    def step(self) -> tuple[int, str, int]:
        torch = self.torch
        with torch.inference_mode():
            result = self.model(input_ids=self.token, past_key_values=self.cache, use_cache=True)
            self.cache = result.past_key_values
            logits = result.logits[0, -1]
            # Exponential race: as torch.multinomial does for one sample, in operations that are all deterministic.
            weights = torch.softmax(logits.float(), dim=-1)
            race = torch.empty_like(weights).exponential_(generator=self.generator)
            self.token = (weights / race).argmax().view(1, 1)
            digest = hashlib.sha256(logits.view(torch.int16).cpu().numpy().tobytes()).hexdigest()
        return int(self.token.item()), digest, int(self.nonce.item())


class StandInEngine:
    name = "stand-in without a model"
    SIZE = 32 << 20

    def __init__(self, seed: int, nonce: int):
        self.cuda = ctypes.CDLL("libcuda.so.1")
        device, context, self.memory = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
        self._check(self.cuda.cuInit(0))
        self._check(self.cuda.cuDeviceGet(ctypes.byref(device), 0))
        self._check(self.cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device))
        self._check(self.cuda.cuCtxSetCurrent(context))
        self._check(self.cuda.cuMemAlloc_v2(ctypes.byref(self.memory), ctypes.c_size_t(self.SIZE)))
        self._write(seed, nonce)

    def _check(self, code: int) -> None:
        if code != 0:
            sys.exit(f"generate: CUDA error {code}")

    def _write(self, state: int, nonce: int) -> None:
        data = struct.pack("<QQ", state, nonce)
        self._check(self.cuda.cuMemcpyHtoD_v2(self.memory, data, ctypes.c_size_t(len(data))))

    def step(self) -> tuple[int, str, int]:
        data = ctypes.create_string_buffer(16)
        self._check(self.cuda.cuMemcpyDtoH_v2(data, self.memory, ctypes.c_size_t(16)))
        state, nonce = struct.unpack("<QQ", data.raw)
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        self._write(state, nonce)
        return state >> 48, hashlib.sha256(struct.pack("<Q", state)).hexdigest(), nonce


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", choices=("torch", "stand-in"), default="torch")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--tick-ms", type=int, default=0, help="pause after each step")
    args = parser.parse_args()
    start = time.monotonic()
    nonce = int.from_bytes(os.urandom(7), "little")
    engine = (TorchEngine if args.engine == "torch" else StandInEngine)(args.seed, nonce)
    print(f"ready after {time.monotonic() - start:.1f} s: {engine.name}", flush=True)
    number = 0
    while True:
        token, digest, seen = engine.step()
        number += 1
        print(f"step {number} token {token} logits {digest} nonce {seen:x}", flush=True)
        time.sleep(args.tick_ms / 1000)


if __name__ == "__main__":
    main()
