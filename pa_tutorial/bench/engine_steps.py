"""A decode step of the engine, with K and V kept in each of the ways."""

import random
import statistics
import time
from collections.abc import Iterable, Mapping, Sequence

from tqdm import tqdm

from pa_tutorial.bench.cpu_targets import Target
from pa_tutorial.bench.engine_ways import GATHERS, WAYS, left_out
from pa_tutorial.bench.engine_workload import Job, Workload, offline_job, require_same_tokens

NOT_COUNTED = 1  # decode steps of a job that are taken before the clock is looked at
SETTLE_SECONDS = 3.0  # the system takes back the memory of the prefill, and disturbs meanwhile

TARGETS = (
    Target("times as fast as copying blocks in Python", ("block_lists",), ("cpu",), 15.0),
    Target("times as fast as contiguous pasts", ("contiguous",), ("cpu",), 6.0),
    Target("times as fast as the best gather", GATHERS, ("cpu",), 2.0),
)


def prefilled(workload: Workload, names: Iterable[str]) -> dict[str, Job]:
    """A job for each way, after the step that computes all prompts."""
    model = workload.model()
    jobs = {}
    for name in tqdm(list(names), desc="prefill", unit="way"):
        way = WAYS[name]
        jobs[name] = offline_job(model, workload, way.stage, way.runner)
        jobs[name].prefill()
    return jobs


def decode_interleaved(jobs: Mapping[str, Job], rounds: int, seed: int = 0) -> None:
    """So many decode steps of every job: one each in every round, in random order."""
    order, rng = list(jobs), random.Random(seed)
    for _ in tqdm(range(rounds), desc="decode", unit="round"):
        rng.shuffle(order)
        for name in order:
            jobs[name].decode()


def summary(times: Sequence[float]) -> dict[str, float]:
    """Median, lowest and highest, as `interleaved` gives them."""
    return {
        "median_ms": round(statistics.median(times), 4),
        "lowest_ms": round(min(times), 4),
        "highest_ms": round(max(times), 4),
    }


def target_rows(times: Mapping[str, Mapping]) -> list[dict[str, object]]:
    """Each target with its ratio of medians, and whether it is reached."""
    rows = []
    for target in TARGETS:
        ratio = target.ratio(times)
        rows.append(
            {
                "name": target.name,
                "ratio": round(ratio, 3),
                "must_reach": target.limit,
                "at_least": target.at_least,
                "reached": target.is_reached(ratio),
            }
        )
    return rows


def best_gather(times: Mapping[str, Mapping]) -> str:
    return min(GATHERS, key=lambda name: times[name]["median_ms"])


def measure(workload: Workload) -> dict[str, object]:
    """times: name -> of a decode step; targets; and what was left out.

    Every way runs the whole job once, so that there are new_tokens - 1 decode steps of each, the
    steps of all ways interleaved. Raises ArithmeticError if two ways generate different tokens.
    """
    jobs = prefilled(workload, WAYS)
    time.sleep(SETTLE_SECONDS if workload.num_requests > 8 else 0)
    decode_interleaved(jobs, workload.new_tokens - 1)
    require_same_tokens({n: job.tokens for n, job in jobs.items() if n != "no_attention"})
    times = {name: summary(job.decode_ms[NOT_COUNTED:]) for name, job in jobs.items()}
    return {
        "rounds": workload.new_tokens - 1 - NOT_COUNTED,
        "times": times,
        "words": {name: WAYS[name].words for name in WAYS},
        "best_gather": best_gather(times),
        "targets": target_rows(times),
        "left_out": left_out(),
        "tokens": jobs["cpu"].tokens,
    }
