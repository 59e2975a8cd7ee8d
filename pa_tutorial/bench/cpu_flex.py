"""torch's flex_attention over a paged mask, where torch can compile it: in a process of its own.

Compiling takes a C++ compiler, Python's headers and some time; a process can be ended, and its
failure is one sentence in the results.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable

import torch
from torch import Tensor

from pa_tutorial.arguments import require
from pa_tutorial.bench.cpu_inputs import Batch, ColdCaches, reading
from pa_tutorial.bench.cpu_shapes import Shape
from pa_tutorial.bench.cpu_stages import cpu
from pa_tutorial.bench.timing import interleaved

SECONDS = 120  # from the start of the process to its results


def paged_mask(batch: Batch) -> "BlockMask":  # noqa: F821
    """Of each sequence, the blocks of the pool that it sees: its block table."""
    from torch.nn.attention.flex_attention import BlockMask

    shape = batch.shape
    whole = all(seq_len % shape.block_size == 0 for seq_len in shape.seq_lens) and shape.is_even
    require(whole, "batch.shape.seq_lens", shape.seq_lens, "equal, and whole blocks")
    num_seqs, num_blocks = batch.block_tables.shape
    num_slots = batch.k_cache.shape[0] * shape.block_size
    numbers = torch.zeros(num_seqs, 1, 1, len(batch.k_cache), dtype=torch.int32)
    numbers[:, 0, 0, :num_blocks] = batch.block_tables
    none = torch.zeros(num_seqs, 1, 1, dtype=torch.int32)
    every = torch.full((num_seqs, 1, 1), num_blocks, dtype=torch.int32)
    block = (shape.block_size, shape.block_size)
    lengths = (1, num_slots)
    return BlockMask.from_kv_blocks(
        none, numbers, every, numbers, BLOCK_SIZE=block, seq_lengths=lengths
    )


def flex_step(batch: Batch) -> Callable[[], Tensor]:
    """One decode step, over a pool with the heads outside: [num_kv_heads, slots, head_size]."""
    from torch.nn.attention.flex_attention import flex_attention

    compiled = torch.compile(flex_attention, dynamic=False)
    num_seqs = len(batch.q)
    # NaN of the padding block would be harmless, but flex_attention may touch it.
    pools = (cache.nan_to_num(0.0).transpose(0, 1).flatten(1, 2) for cache in batch.memory)
    k, v = (pool[None].expand(num_seqs, -1, -1, -1) for pool in pools)
    q, mask = batch.q[:, :, None], paged_mask(batch)
    shared = q.shape[1] != k.shape[1]
    return lambda: compiled(q, k, v, block_mask=mask, enable_gqa=shared)[:, :, 0]


@torch.inference_mode()
def measure(shape: Shape, rounds: int) -> dict[str, object]:
    """Times of flex_attention, the kernel and the read bound; ValueError if results differ."""
    batch = Batch(shape)
    steps = {"flex_attention": flex_step(batch), "cpu": cpu(batch), "read": reading(batch)}
    out, expected = steps["flex_attention"]().float(), steps["cpu"]().float()
    error = float((out - expected).norm() / expected.norm())
    require(error < 0.01, "the error of flex_attention", error, "below 0.01")
    return {"shape": shape.as_row(), "times": interleaved(steps, rounds, ColdCaches())}


def measure_apart(shape: Shape, rounds: int, seconds: float = SECONDS) -> dict[str, object]:
    """measure, in a process of its own; {"absent": why} if it fails or takes too long."""
    given = {**shape.as_row(), "seq_lens": shape.seq_lens, "rounds": rounds}
    process = subprocess.Popen(
        [sys.executable, "-m", __name__, json.dumps(given)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # it starts compilers, which must end with it
    )
    try:
        out, errors = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        end_all(process)
        return {"absent": f"not done after {seconds:.0f} seconds"}
    return json.loads(out) if process.returncode == 0 else {"absent": reason(errors)}


def end_all(process: subprocess.Popen) -> None:
    """End the process and all that it has started."""
    if hasattr(os, "killpg"):
        os.killpg(process.pid, signal.SIGKILL)
    else:  # Windows
        process.kill()
    process.communicate()


def reason(errors: str) -> str:
    """The line that says what is missing, of a long text."""
    lines = [line.strip() for line in errors.splitlines() if line.strip()]
    telling = [line for line in lines if "error:" in line.lower()]
    return (telling or lines or ["no reason given"])[-1][:300]


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    names = ("name", "num_heads", "num_kv_heads", "head_size", "block_size")
    chosen = Shape(
        seq_lens=tuple(given["seq_lens"]),
        dtype=getattr(torch, given["dtype"]),
        **{name: given[name] for name in names},
    )
    print(json.dumps(measure(chosen, given["rounds"])))
