"""The parts of `make bench`, by name: each prints what it found and returns it for the file."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch

from pa_tutorial.bench import (
    cpu_decode,
    cpu_flex,
    cpu_linear,
    cpu_steps,
    cpu_targets,
    engine_bench,
    gpu_times,
)
from pa_tutorial.bench.block_manager_bench import bytes_per_block, time_per_operation
from pa_tutorial.bench.cold_batches import Workload
from pa_tutorial.bench.cpu_shapes import B1, FULL, GQA, QUICK, S1
from pa_tutorial.bench.gpu_triton import why_not_timed
from pa_tutorial.bench.next_token import next_token
from pa_tutorial.bench.noise import measure as measure_noise
from pa_tutorial.bench.peak import peak_gflop_per_s
from pa_tutorial.bench.simulator import measure as measure_simulator
from pa_tutorial.bench.table import decode_table, targets_table

FLEX = (B1, GQA, S1)  # each is compiled anew, some ten seconds
ON_A_GPU = (Workload(64, 4096), Workload(1, 32_768))  # many sequences; one long one
GPU_SECONDS = 60


@dataclass(frozen=True)
class Section:
    """measure(rounds, quick) -> what goes into the JSON file under the name of the section."""

    what: str
    measure: Callable[[int, bool], object]


def decode(rounds: int, quick: bool) -> dict[str, object]:
    results = cpu_decode.measure_all(QUICK if quick else FULL, rounds)
    print(decode_table(results["rows"]))
    for sentence in results["left_out"]:
        print("left out:", sentence)
    flex = [cpu_flex.measure_apart(shape, rounds) for shape in FLEX[: 1 if quick else None]]
    for row in flex:
        print("flex_attention:", row.get("absent", row.get("times")))
    peak = peak_gflop_per_s(rounds, size=64 if quick else 1536)
    print(f"product of matrices in float32: {peak} GFLOP/s")
    return results | {"flex_attention": flex, "peak_gflop_per_s": peak}


def noise(rounds: int, quick: bool) -> dict[str, object]:
    results = measure_noise(15 * rounds)
    for name in ("cold_ms", "warm_ms"):
        print(f"{name}: {min(results[name])} to {max(results[name])}")
    return results


def targets(rounds: int, quick: bool) -> dict[str, object]:
    """Ratios; linearity; memory."""
    rounds = max(1, rounds // 3)  # five times over
    groups, runs = cpu_targets.groups(), cpu_targets.RUNS
    linearity = partial(cpu_linear.linearity, rounds)
    if quick:
        groups, runs = [cpu_targets.smaller(group) for group in groups[:1]], 1
        linearity = partial(linearity, contexts=(128, 256), batches=(1, 2))
    rows = cpu_targets.measure(rounds, groups, runs)
    print(targets_table(rows))
    grown = linearity()
    for by, growth in grown.items():
        print(f"{by}: largest time for its size by the smallest {growth['spread']}")
    memory = cpu_linear.memory()
    for row in memory:
        print(f"{row['bytes_per_partition']:,} bytes a partition, {row['shape']['name']}")
    return {"rows": rows, "linearity": grown, "memory": memory}


def of_next_token(rounds: int, quick: bool) -> list[dict[str, object]]:
    print(f"Time for the next token of TinyLM, median of {rounds}:")
    return next_token((16, 64) if quick else (16, 64, 128, 256), rounds)


def block_manager(rounds: int, quick: bool) -> dict[str, object]:
    print(f"Memory manager, median of {rounds}, by blocks in the pool:")
    pools = (1_000, 10_000) if quick else (1_000, 10_000, 100_000, 1_000_000)
    results = {
        "time": time_per_operation(pools, rounds),
        "bytes_per_block": bytes_per_block(pools[-1] if quick else 100_000),
    }
    print("  bytes of Python objects per block:", results["bytes_per_block"])
    return results


def simulator(rounds: int, quick: bool) -> dict[str, object]:
    rounds = 1 if quick else min(rounds, 5)
    print(f"Simulated kernels, median of {rounds}:")
    return measure_simulator(rounds)


def steps(rounds: int, quick: bool) -> object:
    return cpu_steps.measure(rounds, cpu_steps.QUICK if quick else cpu_steps.SHAPES)


def triton(rounds: int, quick: bool) -> dict[str, object]:
    """On a GPU only: the Triton kernels beside the others, as `make gpu` times them."""
    if why := why_not_timed():
        print(f"left out: {why}")
        return {"left_out": why}
    name = torch.cuda.get_device_name()
    print(f"{name}, bandwidth in % of a copy's:")
    workloads = (Workload(1, 512),) if quick else ON_A_GPU
    return {"gpu": name} | gpu_times.compare(GPU_SECONDS, workloads=workloads, rounds=rounds)


SECTIONS = {
    "decode": Section("decode attention: every stage, its peers and the read bound", decode),
    "targets": Section("what the CPU kernel has to reach", targets),
    "noise": Section("one call, timed again and again: every time is kept", noise),
    "steps": Section("the CPU kernel, built up step by step", steps),
    "next_token": Section("the next token of TinyLM, with and without a KV cache", of_next_token),
    "block_manager": Section("what the memory manager costs, by its pool", block_manager),
    "triton": Section("the Triton kernels, on a GPU, beside CUDA's and a copy", triton),
    "engine": Section("the serving engine, before paging and after", engine_bench.measure),
    "simulator": Section("what simulating a kernel costs", simulator),
}
