"""What got worse since the results that are committed: no part of CI, for noise is no mistake.

Absolute times are those of a day. What is compared is how many times longer something takes than
reading as many bytes once, in the same rounds.
"""

from collections.abc import Mapping

from pa_tutorial.bench.cpu_decode import READ
from pa_tutorial.bench.table import table

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


def worse(new: Results, old: Results) -> list[dict[str, object]]:
    """What takes more than WORSE times as long as before, the worst first."""
    before, now = relative(old), relative(new)
    rows = [
        {
            "shape": shape,
            "name": name,
            "before": round(before[shape, name], 2),
            "now": round(now[shape, name], 2),
            "times": round(now[shape, name] / before[shape, name], 2),
        }
        for shape, name in now
        if (shape, name) in before and now[shape, name] > WORSE * before[shape, name]
    ]
    return sorted(rows, key=lambda row: -row["times"])


def comparison(new: Results, old: Results) -> str:
    """A table of what got worse, or one sentence."""
    compared = len(relative(new).keys() & relative(old).keys())
    rows = worse(new, old)
    said = f"{len(rows)} of {compared} times are more than {WORSE} times as long as those committed"
    if not rows:
        return said + "."
    head = ["shape", "function", "reads before", "reads now", "times"]
    return f"{said}:\n" + table([head, *([str(value) for value in row.values()] for row in rows)])
