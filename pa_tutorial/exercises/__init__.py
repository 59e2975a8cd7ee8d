"""The blanks and exercises of the notebooks: text, stub, answer and wrong answers.

from pa_tutorial.exercises import attempt

fork = attempt("fork", fork)  # shows the verdict; yours if right, else what you saved, or ours
"""

import importlib
from collections.abc import Callable, Iterator, Sequence
from difflib import get_close_matches
from importlib.util import find_spec
from typing import Any

from pa_tutorial.arguments import whole_number
from pa_tutorial.checks.printed import FewLines
from pa_tutorial.checks.running import Trial, run_trials
from pa_tutorial.checks.showing import Result
from pa_tutorial.exercises.blank import Blank, all_blanks, blanks_of
from pa_tutorial.exercises.exercise import Exercise
from pa_tutorial.exercises.ours import is_ours
from pa_tutorial.exercises.texts import notebook_names
from pa_tutorial.tracebacks import InOneLine

__all__ = ["EXERCISES", "Exercise", "answers", "attempt", "drawn", "exercises_of", "find", "grade"]


# Told of each answer that attempt was given and whether it is right, once its verdict is shown:
# grades are made of these.
ON_ATTEMPT: list[Callable[[str, Callable[..., Any], bool], None]] = []


class NoSuchNameError(InOneLine, ValueError):
    """No blank or exercise has that name."""


class NoAnswerError(InOneLine, TypeError):
    """The answer to an exercise is no function."""


def _own(notebook: str) -> tuple[Exercise, ...]:
    """The exercises of NN_topic.py, the module named like the notebook."""
    module = f"{__name__}.{notebook}"
    return importlib.import_module(module).EXERCISES if find_spec(module) else ()


def exercises_of(notebook: str) -> tuple[Blank | Exercise, ...]:
    """Its blanks, then its exercises. Loads only this notebook's module."""
    return (*blanks_of(notebook), *_own(notebook))


def _in_order() -> Iterator[Exercise]:
    """The exercises of every notebook, one after the other."""
    for notebook in notebook_names():
        yield from _own(notebook)


def find(name: str) -> Exercise | None:
    """The exercise of that name. Loads the modules up to its own: the first know no kernels."""
    return next((exercise for exercise in _in_order() if exercise.name == name), None)


def attempt(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Show the verdict on a reader's function. Returns it if it is right, else the one that they
    have saved, or ours.

    name  a blank, of pages (notebooks 01 to 06 and 20) or of a kernel (08 to 14), or an exercise

    A blank is tried among the reader's other functions.

    A wrong answer never raises. Raises ValueError for an unknown name, TypeError if the answer to
    an exercise can't be called.
    """
    if blank := all_blanks().get(name):
        from pa_tutorial.exercises.blank_verdict import go_on

        goes_on, function = go_on(blank, function)
        is_theirs = not is_ours(function)
    else:
        goes_on, is_theirs = _shown(named(name), function)
    for told in ON_ATTEMPT if is_theirs else ():
        told(name, function, goes_on is function)
    return goes_on


def _shown(exercise: Exercise, function: Callable[..., Any]) -> tuple[Callable[..., Any], bool]:
    """Show the verdict on an answer to an exercise. Returns what the notebook goes on with, and
    whether the answer is the reader's."""
    if function is exercise.solution:
        print(f"{exercise.name}: still ours.")
        return function, False
    printed = FewLines()
    result = graded(exercise.name, printed.of(exercise.trials()), function)
    printed.say_how_many_more()
    show(result)
    return (function if result.ok else exercise.solution), True


def grade(name: str, function: Callable[..., Any] | None = None, draw: int = 0) -> Result:
    """Run an answer over all cases of an exercise or blank; a wrong one never raises.

    function  None: our own answer
    draw      0 means the notebook's cases, any other number the same cases with other numbers in
              them, for grading

    Raises ValueError for an unknown name or a draw below 0, TypeError if the answer can't be called
    or the draw is no whole number.
    """
    return graded(name, named(name).trials(whole_number("draw", draw, 0)), function)


def graded(name: str, trials: Sequence[Trial], function: Callable[..., Any] | None) -> Result:
    if function is not None and not callable(function):
        raise NoAnswerError(f"function is {function!r}; it must be callable")
    return run_trials(name, trials, function)


def named(name: str) -> Blank | Exercise:
    """The blank or exercise of that name. Raises ValueError for another name."""
    if found := all_blanks().get(name) or find(name):
        return found
    known = [*all_blanks(), *(exercise.name for exercise in _in_order())]
    near = get_close_matches(str(name), known, n=1)
    hint = f"did you mean {near[0]!r}?" if near else "no blank and no exercise has that name"
    raise NoSuchNameError(f"name is {name!r}; {hint}")


def drawn(name: str, kernel: Callable[..., Any]) -> object:
    """A picture: what a reader's kernel does in the first case of an exercise; dotted: what ours
    does."""
    from pa_tutorial.viz.style import Shown
    from pa_tutorial.viz.threads import draw_threads

    exercise = named(name)
    return Shown(draw_threads(exercise.drawn(), kernel, exercise.solution))


def show(result: Result) -> None:
    """In a notebook as a table, elsewhere as text."""
    from IPython import get_ipython
    from IPython.display import display

    print(result) if get_ipython() is None else display(result)


class Answers:
    """All answers of a notebook, open, as a notebook shows them."""

    def __init__(self, answered: tuple[Blank | Exercise, ...]) -> None:
        self.answered = answered

    def _repr_markdown_(self) -> str:
        return "\n\n".join(one.open_answer for one in self.answered)


def answers(number: int) -> Answers:
    """The answers to the blanks and exercises of a notebook, all at once: `answers(10)`.

    Raises ValueError for a notebook that has neither.
    """
    names = {int(name[:2]): name for name in notebook_names()}
    if number not in names:
        known = ", ".join(map(str, names))
        raise ValueError(f"number is {number}; it must be one of {known}")
    return Answers(exercises_of(names[number]))


def __getattr__(name: str) -> dict[str, Exercise]:
    """EXERCISES, all by name, when somebody asks for all."""
    if name != "EXERCISES":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = {exercise.name: exercise for exercise in _in_order()}
    return globals()[name]
