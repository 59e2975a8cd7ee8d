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
    """What takes more than WORSE times as long as before, the worst first; or one sentence."""
    before, now = relative(old), relative(new)
    both = now.keys() & before.keys()
    worse = sorted(
        (name for name in both if now[name] > WORSE * before[name]),
        key=lambda name: before[name] / now[name],
    )
    said = f"{len(worse)} of {len(both)} times are more than {WORSE} times as long as before"
    if not worse:
        return said + "."
    rows = [["shape", "function", "reads before", "reads now", "times"]]
    for name in worse:
        numbers = before[name], now[name], now[name] / before[name]
        rows.append([*name, *(f"{number:.2f}" for number in numbers)])
    return f"{said}:\n{table(rows)}"
