"""Par: what a function costs, beside the best known.

A blank's table says what is counted, for example par = ["k_cache transactions", "barriers"]:

    ARRAY transactions, ARRAY sectors     memory transactions of an array in global memory
    ARRAY wavefronts, shared wavefronts   of an array in shared memory, or of all together
    barriers, shuffles, float64 instructions

These are counted in thread block 0 of the worked example, in the function and those that it calls;
all but barriers once for each warp (kernel_costs.py). In plain Python, a case counts:

    copies made, blocks in use, elements moved, tokens computed

The best known is what our answer takes, unless `best` has a smaller number. With `required`, an
answer isn't right until it takes no more than ours; otherwise par is a challenge.
"""

import io
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from functools import lru_cache

import numpy as np

from pa_tutorial.checks.calls import AnswerError
from pa_tutorial.checks.running import Trial
from pa_tutorial.exercises.texts import Told

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
PLAIN = {
    "copies made": ("copy made", "copies made"),
    "blocks in use": ("block in use", "blocks in use"),
    "elements moved": ("element moved", "elements moved"),
    "tokens computed": ("token computed", "tokens computed"),
}


def beside_right(blank: Told, function: Callable, trial: Trial) -> str:
    """For a right answer: par, and what the answer takes where that is more. Empty without par.

    trial  the first case
    """
    if not blank.par:
        return ""
    mine, best = costs(blank, trial, function), best_known(blank)
    more = {name: number for name, number in mine.items() if number > best[name]}
    fewer = {name: number for name, number in mine.items() if number < best[name]}
    line = par_of(blank)
    if more:
        ours = costs_of_ours(blank, 0)
        like = ", like ours" if more.items() <= ours.items() else ""
        advised = [name for name in more if name.split()[-1] in blank.craft.ADVICE]
        worse = [name for name in advised if mine[name] > ours[name]]
        dear = blank.craft.dearest(blank, trial, function, worse[0]) if worse else ""
        look = f"\nLook first at this: {dear}" if dear else ""
        return f"{line} Yours takes {spoken(more)}{like}. A challenge: can you reach par?{look}"
    return f"{line} Yours takes only {spoken(fewer)}." if fewer else f"{line} Yours is at par."


def costs(blank: Told, trial: Trial, answer: Callable | None) -> Costs:
    """What an answer takes in a case; ours for None."""
    with redirect_stdout(io.StringIO()):  # the verdict has shown it
        found = trial.costs(answer)
    return {name: found[name] for name in blank.par}


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
    return costs(blank, blank.trials()[number], None)


def required_trials(blank: Told, trials: Sequence[Trial]) -> list[Trial]:
    """A further case, if par is required: what the answer takes in some of the others."""
    named = [n for n, one in enumerate(trials) if one.problem and one.problem.name in MEASURED]

    def run(answer: Callable | None) -> Mapping[str, np.ndarray]:
        for number in (named or [0]) if answer else ():
            require_par(blank, trials[number], answer, costs_of_ours(blank, number))
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


def require_par(blank: Told, trial: Trial, answer: Callable, enough: Costs) -> None:
    """Raises AnswerError for the first quantity of which an answer takes more than is enough, in a
    kernel with the line that takes most."""
    for name, found in costs(blank, trial, answer).items():
        if found > enough[name]:
            raise AnswerError(
                f"the answer is right, but {blank.craft.TAKER} takes {spoken({name: found})}; "
                f"{enough[name]:,} {'is' if enough[name] == 1 else 'are'} enough\n"
                f"{blank.craft.dearest(blank, trial, answer, name)}".rstrip()
            )


def spoken(numbers: Costs) -> str:
    """ "16 memory transactions and 64 sectors for k_cache, 2 barriers" """
    phrases: dict[str, list[str]] = {}
    for name, number in numbers.items():
        if name in PLAIN:
            phrases.setdefault("", []).append(f"{number or 'no'} {PLAIN[name][number != 1]}")
            continue
        *array, unit = name.split()
        words = f"{number:,} {UNITS[unit]}" if number else f"no {UNITS[unit]}"
        phrases.setdefault("".join(array), []).append(words + ("" if number == 1 else "s"))
    return ", ".join(" and ".join(words) + of(array) for array, words in phrases.items())


def of(array: str) -> str:
    """What follows the numbers of an array."""
    found = {"": "", "shared": " in shared memory", "float64": " in float64"}
    return found.get(array, f" for {array}")
