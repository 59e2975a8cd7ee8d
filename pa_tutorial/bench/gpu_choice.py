"""v1 or v2: both kernels over a grid of batches and contexts, beside vLLM's rule.

The points go into the JSON file as pa_tutorial.kernels.choose takes them:

    measured = [Measured(**point) for point in json.load(file)["choice"]["points"]]
    choose(num_seqs, num_heads, max_seq_len, measured)
"""

import time

from pa_tutorial.bench.cold_batches import Pool, Workload
from pa_tutorial.bench.device import Device, this_gpu
from pa_tutorial.bench.timing import interleaved
from pa_tutorial.bench.variants import PAGED
from pa_tutorial.kernels.choose import Measured, choose

BATCHES = (1, 2, 4, 8, 16, 32, 64, 128)
CONTEXTS = (512, 1024, 2048, 4096, 8192)
MOST_TOKENS = 64 * 8192  # of a batch: 8.6 GB of K and V
ROUNDS = 7
STAGES = {"v1": "cuda_v1_vector", "v2": "cuda_v2"}

Point = dict[str, int | float]


def workloads() -> list[Workload]:
    """The smallest first: they take the least time."""
    grid = [Workload(batch, context) for batch in BATCHES for context in CONTEXTS]
    fit = [w for w in grid if w.num_seqs * w.seq_len <= MOST_TOKENS]
    return sorted(fit, key=lambda w: w.kv_bytes)


def measure(pool: Pool, workload: Workload, device: Device, rounds: int = ROUNDS) -> Point:
    """Milliseconds of one step of both kernels, in the form that Measured takes."""
    sets = pool.sets(workload)
    replays = {
        name: device.captured([PAGED[stage](arguments) for arguments in sets])
        for name, stage in STAGES.items()
    }
    times = interleaved(replays, rounds, device.milliseconds)
    return {
        "num_seqs": workload.num_seqs,
        "num_heads": workload.num_heads,
        "max_seq_len": workload.seq_len,
        **{name: round(row["median_ms"] / len(sets), 5) for name, row in times.items()},
    }


def slower(points: list[Point]) -> list[tuple[Measured, str, float]]:
    """Where vLLM's rule picks the slower kernel: the point, its choice, and how many times the
    faster one's time it takes. The worst first."""
    found = []
    for measured in (Measured(**point) for point in points):
        rule = choose(measured.num_seqs, measured.num_heads, measured.max_seq_len)
        if rule != measured.faster:
            times = getattr(measured, rule) / getattr(measured, measured.faster)
            found.append((measured, rule, round(times, 2)))
    return sorted(found, key=lambda each: -each[2])


def compare(
    seconds: float,
    device: Device | None = None,
    grid: list[Workload] | None = None,
    rounds: int = ROUNDS,
) -> dict[str, object]:
    """Measures as many points as there is time and memory for; prints where the rule is slower.

    returns  "points", "left_out" and "rule_is_slower"
    """
    end = time.monotonic() + seconds
    device = device or this_gpu()
    grid = workloads() if grid is None else grid
    sizes = {w: w.num_blocks(device) for w in grid}
    fit = [w for w in grid if Pool.num_bytes(w, sizes[w]) < 0.8 * device.free_bytes]
    points: list[Point] = []
    if fit:
        pool = Pool(fit[0], max(sizes[w] for w in fit), device)
        for workload in fit:
            if time.monotonic() > end:
                break
            points.append(measure(pool, workload, device, rounds))
    left_out = len(grid) - len(points)
    unlike = slower(points)
    print(f"vLLM's rule picks the slower kernel at {len(unlike)} of {len(points)} points")
    for point, rule, times in unlike[:5]:
        print(f"  {point.num_seqs} x {point.max_seq_len}: {rule}, {times} times the other's time")
    if left_out:
        print(f"  left out, no time or no memory: {left_out} of {len(grid)} points")
    named = [
        {"num_seqs": p.num_seqs, "max_seq_len": p.max_seq_len, "rule": rule, "times": times}
        for p, rule, times in unlike
    ]
    return {"points": points, "rule_is_slower": named, "left_out": left_out}
