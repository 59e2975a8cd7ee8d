"""torch's flex_attention over a paged mask, where torch can compile it: in a process of its own.

Compiling takes a C++ compiler, Python's headers and some time; a process can be ended, and its
failure is one sentence in the results.
"""

import json
import subprocess
import sys
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from pa_tutorial.arguments import require
from pa_tutorial.bench.cpu_inputs import Batch, ColdCaches, reading
from pa_tutorial.bench.cpu_shapes import Shape
from pa_tutorial.bench.cpu_stages import cpu
from pa_tutorial.bench.machine import end_group
from pa_tutorial.bench.timing import interleaved

SECONDS = 120  # from the start of the process to its results


def paged_mask(batch: Batch) -> BlockMask:
    """Of each sequence, the blocks of the pool that it sees: its block table.

    The last one is seen in part; torch 2.13 compiles nothing on a CPU without blocks of both kinds.
    """
    block_size, num_seqs = batch.shape.block_size, len(batch.q)
    last = (batch.seq_lens - 1) // block_size  # logical index of the last block
    end = (batch.seq_lens - 1) % block_size  # offset of the last token in it
    one = torch.ones(num_seqs, 1, 1, dtype=torch.int32)
    seen_in_part, seen = (
        torch.zeros(num_seqs, 1, 1, len(batch.k_cache), dtype=torch.int32) for _ in range(2)
    )
    seen_in_part[:, 0, 0, 0] = batch.block_tables[torch.arange(num_seqs), last]
    seen[:, 0, 0, : batch.block_tables.shape[1]] = batch.block_tables
    return BlockMask.from_kv_blocks(
        one,
        seen_in_part,
        last[:, None, None].to(torch.int32),  # so many blocks come before the last
        seen,
        BLOCK_SIZE=(block_size, block_size),
        mask_mod=lambda sequence, head, query, slot: slot % block_size <= end[sequence],
        seq_lengths=(1, len(batch.k_cache) * block_size),
    )


def flex_step(batch: Batch) -> Callable[[], Tensor]:
    """One decode step, over a pool with the heads outside: [num_kv_heads, slots, head_size]."""
    compiled = torch.compile(flex_attention, dynamic=False)
    # It multiplies masked slots by 0, so there may be no NaN.
    pools = (cache.nan_to_num(0.0).transpose(0, 1).flatten(1, 2) for cache in batch.memory)
    k, v = (pool[None] for pool in pools)  # one pool for all sequences
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
    request = {**shape.as_row(), "seq_lens": shape.seq_lens, "rounds": rounds}
    process = subprocess.Popen(
        [sys.executable, "-m", __name__, json.dumps(request)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        start_new_session=True,  # it starts compilers, which must end with it
    )
    try:
        out, errors = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        end_group(process)
        process.communicate()
        return {"absent": f"not done after {seconds:.0f} seconds"}
    return json.loads(out) if process.returncode == 0 else {"absent": reason(errors)}


def reason(errors: str) -> str:
    """The line that says what is missing, of a long text."""
    lines = [line.strip() for line in errors.splitlines() if line.strip()]
    telling = [line for line in lines if "error:" in line.lower()]
    return (telling or lines or ["no reason given"])[-1][:300]


if __name__ == "__main__":
    request = json.loads(sys.argv[1])
    names = ("name", "num_heads", "num_kv_heads", "head_size", "block_size")
    chosen = Shape(
        seq_lens=tuple(request["seq_lens"]),
        dtype=getattr(torch, request["dtype"]),
        **{name: request[name] for name in names},
    )
    print(json.dumps(measure(chosen, request["rounds"])))
