"""What an unwritten blank shows: the picture of the right accesses, or numbers that it should give,
and par.

The numbers are the oracle's, of head 0: no kernel runs for them.
"""

from functools import lru_cache

import numpy as np

from pa_tutorial.checks.running import Trial
from pa_tutorial.exercises.blank import Blank
from pa_tutorial.exercises.par import par_of

MOST = 4  # numbers of an array


def show_goal(blank: Blank, is_drawn: bool) -> None:
    """Print the goal; in a notebook, draw it where the blank has a picture.

    is_drawn  it is there already, beside what the reader has so far
    """
    for line in filter(None, (numbers_of(blank), blank.par and par_of(blank))):
        print(line)
    if not is_drawn:
        draw(blank)


@lru_cache(maxsize=64)
def numbers_of(blank: Blank) -> str:
    """What the worked example should give, or a function that returns whole numbers; in a line."""
    trials = blank.trials()
    if blank.goal:
        example = next(trial for trial in trials if trial.problem)
        found = example.problem.expected()
        numbers = [f"{name} {in_words(found[name][0, 0])}" for name in blank.goal]
        return f"goal, in the worked example, head 0: {', '.join(numbers)}"
    return "" if blank.picture else of_whole_numbers(trials[0])


def of_whole_numbers(trial: Trial) -> str:
    """A case of a function that returns several, which have names."""
    (compute,) = trial.references.values()
    pairs = zip(trial.axes[0].split("|"), compute()["out"], strict=True)
    return f"goal, for {trial.name}: {', '.join(f'{name} is {number:g}' for name, number in pairs)}"


def in_words(numbers: np.ndarray) -> str:
    first = ", ".join(f"{number:.3f}" for number in numbers[:MOST])
    if len(numbers) == 1:
        return first
    return f"[{first}, …]" if len(numbers) > MOST else f"[{first}]"


def draw(blank: Blank) -> None:
    from IPython import get_ipython
    from IPython.display import display

    if blank.picture and get_ipython() is not None:
        from pa_tutorial.viz.accesses import draw_goal
        from pa_tutorial.viz.style import show

        kind, array = blank.picture.split()
        trace = blank.trials()[0].trace(None).only(array=array, kind=kind)
        display(show(draw_goal(trace, blank.picture)))
