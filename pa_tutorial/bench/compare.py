"""What got worse since the results that are committed: no part of CI, for noise is no mistake.

Absolute times are those of a day. What is compared is how many times longer something takes than
reading as many bytes once, in the same rounds.
"""

from collections.abc import Mapping

from pa_tutorial.bench.cpu_decode import READ
from pa_tutorial.bench.timing import table

WORSE = 1.2  # times as long as before: less is noise

Results = Mapping[str, object]  # the content of a JSON file


def relative(results: Results) -> dict[tuple[str, str], float]:
    """(shape in words, name) -> its median by that of reading the same bytes."""
    found = {}
    for row in results.get("decode", {}).get("rows", []):
        shape = ", ".join(str(value) for value in row["shape"].values())
        bound = row["times"][READ]["median_ms"]
        for name, time in row["times"].items():
            found[shape, name] = time["median_ms"] / bound
    return found


def comparison(new: Results, old: Results) -> str:
    """A table of what got worse, or one sentence."""
    before, now = relative(old), relative(new)
    rows = worse(before, now)
    compared = len(now.keys() & before.keys())
    said = f"{len(rows)} of {compared} times are more than {WORSE} times as long as before"
    head = ["shape", "function", "reads before", "reads now", "times"]
    return f"{said}:\n{table([head, *rows])}" if rows else said + "."


def worse(before: Mapping, now: Mapping) -> list[list[str]]:
    """What takes more than WORSE times as long as before, the worst first."""
    times = {name: now[name] / before[name] for name in now.keys() & before.keys()}
    names = sorted((name for name in times if times[name] > WORSE), key=times.get, reverse=True)
    return [[*name, *(f"{of[name]:.2f}" for of in (before, now, times))] for name in names]
