"""Processor time of our kernels as compiled, beside the simulator's: 7 minutes.

python -m tests.kernels.ptx_speed
"""

import time
from dataclasses import replace
from itertools import product, repeat
from statistics import median

import numpy as np
import torch

from pa_tutorial.checks.ladder import backend_named
from pa_tutorial.kernels.compiled.backend import parts_of
from pa_tutorial.kernels.cuda_launch import CudaLaunch
from pa_tutorial.printing import print_anything
from pa_tutorial.viz.kernel_runs import REFERENCE
from simt import compile_ptx
from simt.machine import CHECKS
from simt.ptx import run_ptx

STAGES = "cuda_v1", "cuda_v1_vector", "cuda_v2", "cuda_naive"
DTYPES = torch.float16, torch.bfloat16, torch.float32
SIZES = (1, 1), (1, 8), (32, 8)  # sequences of 100 to 256 tokens, heads
ROUNDS = 5
WITHOUT_RACE = tuple(check for check in CHECKS if check != "race")


def seconds(part: CudaLaunch, text: str | None, checks: tuple[str, ...]) -> float:
    """Of a launch as compiled; without a text, in the simulator."""
    start = time.process_time()
    if text is None:
        part.simulate(checks=checks)
    else:
        run_ptx(
            part.kernel, part.grid, part.geometry.NUM_THREADS, *part.arguments.values(), text=text,
            shared_bytes=part.shared_bytes, unwritten=part.unwritten, checks=checks,
        )  # fmt: skip
    return time.process_time() - start


def measured(stage: str, dtype: torch.dtype, size: tuple[int, int]) -> str:
    """A row: the simulator's milliseconds, and how many times as long it takes as compiled."""
    num_seqs, num_heads = size
    seq_lens = tuple(np.random.default_rng(0).integers(100, 257, num_seqs).tolist())
    heads = {"num_heads": num_heads, "num_kv_heads": max(1, num_heads // 4)}
    step = replace(REFERENCE, seq_lens=seq_lens, dtype=dtype, **heads).paged("vllm")
    sizes = {"partition_size": 64} if stage == "cuda_v2" else {}
    parts = parts_of(backend_named(stage).prepare(step, **sizes))
    texts = [compile_ptx(part.kernel, *part.arguments.values()) for part in parts]
    times = [
        [
            sum(map(seconds, parts, given, repeat(checks)))
            for checks in (CHECKS, WITHOUT_RACE)
            for given in (repeat(None), texts)
        ]
        for _ in range(1 + ROUNDS)  # the first one warms up
    ]
    simulated, compiled, unraced, compiled_unraced = map(median, zip(*times[1:], strict=True))
    return (
        f"{stage:14} {str(dtype).removeprefix('torch.'):8} {num_seqs * num_heads:4} "
        f"{1000 * simulated:9.0f} ms {compiled / simulated:8.2f} {compiled_unraced / unraced:8.2f}"
    )


if __name__ == "__main__":
    print_anything()
    torch.set_num_threads(1)
    print("kernel         dtype  blocks    simulator  as compiled: all checks, without race")
    for row in product(STAGES, DTYPES, SIZES):
        print(measured(*row), flush=True)
