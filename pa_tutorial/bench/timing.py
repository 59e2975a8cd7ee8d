"""Times you can trust: interleaved, in random order, as medians with their spread."""

import json
import random
import re
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from pa_tutorial.bench.this_machine import describe_machine

RESULTS = Path("benchmarks")


def host_milliseconds(function: Callable[[], object]) -> float:
    """Wall-clock time of one call."""
    start = time.perf_counter()
    function()
    return 1e3 * (time.perf_counter() - start)


def interleaved(
    functions: Mapping[str, Callable[[], object]],
    rounds: int,
    milliseconds: Callable[[Callable[[], object]], float] = host_milliseconds,
) -> dict[str, dict[str, float]]:
    """Run every function once per round, in random order, after one round that isn't counted.

    milliseconds  measures one call
    returns       name -> median, lowest and highest time in milliseconds
    """
    order = list(functions)
    times: dict[str, list[float]] = {name: [] for name in order}
    rng = random.Random(0)
    for round_index in range(rounds + 1):
        rng.shuffle(order)
        for name in order:
            taken = milliseconds(functions[name])
            if round_index > 0:
                times[name].append(taken)
    return {
        name: {
            "median_ms": round(statistics.median(values), 4),
            "lowest_ms": round(min(values), 4),
            "highest_ms": round(max(values), 4),
        }
        for name, values in times.items()
    }


def results_path(name: str, folder: Path = RESULTS) -> Path:
    """The file with the results of the machine with that name."""
    return folder / f"{re.sub('[^a-z0-9]+', '-', name.lower()).strip('-')}.json"


def read_results(name: str, folder: Path = RESULTS) -> dict[str, object]:
    """The results written earlier; empty if there are none."""
    path = results_path(name, folder)
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def write_results(measurements: dict[str, object], name: str, folder: Path = RESULTS) -> Path:
    """Write benchmarks/<name>.json: the measurements, and the machine."""
    folder.mkdir(parents=True, exist_ok=True)
    path = results_path(name, folder)
    content = {"machine": describe_machine(), **measurements}
    text = json.dumps(content, indent=1, ensure_ascii=False)
    path.write_text(text + "\n", encoding="utf-8", newline="\n")
    return path


def table(rows: Sequence[Sequence[str]]) -> str:
    """Lines with aligned columns, the first to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])] for row in rows)
    return "\n".join("  ".join(line).rstrip() for line in lines)
