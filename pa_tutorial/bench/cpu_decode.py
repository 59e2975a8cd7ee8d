"""Decode attention on this machine: the kernel, its peers, and how fast memory can be read."""

import os
from collections.abc import Callable, Iterable, Mapping
from functools import partial

import torch
from tqdm import tqdm

from pa_tutorial.attention.paged import paged_gather, paged_online
from pa_tutorial.attention.step import DecodeStep
from pa_tutorial.bench.cpu_inputs import MAIN, Batch, ColdCaches, Shape, Step, reading
from pa_tutorial.bench.cpu_peers import peers
from pa_tutorial.bench.timing import host_milliseconds, interleaved, table
from pa_tutorial.kernels.cpu_launch import cpu_backend

READ = "read"  # the time to read as many bytes once, among the times of a row
SLOWEST_MS = 500.0  # what takes longer in its first call is left out; the kernel itself never
SECONDS_A_SHAPE = 1.5  # rounds become fewer where one takes long, but not fewer than 3
LEAST_ROUNDS = 3
MOST_KV_BYTES = 2**30  # of K and V of one shape, and less where memory is short
# The pool, its token-major form, K and V side by side, and two copies to gather into; and room.
COPIES = 6
MOST_REPEATED = 2**30  # bytes of K and V, repeated for each query head by the stages in torch

CONTEXTS = (128, 512, 2048, 8192, 32768, 131072)
BATCHES = (1, 4, 16, 64, 256)  # of 512 tokens
HEADS = (
    *((heads, torch.float32) for heads in ((16, 16), (32, 8), (32, 4), (32, 1))),
    *((heads, torch.bfloat16) for heads in ((16, 16), (32, 8))),
)


def sweeps() -> list[Shape]:
    """One sequence of every length, and batches of every size, for all kinds of heads."""
    lengths = [("context", (seq_len,)) for seq_len in CONTEXTS]
    lengths += [("batch", (512,) * num_seqs) for num_seqs in BATCHES]
    return [
        Shape(name, seq_lens, *heads, head_size, dtype)
        for heads, dtype in HEADS
        for head_size in (64, 128)
        for name, seq_lens in lengths
    ]


def most_kv_bytes() -> int:
    """How large K and V of one shape may be on this machine."""
    return min(MOST_KV_BYTES, available_bytes() // COPIES)


def available_bytes() -> int:
    """Memory that is free now, as far as the system tells it; else half of all."""
    if os.path.exists("/proc/meminfo"):
        with open("/proc/meminfo", encoding="utf-8") as lines:
            return next(1024 * int(s.split()[1]) for s in lines if s.startswith("MemAvailable"))
    if hasattr(os, "sysconf"):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    return COPIES * MOST_KV_BYTES


def cpu(batch: Batch) -> Step:
    """The compiled kernel. Its arguments are checked once, here, as a server would do."""
    return cpu_backend.prepare(DecodeStep(*batch.arguments)).run


def stages(batch: Batch) -> dict[str, Step]:
    """The kernel, and where K and V for each query head are not too large, the stages in torch."""
    steps = {"cpu": cpu(batch)}
    shape = batch.shape
    if 8 * shape.num_heads * max(shape.seq_lens) * shape.head_size <= MOST_REPEATED:
        steps["paged_gather"] = partial(paged_gather, *batch.arguments)
        steps["paged_online"] = partial(paged_online, *batch.arguments)
    return steps


def fast_enough(steps: Mapping[str, Callable]) -> tuple[dict[str, Callable], dict[str, str]]:
    """The steps that do not take long, and why each of the others is left out."""
    kept, left_out = {}, {}
    for name, step in steps.items():
        taken = host_milliseconds(step)
        if taken <= SLOWEST_MS or name in ("cpu", READ):  # their first call compiles
            kept[name] = step
        else:
            left_out[name] = f"{taken:,.0f} ms, over {SLOWEST_MS:,.0f}"
    return kept, left_out


def measure_shape(shape: Shape, rounds: int, cold: ColdCaches) -> dict[str, object]:
    """One row: the times of everything on one shape, with cold caches, interleaved.

    rounds   at most; at least 1
    returns  shape, kv_bytes, rounds; times: name -> median, lowest and highest milliseconds,
             with READ: reading as many bytes once, in the same rounds; left_out: name -> why
    """
    batch = Batch(shape)
    steps, left_out = fast_enough({READ: reading(batch)} | stages(batch) | peers(batch))
    a_round = sum(cold(step) + host_milliseconds(cold.flush) for step in steps.values())
    affordable = int(1e3 * SECONDS_A_SHAPE / a_round) - 1  # one round is not counted
    rounds = min(rounds, max(LEAST_ROUNDS, affordable))
    return {
        "shape": shape.as_row(),
        "kv_bytes": shape.kv_bytes,
        "rounds": rounds,
        "times": interleaved(steps, rounds, cold),
        "left_out": left_out,
    }


def measure(rounds: int, shapes: Iterable[Shape] = (*MAIN, *sweeps())) -> dict[str, object]:
    """rows; left_out: the shapes that memory has no room for, in words. Prints both."""
    most, cold, rows, left_out = most_kv_bytes(), ColdCaches(), [], []
    for shape in (bar := tqdm(shapes, desc="decode", unit="shape")):
        bar.set_postfix_str(str(shape))
        if shape.kv_bytes <= most:
            rows.append(measure_shape(shape, rounds, cold))
        else:
            sizes = shape.kv_bytes / 2**20, most / 2**20
            left_out.append("{}: K and V are {:,.0f} MiB, over {:,.0f}".format(shape, *sizes))
    print(decode_table(rows))
    for sentence in left_out:
        print("left out:", sentence)
    return {"rows": rows, "left_out": left_out}


def decode_table(rows: Iterable[Mapping]) -> str:
    """The kernel beside the read bound, the best on contiguous K and V, and the best gather."""
    lines = [["shape", "MiB", "read ms", "cpu ms", "of bound", "contiguous ms", "gather ms"]]
    words = "{name}: {num_seqs} x {seq_len}, {num_heads}/{num_kv_heads} x {head_size}, {dtype}"
    for row in rows:
        ms = {name: time["median_ms"] for name, time in row["times"].items()}
        line = [words.format(**row["shape"]), f"{row['kv_bytes'] / 2**20:.1f}", f"{ms[READ]:.3f}"]
        line += [f"{ms['cpu']:.3f}", f"{ms[READ] / ms['cpu']:.2f}"]
        for begins in (("sdpa", "matmul"), "gather_"):
            best = min((ms[name] for name in ms if name.startswith(begins)), default=None)
            line.append("-" if best is None else f"{best:.3f}")
        lines.append(line)
    return table(lines)
