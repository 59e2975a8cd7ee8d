"""The section `engine` of `make bench`: what paging brings to a small serving engine."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict

from pa_tutorial.bench import (
    engine_batch_size,
    engine_jobs,
    engine_memory,
    engine_profile,
    engine_steps,
)
from pa_tutorial.bench.engine_ways import GATHERS
from pa_tutorial.bench.engine_workload import FULL, QUICK
from pa_tutorial.bench.table import table

QUICK_RESERVED = 2


def measure(rounds: int, quick: bool) -> dict[str, object]:
    """workload, steps (of each way), jobs (whole ones), memory, batch_size, profile."""
    workload = QUICK if quick else FULL
    steps = engine_steps.measure(workload)
    print(steps_table(steps))
    for name, why in steps["left_out"].items():
        print(f"left out: {name}: {why}")
    jobs = engine_jobs.measure(workload, steps, steps.pop("tokens"))
    print(jobs_table(jobs))
    memory = engine_memory.measure(workload, QUICK_RESERVED if quick else engine_memory.RESERVED)
    print(f"At once in {memory['bytes'] / 2**20:.0f} MiB of K and V:")
    print(rows_table(memory["rows"]))
    counts = engine_batch_size.QUICK_COUNTS if quick else engine_batch_size.COUNTS
    batch_size = engine_batch_size.measure(workload, rounds, counts)
    print(rows_table(batch_size))
    profile = engine_profile.measure(workload)
    for name, result in profile.items():
        print(f"profile of {name}: {result['ms']} ms, {result['parts']}")
    return {
        "workload": asdict(workload),
        "steps": steps,
        "jobs": jobs,
        "memory": memory,
        "batch_size": batch_size,
        "profile": profile,
    }


def steps_table(steps: Mapping) -> str:
    """Every way with its time and how many times that of the stage cpu; then the targets."""
    times = steps["times"]
    cpu = times["cpu"]["median_ms"]
    lines = [["decode step", "ms", "lowest", "highest", "times cpu"]]
    for name, time in times.items():
        words = steps["words"][name]
        if name in GATHERS and name == steps["best_gather"]:
            words += " (best)"
        milliseconds = [f"{time[key]:.1f}" for key in ("median_ms", "lowest_ms", "highest_ms")]
        lines.append([words, *milliseconds, f"{time['median_ms'] / cpu:.2f}"])
    targets = [["target", "ratio", "asked", "reached"]]
    for row in steps["targets"]:
        reached = "yes" if row["reached"] else "NO"
        targets.append([row["name"], f"{row['ratio']:.2f}", f"{row['must_reach']:g}", reached])
    return table(lines) + "\n" + table(targets)


def jobs_table(jobs: Mapping) -> str:
    lines = [["whole job, once", "s", "tokens/s", "decode tokens/s"]]

    def add(words: str, row: Mapping) -> None:
        keys = ("seconds", "tokens_per_s", "decode_tokens_per_s")
        lines.append([words, *(f"{row[key]:.1f}" if key in row else "-" for key in keys)])

    add("one at a time: cpu", jobs["one_at_a_time"])
    for kind in ("offline", "online"):
        for row in jobs[kind]:
            add(f"{kind}: {row['words']}", row)
    for row in jobs["shared_prompt"]:
        found = "with" if row["prefix_caching"] else "without"
        add(f"{row['shared_len']} tokens shared, {found} prefix caching", row)
    return table(lines)


def rows_table(rows: Sequence[Mapping]) -> str:
    """Rows with the same keys, as they are."""
    return table([list(rows[0]), *([str(value) for value in row.values()] for row in rows)])
