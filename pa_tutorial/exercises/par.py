"""Par: what a function costs, beside the best known.

A blank's table says what is counted, for example par = ["k_cache transactions", "barriers"]:

    ARRAY transactions, ARRAY sectors     memory transactions of an array in global memory
    ARRAY wavefronts, shared wavefronts   of an array in shared memory, or of all together
    barriers, shuffles, float64 instructions

These are counted in thread block 0 of the worked example, in the function and those that it calls;
all but barriers once for each warp. The best known is what our answer takes, unless `best` has a
smaller number. With `required`, an answer isn't right until it takes no more than ours; otherwise
par is a challenge.
"""

import io
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import replace
from functools import lru_cache

import numpy as np

from pa_tutorial.checks.calls import AnswerError
from pa_tutorial.checks.running import Trial
from pa_tutorial.exercises.texts import Told
from simt import Trace, global_traffic, shared_traffic
from simt.trace import NO_TURN

Costs = Mapping[str, int]  # quantity -> how many

MEASURED = "worked_example", "gqa"  # two shapes, in which par is required
UNITS = {
    "transactions": "memory transaction",
    "sectors": "sector",
    "wavefronts": "wavefront",
    "barriers": "barrier",
    "shuffles": "shuffle",
    "instructions": "instruction",
}
ADVICE = {
    "transactions": "Is each vec loaded at once?",
    "wavefronts": "Is each vec moved at once?",
    "instructions": "In Numba, a float32 times an integer is a float64, and so is 1 / x, or a "
    "number such as 0.5: write float32(1) / x.",
}


def beside_right(blank: Told, function: Callable, trial: Trial) -> str:
    """For a right answer: par, and what the answer takes where that is more. Empty without par.

    trial  the first case
    """
    if not blank.par:
        return ""
    trace, best = traced(trial, function), best_known(blank)
    mine = costs(blank, trace)
    more = {name: number for name, number in mine.items() if number > best[name]}
    fewer = {name: number for name, number in mine.items() if number < best[name]}
    line = par_of(blank)
    if more:
        ours = costs_of_ours(blank, 0)
        like = ", like ours" if more.items() <= ours.items() else ""
        worse = [name for name in more if mine[name] > ours[name] and name.split()[-1] in ADVICE]
        look = f"\nLook first at this: {dearest(blank, trace, worse[0])}" if worse else ""
        return f"{line} Yours takes {spoken(more)}{like}. A challenge: can you reach par?{look}"
    return f"{line} Yours takes only {spoken(fewer)}." if fewer else f"{line} Yours is at par."


def par_of(blank: Told) -> str:
    """The best known, in a sentence."""
    needed = ", required" if blank.required else ""
    of_step = any(trial.problem for trial in blank.trials())
    where = "the worked example" if of_step else "the first case"
    return f"par{needed}, in {where}: {spoken(best_known(blank))}."


def best_known(blank: Told) -> Costs:
    return {**costs_of_ours(blank, 0), **blank.best}


@lru_cache(maxsize=64)
def costs_of_ours(blank: Told, number: int) -> Costs:
    """number: of the case"""
    return taken(blank, blank.trials()[number], None)


def required_trials(blank: Told, trials: Sequence[Trial]) -> list[Trial]:
    """A further case, if par is required: what the answer takes in some of the others."""
    measured = [n for n, one in enumerate(trials) if one.problem and one.problem.name in MEASURED]

    def run(answer: Callable | None) -> Mapping[str, np.ndarray]:
        for number in measured if answer else ():
            require_par(blank, traced(trials[number], answer), costs_of_ours(blank, number))
        return {"out": np.zeros(1)}

    trial = Trial(
        name="what it takes",
        isolates="par",
        meaning="Its numbers are right, but it takes more than it must.",
        run=run,
        references={"our answer": lambda: {"out": np.zeros(1)}},
        bounds={"out": 0},
        axes=("par",),
        trace=trials[0].trace,
    )
    return [trial] if blank.required else []


def require_par(blank: Told, trace: Trace, enough: Costs) -> None:
    """Raises AnswerError for the first quantity of which an answer takes more than is enough, with
    the line that takes most."""
    for name, found in costs(blank, trace).items():
        if found > enough[name]:
            raise AnswerError(
                f"the answer is right, but thread block 0 takes {spoken({name: found})}; "
                f"{enough[name]:,} {'is' if enough[name] == 1 else 'are'} enough\n"
                f"{dearest(blank, trace, name)}"
            )


def dearest(blank: Told, trace: Trace, name: str) -> str:
    """The line that takes most of a quantity, the function's own if any does; and advice, of vecs
    only where they are the task."""
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


def taken(blank: Told, trial: Trial, answer: Callable | None) -> Costs:
    """What an answer takes in a case; ours for None."""
    return costs(blank, traced(trial, answer))


def traced(trial: Trial, answer: Callable | None) -> Trace:
    """What thread block 0 does in a case, without what it prints: the verdict has shown that."""
    with redirect_stdout(io.StringIO()):
        return trial.trace(answer).only(block=0)


def costs(blank: Told, trace: Trace) -> Costs:
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


def spoken(numbers: Costs) -> str:
    """ "16 memory transactions and 64 sectors for k_cache, 2 barriers" """
    phrases: dict[str, list[str]] = {}
    for name, number in numbers.items():
        *array, unit = name.split()
        words = f"{number:,} {UNITS[unit]}" if number else f"no {UNITS[unit]}"
        phrases.setdefault("".join(array), []).append(words + ("" if number == 1 else "s"))
    return ", ".join(" and ".join(words) + of(array) for array, words in phrases.items())


def of(array: str) -> str:
    """What follows the numbers of an array."""
    found = {"": "", "shared": " in shared memory", "float64": " in float64"}
    return found.get(array, f" for {array}")
