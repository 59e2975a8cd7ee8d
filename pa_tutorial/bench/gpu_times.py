"""Times of every stage with a kernel and of its twin in C++, as fractions of a copy's bandwidth.

A decode step must read K and V once; nothing reads faster than the memory gives. So its bytes a
second stand beside those that a plain copy moves (read and written) in the same run. Steps are
timed as CUDA graphs, without the time that launching takes; that stands beside them.
"""

import time
from collections.abc import Callable
from itertools import groupby

import torch
from torch import Tensor

from pa_tutorial.bench.batches import Arguments, only, reference, seen_as_plain, worst_error
from pa_tutorial.bench.cold_batches import Pool, Workload
from pa_tutorial.bench.device import Device, Function, host_microseconds, this_gpu
from pa_tutorial.bench.gpu_grid import BOUNDS
from pa_tutorial.bench.gpu_triton import Setting, Tuned, Tuner
from pa_tutorial.bench.process_pool import in_a_line
from pa_tutorial.bench.timing import interleaved
from pa_tutorial.bench.variants import PAGED, Step, in_torch, sdpa
from pa_tutorial.kernels.launch import paged_attention_v1_vector, paged_attention_v2
from pa_tutorial.kernels.triton_launch import why_absent

BFLOAT16, GQA = {"dtype": torch.bfloat16}, {"num_kv_heads": 8}
# The target is for the first two. Neighbours with the same kind of blocks share a pool.
TARGETS = (Workload(64, 4096), Workload(64, 8192))
WORKLOADS = (
    *TARGETS,
    Workload(1, 512),
    Workload(16, 1024),
    Workload(1, 32_768),
    Workload(1, 131_072),
    Workload(64, 4096, **GQA),
    Workload(1, 32_768, **GQA),
    Workload(64, 4096, **BFLOAT16),
)
ROUNDS = 11
SLOW_MS = 50  # a step that takes longer is timed once, and not in a graph
MOST_CALLS = 16  # sequences, for stages in torch: some launch operations for each of them
FRACTION = 0.90  # of the copy's bandwidth: the target
TUNING = 0.25  # of the seconds: for the settings of Triton
AS_FAST = 1.02  # times the twin's time: the same, within the spread of the rounds
TWINS = {"cuda_v1_vector": "twin_v1", "cuda_v2": "twin_v2"}

Row = dict[str, object]


def judge(arguments: Arguments, workload: Workload) -> Callable[[Tensor], str | None]:
    """Takes the result of a step with these arguments; says what is wrong with it, None if it is
    right. Of the sequences it looks at the first and the last."""
    some = [0, workload.num_seqs - 1]
    expected = reference(**only(arguments, some))

    def whats_wrong(out: Tensor) -> str | None:
        error = worst_error(out[some], expected)
        right = error <= BOUNDS[workload.dtype]
        return None if right else f"its result has the error {error:.1e}"

    return whats_wrong


def steps_of(pool: Pool, workload: Workload) -> tuple[dict[str, list[Step]], Row, Row]:
    """Name -> one step for each set of inputs; and for the others: why they are left out (they
    cannot take this context), and what is wrong with them."""
    sets = pool.sets(workload)
    whats_wrong = judge(sets[0], workload)
    steps, left_out, wrong = {}, {}, {}
    for name, prepare in PAGED.items():
        try:
            made = [prepare(arguments) for arguments in sets]
            why = whats_wrong(made[0]())
        except ValueError as refused:
            left_out[name] = in_a_line(refused)
        except Exception as failed:  # of one kernel; the others are timed
            wrong[name] = in_a_line(failed)
        else:
            steps[name] = made
            if why:
                wrong[name] = why
    return steps, left_out, wrong


def tuned(pool: Pool, workload: Workload, tuner: Tuner) -> Tuned:
    """The Triton kernels by their fastest setting, over the same memory of the pool."""
    sets = [seen_as_plain(arguments) for arguments in pool.sets(workload)]
    return tuner.tune(sets, judge(sets[0], workload))


def measure(
    pool: Pool, workload: Workload, device: Device, tuner: Tuner, rounds: int = ROUNDS
) -> Row:
    """One workload: the time of each step, its bandwidth, and that of the copy."""
    steps, left_out, wrong = steps_of(pool, workload)
    triton = Tuned()
    if why := why_absent():
        left_out["triton"] = why
    else:
        triton = tuned(pool, workload, tuner)
        wrong |= triton.wrong
    if triton.steps:
        steps["triton"] = triton.steps
    num_sets = workload.num_sets(device)
    steps["sdpa"] = [sdpa(pool, workload, i) for i in range(num_sets)]
    times: dict[str, Row] = {}
    replays: dict[str, Function] = {
        "copy": device.captured([pool.copy(workload, i) for i in range(num_sets)])
    }
    for name, made in steps.items():
        made[0]()
        once = device.milliseconds(made[0])
        if once > SLOW_MS:
            times[name] = {"median_ms": round(once, 4), "rounds": 1}
            continue
        try:
            replays[name] = device.captured(made)
        except Exception as failed:
            wrong[name] = in_a_line(failed)
    if workload.num_seqs <= MOST_CALLS:
        for name, made in in_torch(pool, workload, pool.sets(workload)).items():
            try:  # the first call is slower
                once = min(device.milliseconds(made[i % 2]) for i in range(4))
            except Exception as failed:
                wrong[name] = in_a_line(failed)
            else:
                times[name] = {"median_ms": round(once, 4), "rounds": 1}
    for name, row in interleaved(replays, rounds, device.milliseconds).items():
        times[name] = {which: round(ms / num_sets, 5) for which, ms in row.items()}
    copied = 2 * workload.kv_bytes / times["copy"]["median_ms"]  # bytes a millisecond
    for name, row in times.items():
        moved = (2 if name == "copy" else 1) * workload.kv_bytes / row["median_ms"]
        row |= {"GB_per_s": round(moved / 1e6, 1), "fraction_of_copy": round(moved / copied, 4)}
    described = {
        "workload": str(workload),
        **{name: getattr(workload, name) for name in ("num_seqs", "seq_len")},
        "kv_bytes": workload.kv_bytes,
        "sets": num_sets,
    }
    said = {"left_out": left_out, "wrong": wrong, "triton_settings": triton.row}
    return described | {"times": times} | said


