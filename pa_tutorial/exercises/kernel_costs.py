"""What a function of a kernel costs: what par counts in thread block 0 of a launch."""

import io
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import replace

import numpy as np

from pa_tutorial.checks.running import Trial
from pa_tutorial.exercises.texts import Told
from simt import Trace, global_traffic, shared_traffic
from simt.trace import NO_TURN

ADVICE = {
    "transactions": "Is each vec loaded at once?",
    "wavefronts": "Is each vec moved at once?",
    "instructions": "In Numba, a float32 times an integer is a float64, and so is 1 / x, or a "
    "number such as 0.5: write float32(1) / x.",
}


def dearest(blank: Told, trial: Trial, answer: Callable, name: str) -> str:
    """The line that takes most of a quantity, the function's own if any does; and advice, of vecs
    only where they are the task."""
    trace = traced(trial, answer)
    these = accesses(within(trace, blank.function), name)
    places = these.records.place

    def cost(place: int) -> int:
        return count(replace(these, records=these.records[places == place]), name)

    found = np.unique(places).tolist()
    own = [place for place in found if trace.sites[place].function == blank.function]
    site = trace.sites[max(own or found, key=cost)]
    unit = name.split()[-1]
    advice = ADVICE.get(unit, "") if blank.required or unit == "instructions" else ""
    return f"line {site.line} of {site.function}:  {site.code}\n{advice}".rstrip()


def taken(blank: Told, trial: Trial, answer: Callable | None) -> dict[str, int]:
    """What an answer takes in a case; ours for None."""
    return costs(blank, traced(trial, answer))


def traced(trial: Trial, answer: Callable | None) -> Trace:
    """What thread block 0 does in a case, without what it prints: the verdict has shown that."""
    with redirect_stdout(io.StringIO()):
        return trial.trace(answer).only(block=0)


def costs(blank: Told, trace: Trace) -> dict[str, int]:
    own = within(trace, blank.function)
    return {name: count(accesses(own, name), name) for name in blank.par}


def within(trace: Trace, function: str) -> Trace:
    """What is done in a function, or in one that it calls; in a kernel, everything."""
    if function == trace.kernel:
        return trace
    own = [site.function == function for site in trace.sites]
    calls = [site.text.startswith(f"{function}(") for site in trace.sites]
    below = [any(turn == NO_TURN and calls[place] for place, turn in way) for way in trace.ways]
    records = trace.records
    keep = np.array(own, bool)[records.place] | np.array(below, bool)[records.way]
    return replace(trace, records=records[keep])


def accesses(trace: Trace, name: str) -> Trace:
    """What of a trace a quantity counts."""
    match name.split():
        case ["float64", _]:
            return trace.only(kind="float64")
        case [("barriers" | "shuffles") as events]:
            return trace.only(kind=events.removesuffix("s"))
        case ["shared", _]:
            return trace.only(space="shared")
        case [array, _] if array in {one.name for one in trace.arrays}:
            return trace.only(array=array)
    return replace(trace, records=trace.records[:0])


def count(trace: Trace, name: str) -> int:
    unit = name.split()[-1]
    if unit == "wavefronts":
        return int(shared_traffic(trace).total(unit))
    if unit in ("transactions", "sectors"):
        return int(global_traffic(trace).total(unit))
    return trace.num_instructions // (trace.num_warps if unit == "barriers" else 1)
