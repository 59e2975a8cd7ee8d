"""Notebook 25: decode attention on this machine, with the kernel, its peers and the read bound."""

import os
import time
from collections.abc import Iterable, Mapping
from functools import partial

import torch
from tqdm import tqdm

from pa_tutorial.attention.step import DecodeStep
from pa_tutorial.bench.cpu_inputs import MAIN, Batch, ColdCaches, Shape, Step, reading
from pa_tutorial.bench.cpu_peers import peers
from pa_tutorial.bench.timing import host_milliseconds, interleaved, table
from pa_tutorial.kernels.cpu.backend import cpu_backend

READ = "read"  # the key of the time to read as many bytes once
SECONDS_PER_SHAPE = 1.5  # a slow shape gets fewer rounds, but no fewer than LEAST_ROUNDS
LEAST_ROUNDS = 3
MOST_KV_BYTES = 2**30  # K and V of one shape; less if memory is short
# The pool, its token-major form, contiguous K and V, a copy to gather into, and some room.
COPIES = 5

CONTEXTS = (128, 512, 2048, 8192, 32768, 131072)
BATCHES = (1, 4, 16, 64, 256)  # of 512 tokens
HEADS = (
    *((heads, torch.float32) for heads in ((16, 16), (32, 8), (32, 4), (32, 1))),
    *((heads, torch.bfloat16) for heads in ((16, 16), (32, 8))),
)
# 8 MiB of K and V: more than the caches of a core, less than the last cache of most machines
NOISE = Shape("noise", (512,), num_heads=16, num_kv_heads=16, head_size=128)


def cpu(batch: Batch) -> Step:
    """The compiled kernel. Its arguments are checked once, here, as in a server."""
    return cpu_backend.prepare(DecodeStep(*batch.arguments)).run


# Decode steps -----------------------------------------------------------------------------------


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
    """The largest K and V of one shape on this machine, so that all copies fit into half its
    memory, if the system says how much there is."""
    if not hasattr(os, "sysconf"):
        return MOST_KV_BYTES
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min(MOST_KV_BYTES, memory // 2 // COPIES)


def measure_shape(shape: Shape, rounds: int, cold: ColdCaches) -> dict[str, object]:
    """Times of everything on one shape, with cold caches, interleaved.

    rounds   the most rounds to run; at least 1
    returns  shape, kv_bytes, rounds; times: name -> median, lowest and highest milliseconds,
             including READ, which reads as many bytes once in the same rounds
    """
    batch = Batch(shape)
    steps = {READ: reading(batch), "cpu": cpu(batch)} | peers(batch)
    for step in steps.values():
        step()  # the first call compiles
    ms_per_round = sum(host_milliseconds(partial(cold, step)) for step in steps.values())
    affordable = int(1e3 * SECONDS_PER_SHAPE / ms_per_round) - 1  # one round isn't counted
    rounds = min(rounds, max(LEAST_ROUNDS, affordable))
    return {
        "shape": shape.as_row(),
        "kv_bytes": shape.kv_bytes,
        "rounds": rounds,
        "times": interleaved(steps, rounds, cold),
    }


def measure(rounds: int, shapes: Iterable[Shape] = (*MAIN, *sweeps())) -> dict[str, object]:
    """Returns rows, and left_out: the shapes that don't fit into memory. Prints both."""
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
    """The kernel, the read bound, the best on contiguous K and V, and the best gather."""
    lines = [["shape", "MiB", "read ms", "cpu ms", "of bound", "contiguous ms", "gather ms"]]
    words = "{name}: {num_seqs} x {seq_len}, {num_heads}/{num_kv_heads} x {head_size}, {dtype}"
    for row in rows:
        ms = {name: time["median_ms"] for name, time in row["times"].items()}
        line = [words.format(**row["shape"]), f"{row['kv_bytes'] / 2**20:.1f}", f"{ms[READ]:.3f}"]
        line += [f"{ms['cpu']:.3f}", f"{ms[READ] / ms['cpu']:.2f}"]
        for begins in (("sdpa", "matmul"), "gather_"):
            line.append(f"{min(ms[name] for name in ms if name.startswith(begins)):.3f}")
        lines.append(line)
    return table(lines)


# Noise ------------------------------------------------------------------------------------------


def measure_noise(rounds: int, shape: Shape = NOISE) -> dict[str, object]:
    """Times of the same call, 15 of each kind per round, in the order in which they were taken.

    seconds  when each pair began, counted from the first
    cold_ms  after the caches were filled with other data
    warm_ms  immediately afterwards, with as much of K and V in the caches as fits
    """
    step, cold = cpu(Batch(shape)), ColdCaches()
    step()  # compiles, or reads from disk what was compiled before
    times, start = {"seconds": [], "cold_ms": [], "warm_ms": []}, time.perf_counter()
    for _ in range(15 * rounds):
        times["seconds"].append(round(time.perf_counter() - start, 3))
        times["cold_ms"].append(round(cold(step), 4))
        times["warm_ms"].append(round(host_milliseconds(step), 4))
    for name in ("cold_ms", "warm_ms"):
        print(f"{name}: {min(times[name])} to {max(times[name])}")
    return {"shape": shape.as_row(), "kv_bytes": shape.kv_bytes, **times}