def shown(row: Row) -> str:
    """One workload on one line: percent of the copy's bandwidth; of Triton the setting too."""
    times, chosen = row["times"], row["triton_settings"]["chosen"]
    parts = [
        f"{name.removeprefix('cuda_')} {100 * of['fraction_of_copy']:.0f}"
        + (f" ({Setting(**chosen)})" if name == "triton" else "")
        for name, of in times.items()
        if name != "copy"
    ]
    return f"{row['workload']}: copy {times['copy']['GB_per_s']:.0f} GB/s; {', '.join(parts)} %"


def targets(row: Row) -> list[Row]:
    """Whether v1_vector and v2 read at FRACTION of the copy's bandwidth, and are no slower than
    their twins, where these were timed."""
    times = row["times"]
    found = []
    for name, twin in TWINS.items():
        if name not in times:
            continue
        fraction = times[name]["fraction_of_copy"]
        ratio = None
        if twin in times:
            ratio = round(times[name]["median_ms"] / times[twin]["median_ms"], 3)
        reached = fraction >= FRACTION and ratio is not None and ratio <= AS_FAST
        found.append(
            {
                "workload": row["workload"],
                "stage": name,
                "fraction_of_copy": fraction,
                "times_the_twin": ratio,
                "reached": reached,
            }
        )
    return found


def launch_cost(pool: Pool, workload: Workload, device: Device) -> dict[str, float]:
    """Microseconds on the host, which does not wait: of a prepared launch, of preparing it anew
    each time, and of replaying a graph with one launch."""
    arguments = pool.sets(workload)[0]
    functions = {name: PAGED[name](arguments) for name in ("cuda_v1_vector", "cuda_v2")}
    functions |= {
        "cuda_v1_vector, prepared anew": lambda: paged_attention_v1_vector(**arguments),
        "cuda_v2, prepared anew": lambda: paged_attention_v2(**arguments),
        "graph of cuda_v1_vector": device.captured([functions["cuda_v1_vector"]]),
    }
    return {name: host_microseconds(run, device) for name, run in functions.items()}


def pools(workloads: tuple[Workload, ...], device: Device) -> list[tuple[int, list[Workload]]]:
    """Neighbours with the same kind of blocks, and how large their pool must be; those that do not
    fit into the memory are not there."""
    groups = []
    for _, group in groupby(workloads, lambda w: (w.num_kv_heads, w.head_size, w.dtype)):
        sizes = {workload: workload.num_blocks(device) for workload in group}
        fit = {w: n for w, n in sizes.items() if Pool.num_bytes(w, n) < 0.8 * device.free_bytes}
        if fit:
            groups.append((max(fit.values()), list(fit)))
    return groups


def compare(
    seconds: float,
    device: Device | None = None,
    workloads: tuple[Workload, ...] = WORKLOADS,
    rounds: int = ROUNDS,
) -> dict[str, object]:
    """Every workload, as long as there is time; prints a line for each, the target and what a
    launch costs.

    returns  "workloads", "targets", "launch_us", "left_out", "wrong"
    """
    end = time.monotonic() + seconds
    device = device or this_gpu()
    tuner = Tuner(device, TUNING * seconds)
    rows, reached, launch_us = [], [], {}
    for num_blocks, group in pools(workloads, device):
        if time.monotonic() > end:
            break
        pool = Pool(group[0], num_blocks, device)
        for workload in group:
            if time.monotonic() > end:
                break
            row = measure(pool, workload, device, tuner, rounds)
            rows.append(row)
            print(shown(row))
            if workload in TARGETS:
                reached += targets(row)
        if not launch_us:
            launch_us = launch_cost(pool, min(group, key=lambda w: w.kv_bytes), device)
        del pool
    for target in reached:
        verdict = "reached" if target["reached"] else "MISSED"
        ratio = target["times_the_twin"]
        beside = "its twin was not timed" if ratio is None else f"{ratio} times its twin's time"
        print(
            f"target {verdict}: {target['stage']} at {target['workload']}: "
            f"{target['fraction_of_copy']:.0%} of the copy, {beside}"
        )
    if launch_us:
        costs = ", ".join(f"{name} {us:.0f}" for name, us in launch_us.items())
        print(f"launch, microseconds on the host: {costs}")
    done = {row["workload"] for row in rows}
    left_out = [str(workload) for workload in workloads if str(workload) not in done]
    if left_out:
        print(f"left out, no time or no memory: {'; '.join(left_out)}")
    wrong = [f"{row['workload']} {n}: {why}" for row in rows for n, why in row["wrong"].items()]
    for line in wrong:
        print(f"  {line}")
    return {
        "workloads": rows,
        "targets": reached,
        "launch_us": launch_us,
        "left_out": left_out,
        "wrong": wrong,
    }
