"""Blanks in plain Python: sizes.py and pages.py. Loads no simulator."""

import ast
import builtins
import inspect
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from types import FunctionType
from typing import Any

import torch

from pa_tutorial.checks.comparing import Comparison
from pa_tutorial.checks.endless import stopped_if_endless
from pa_tutorial.checks.running import Trial
from pa_tutorial.exercises.blank import Blank, all_blanks
from pa_tutorial.exercises.numbers_in_words import first_element, first_number
from pa_tutorial.exercises.ours import is_unfinished, require_theirs
from pa_tutorial.exercises.reader_files import made, tree_of
from pa_tutorial.exercises.saving import saved_sources
from pa_tutorial.exercises.together import (
    Functions,
    helpers_of,
    is_named,
    is_theirs,
    others_of,
    with_answer,
)
from pa_tutorial.kernels.sources import functions_of, names_used, source_of

CALLER = "the other functions call it"
TAKER = "it"
ADVICE: dict[str, str] = {}  # on what costs more than it must


def trials(blank: Blank, draw: int, beside: Functions) -> list[Trial]:
    """The cases of the module named like the notebook, which take the file's namespace."""
    cases = import_module(f"{__package__}.{blank.notebook}").CASES[blank.name]
    return [among_others(blank, beside, trial) for trial in cases(draw)]


def among_others(blank: Blank, beside: Functions, trial: Trial) -> Trial:
    """A case that takes an answer, and puts it into the file with the helpers that it calls; None:
    ours."""

    def of_answer(run: Callable[..., Any] | None) -> Callable[..., Any] | None:
        def ran(answer: Callable | None) -> Any:
            require_theirs(answer)
            mine = with_answer(beside, blank.file, answer).get(blank.file, ())
            theirs = (*helpers_of(mine, blank.file), *mine)
            namespace = made(blank.file, ((blank.file, theirs),))
            with stopped_if_endless(theirs):
                return run(namespace)

        return run and ran

    runs = {name: of_answer(getattr(trial, name)) for name in ("run", "drawn", "costs")}
    return replace(trial, **runs)


def others(blank: Blank, function: Callable) -> Functions:
    """The reader's functions that take part: answers to blanks before this one.

    What a notebook gives for a start, until the reader writes it, is a later blank: there is ours
    in its place.
    """
    found = saved_functions(blank.file)
    found |= {one.__name__: one for one in others_of(function, blank.file).get(blank.file, ())}
    of_file = [one for one in all_blanks().values() if one.file == blank.file]
    before = {one.function for one in of_file[: of_file.index(blank)]}
    met = tuple(one for name, one in found.items() if name in before)
    return {blank.file: met} if met else {}


def why_not(blank: Blank, function: Callable, arguments: list[str]) -> str:
    """It calls a function of the reader's that would give way to another one of its name."""
    ours, met = functions_of(tree_of(blank.file)), answers_up_to(blank.notebook)
    for one in (*helpers_of([function], blank.file), function):
        for name in sorted(names_used(ast.parse(source_of(one).text)) & ours.keys() - met):
            other = one.__globals__.get(name)
            if is_named(other, name, blank.file) and is_theirs(other):
                theirs = [*inspect.signature(other).parameters]
                if theirs != ours[name]:
                    return (
                        f"it calls your {name}({', '.join(theirs)}); {blank.file}.py has another "
                        f"function of that name, {name}({', '.join(ours[name])}): rename yours"
                    )
    return ""


def answers_up_to(notebook: str) -> set[str]:
    """What a notebook and those before it ask for."""
    return {one.function for one in all_blanks().values() if one.notebook <= notebook}


def told(
    blank: Blank, trial: Trial, function: Callable | None, wrong: Comparison, first: Comparison
) -> tuple[str, None]:
    tell = first_number if "|" in trial.axes[-1] and len(trial.axes) == 1 else first_element
    return f"  {tell(wrong, trial.axes)}", None


def ours_of(blank: Blank, function: object = None) -> Callable:
    """Our answer, as if it stood in the reader's cell."""
    return in_the_cell_of(function, getattr(made(blank.file), blank.function))


def saved_of(blank: Blank, function: object = None) -> Callable | None:
    """The answer that the reader has saved, if they have; as if it stood in their cell."""
    found = saved_functions(blank.file)
    return in_the_cell_of(function, found[blank.function]) if blank.function in found else None


def saved_functions(file: str) -> dict[str, Callable]:
    """The reader's functions of a file, as they saved them."""
    theirs = saved_sources([file], vars(made(file))).get(file, {})
    module = made(file, ((file, tuple(theirs.values())),))
    return {name: getattr(module, name) for name in theirs}


def in_the_cell_of(function: object, other: Callable) -> Callable:
    """Another function that calls what there is where a function was defined, if all is there."""
    known = getattr(function, "__globals__", {})
    needed = names_used(ast.parse(source_of(other).text)) - {*dir(builtins)}
    if needed - known.keys():
        return other
    return FunctionType(other.__code__, known, other.__name__, other.__defaults__)


def dearest(blank: Blank, trial: Trial, answer: Callable, name: str) -> str:
    """What to ask oneself, if the blank's table says."""
    return blank.table.get("dear", "")


# Pictures -----------------------------------------------------------------------------------------


def seen(blank: Blank, function: Callable, trial: Trial, place: object) -> dict[str, Any]:
    """What it leaves in a case, and what it should leave; empty where that is the same."""
    if trial.drawn is None or is_unfinished(function):
        return {}
    yours, right = trial.drawn(function), trial.drawn(None)
    is_same = torch.equal(yours, right) if torch.is_tensor(right) else yours == right
    return {} if is_same else {"yours": yours, "right": right}


def draw(blank: Blank, shown: dict[str, Any], trial: Trial, is_right: bool) -> Any:
    return picture(blank, shown, f"After {trial.name}")


def draw_goal(blank: Blank, trial: Trial) -> Any:
    return picture(blank, {"right": trial.drawn(None)}, f"The goal, after {trial.name}")


def picture(blank: Blank, shown: dict[str, Any], title: str) -> Any:
    kind, *names = blank.picture.split()  # of weights: what rows and columns count
    if kind == "pool":
        from pa_tutorial.viz.blocks import draw_pools

        return draw_pools(shown, title)
    from pa_tutorial.viz.kv_cache import draw_weights

    return draw_weights(shown, title, *names)
