"""Processor time of our kernels as compiled, beside the simulator's: 7 minutes.

python -m tests.kernels.ptx_speed
"""

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
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

STAGES = {
    **{"cuda_v1": "v1 by element", "cuda_v1_vector": "v1 by vec"},
    **{"cuda_v2": "v2", "cuda_naive": "naive"},
}
DTYPES = torch.float16, torch.bfloat16, torch.float32
SIZES = (1, 1), (1, 8), (32, 8)  # sequences of 100 to 256 tokens, heads
ROUNDS = 5
WITHOUT_RACE = tuple(check for check in CHECKS if check != "race")


def seconds(run: Callable[[], object]) -> float:
    start = time.process_time()
    run()
    return time.process_time() - start


def in_the_simulator(part: CudaLaunch, _text: str, checks: tuple[str, ...]) -> None:
    part.simulate(checks=checks)


def as_compiled(part: CudaLaunch, text: str, checks: tuple[str, ...]) -> None:
    run_ptx(
        part.kernel, part.grid, part.geometry.NUM_THREADS, *part.arguments.values(), text=text,
        shared_bytes=part.shared_bytes, unwritten=part.unwritten, checks=checks,
    )  # fmt: skip


def measured(stage: str, dtype: torch.dtype, num_seqs: int, num_heads: int) -> str:
    """A row: the simulator's milliseconds, and how many times as long it takes as compiled."""
    seq_lens = tuple(np.random.default_rng(0).integers(100, 257, num_seqs).tolist())
    heads = {"num_heads": num_heads, "num_kv_heads": max(1, num_heads // 4)}
    step = replace(REFERENCE, seq_lens=seq_lens, dtype=dtype, **heads).paged("vllm")
    sizes = {"partition_size": 64} if stage == "cuda_v2" else {}
    parts = parts_of(backend_named(stage).prepare(step, **sizes))
    texts = [compile_ptx(part.kernel, *part.arguments.values()) for part in parts]
    times: list[tuple[float, ...]] = []
    for _ in range(1 + ROUNDS):  # the first one warms up
        times.append(
            tuple(
                sum(
                    seconds(partial(run, part, text, checks))
                    for part, text in zip(parts, texts, strict=True)
                )
                for checks in (CHECKS, WITHOUT_RACE)
                for run in (in_the_simulator, as_compiled)
            )
        )
    simulated, compiled, unraced, compiled_unraced = map(median, zip(*times[1:], strict=True))
    return (
        f"{STAGES[stage]:13} {str(dtype).removeprefix('torch.'):8} {num_seqs * num_heads:4} "
        f"{1000 * simulated:9.0f} ms {compiled / simulated:8.2f} {compiled_unraced / unraced:8.2f}"
    )


if __name__ == "__main__":
    print_anything()
    torch.set_num_threads(1)
    print("kernel        dtype  blocks    simulator  as compiled: all checks, without race")
    for stage in STAGES:
        for dtype in DTYPES:
            for size in SIZES:
                print(measured(stage, dtype, *size), flush=True)
