"""Where the time of a decode step goes, before paging and after, from traces of torch.profiler.

    python -m pa_tutorial.bench.engine_profile --traces build/traces

writes the traces themselves, for chrome://tracing or ui.perfetto.dev.
"""

import argparse
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

from torch.profiler import ProfilerActivity, profile, record_function

from pa_tutorial.bench.engine_pasts import Pasts
from pa_tutorial.bench.engine_steps import prefilled
from pa_tutorial.bench.engine_workload import FULL, QUICK, Job, Workload

BEFORE_AND_AFTER = ("block_lists", "cpu")
BUILD, WRITE, ATTENTION = "build the past", "write K and V", "attention"
MODEL, OTHER = "the model around attention", "schedule, batch, choose tokens"
PARTS = (BUILD, WRITE, ATTENTION, MODEL, OTHER)
WARM_UP = 3  # decode steps before the one that is traced

Span = dict[str, object]  # name, start_ms since the beginning of the step, ms


def mark(owner: object, method: str, name: str) -> None:
    """From now on, each call of this method is a span of that name in a trace."""
    function: Callable = getattr(owner, method)

    def recorded(*arguments: object, **options: object) -> object:
        with record_function(name):
            return function(*arguments, **options)

    setattr(owner, method, recorded)


def mark_parts(job: Job) -> None:
    runner = job.engine.runner
    mark(job.engine, "step", OTHER)
    mark(runner, "run", MODEL)
    mark(runner, "attention", ATTENTION)
    if isinstance(runner, Pasts):
        mark(runner, "decode", BUILD)  # but attention: to make the past, and to give it back
        mark(runner, "write", WRITE)
    else:
        mark(runner.cache, "write", WRITE)


def flattened(spans: Sequence[Span]) -> list[Span]:
    """The step without overlaps, in order: at each moment the innermost span counts."""
    edges = sorted({edge for span in spans for edge in (span["start_ms"], end_of(span))})
    found: list[Span] = []
    for start, end in pairwise(edges):
        around = [span for span in spans if span["start_ms"] <= start and end <= end_of(span)]
        name = min(around, key=lambda span: span["ms"])["name"]
        if found and found[-1]["name"] == name:
            start = found.pop()["start_ms"]
        found.append({"name": name, "start_ms": start, "ms": end - start})
    return found


def end_of(span: Span) -> float:
    return span["start_ms"] + span["ms"]


def trace(job: Job, chrome_file: Path | None = None) -> list[Span]:
    """The spans of one decode step."""
    mark_parts(job)
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        job.engine.step()
    if chrome_file is not None:
        chrome_file.parent.mkdir(parents=True, exist_ok=True)
        profiler.export_chrome_trace(str(chrome_file))
    events = [event for event in profiler.events() if event.name in PARTS]
    start = min(event.time_range.start for event in events)  # microseconds
    spans = [
        {
            "name": event.name,
            "start_ms": (event.time_range.start - start) / 1e3,
            "ms": event.time_range.elapsed_us() / 1e3,
        }
        for event in events
    ]
    return [
        span | {"start_ms": round(span["start_ms"], 3), "ms": round(span["ms"], 3)}
        for span in flattened(spans)
    ]


def measure(workload: Workload, folder: Path | None = None) -> dict[str, object]:
    """For each of BEFORE_AND_AFTER: ms of the step, of each part, and the spans.

    The profiler takes time for each operator: the step before paging, which has many small ones,
    is longer than without it.
    folder  for the Chrome traces; None: they are not written
    """
    results = {}
    for name, job in prefilled(workload, BEFORE_AND_AFTER).items():
        for _ in range(min(WARM_UP, workload.new_tokens - 2)):
            job.decode()
        spans = trace(job, folder / f"{name}.json" if folder else None)
        parts = {part: sum(s["ms"] for s in spans if s["name"] == part) for part in PARTS}
        results[name] = {
            "ms": round(sum(parts.values()), 3),
            "unprofiled_ms": round(min(job.decode_ms), 3),
            "parts": {part: round(ms, 3) for part, ms in parts.items()},
            "spans": spans,
        }
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--traces", type=Path, default=Path("build/traces"), help="folder")
    parser.add_argument("--quick", action="store_true", help="a small model: does it run?")
    arguments = parser.parse_args()
    workload = QUICK if arguments.quick else FULL
    for name, result in measure(workload, arguments.traces).items():
        print(f"{name}: {result['ms']} ms, {result['parts']}")
    print(f"wrote {arguments.traces}")


if __name__ == "__main__":
    main()
