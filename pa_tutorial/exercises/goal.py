"""What an unwritten blank shows: the picture of the right accesses, or numbers that it should give,
and par.

The numbers are the oracle's, of head 0: no kernel runs for them.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

from pa_tutorial.checks.comparing import to_float64
from pa_tutorial.checks.diagnosing import name_place
from pa_tutorial.checks.running import Trial
from pa_tutorial.exercises.blank import Blank
from pa_tutorial.exercises.par import par_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST = 4  # numbers of an array


def show_goal(blank: Blank, is_drawn: bool) -> None:
    """Print the goal; in a notebook, draw it where the blank has a picture.

    is_drawn  it is there already, beside what the reader has so far
    """
    for line in filter(None, (numbers_of(blank), blank.par and par_of(blank))):
        print(line)
    from IPython import get_ipython

    if blank.picture and not is_drawn and get_ipython() is not None:
        show_figure(blank.craft.draw_goal(blank, blank.trials()[0]))


def show_figure(figure: "Figure") -> None:
    from IPython.display import display

    from pa_tutorial.viz.style import show

    display(show(figure))


@lru_cache(maxsize=64)
def numbers_of(blank: Blank) -> str:
    """What the worked example should give, or a function that returns whole numbers; in a line."""
    trials = blank.trials()
    if blank.goal:
        example = next(trial for trial in trials if trial.problem)
        found = example.problem.expected()
        numbers = [f"{name} {in_words(found[name][0, 0])}" for name in blank.goal]
        return f"goal, in the worked example, head 0: {', '.join(numbers)}"
    return "" if blank.picture else of_numbers(trials[0])


def of_numbers(trial: Trial) -> str:
    """What a function should give in a case: numbers that have names, or the first row of an
    array."""
    (compute,) = trial.references.values()
    shown, axes = trial.goal() if trial.goal else (compute()["out"], trial.axes)
    rows = to_float64(shown)
    row = rows.reshape(-1, rows.shape[-1])[0].tolist()
    if "|" in axes[-1] and len(row) > 1:
        names = axes[-1].split("|")
        wanted = ", ".join(f"{name} is {in_words([n])}" for name, n in zip(names, row, strict=True))
    else:
        wanted = in_words(row)
    sizes = zip(axes, rows.shape, strict=True)
    places = [name_place(axis, 0) for axis, size in [*sizes][:-1] if size > 1]
    return f"goal, for {', '.join([trial.name, *places])}: {wanted}"


def in_words(numbers: Sequence[float]) -> str:
    is_whole = all(number == int(number) for number in numbers)
    spoken = "{:,.0f}" if is_whole else "{:.3f}"
    first = ", ".join(map(spoken.format, numbers[:MOST]))
    if len(numbers) == 1:
        return first
    return f"[{first}, …]" if len(numbers) > MOST else f"[{first}]"
