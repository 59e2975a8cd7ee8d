"""Small mistakes in the solutions of exercises and blanks, and which of them the cases let pass.

`python -m tests.exercises.mutants warp_tree` lists them for one of them, or for all: a line of
the solution, what stood in its place, and whether the answer is still right: its numbers and costs
are ours, on another draw and at other sizes.
"""

import ast
import signal
import sys
from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager, suppress
from difflib import unified_diff
from typing import Any

import torch
from torch import Tensor

from pa_tutorial.checks.running import Trial, judge, one_thread
from pa_tutorial.exercises import EXERCISES, Exercise, grade
from pa_tutorial.exercises.blank import Blank, all_blanks
from pa_tutorial.exercises.blank_verdict import verdict
from pa_tutorial.exercises.texts import BEGIN, END, code_lines
from pa_tutorial.printing import print_anything
from simt import global_traffic
from tests.exercises.blank_cells import function_of
from tests.mistakes import mistakes

SECONDS = 2  # of processor time; a case takes less, and a mutant may go on for ever
DRAWS, ANOTHER = (0, 1), 2
ROUNDING = 2e-6  # relative: 1e-6 more or less in a sum of at least 1 isn't seen


def places(tree: ast.AST) -> Iterator[tuple[ast.AST, Any, Any]]:
    """(node, what holds it: the fields of its parent or a list, and where there)."""
    for parent in ast.walk(tree):
        for name, value in ast.iter_fields(parent):
            held = ((value, i) for i in range(len(value))) if isinstance(value, list) else ()
            for holder, key in held or ((vars(parent), name),):
                if isinstance(holder[key], ast.AST):
                    yield holder[key], holder, key


def mutants(source: str, solution: Container[int]) -> dict[str, str]:
    """Text of each mutant -> what changed, with its line.

    solution  the lines that may change, counted from 1
    """
    tree = ast.parse(source)
    before, found = ast.unparse(tree), {}
    for node, holder, key in list(places(tree)):
        if getattr(node, "lineno", None) not in solution:
            continue
        for mistake in mistakes(node):
            holder[key] = mistake
            after = ast.unparse(ast.fix_missing_locations(tree))
            holder[key] = node
            if after != before:
                lines = unified_diff(before.splitlines(), after.splitlines(), n=0, lineterm="")
                found[after] = "\n".join([*lines][2:])
    return found


class EndlessError(KeyboardInterrupt):
    """A case took too long. `judge` takes every other error for a wrong answer."""


@contextmanager
def time_limit() -> Iterator[None]:
    def stop(*_: object) -> None:
        raise EndlessError

    previous = signal.signal(signal.SIGVTALRM, stop)
    # Again and again, because Python ignores what is raised while an object is finalized.
    signal.setitimer(signal.ITIMER_VIRTUAL, SECONDS, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, previous)


def passes(exercise: Exercise, text: str, draw: int) -> bool:
    """Whether an answer passes all cases of a draw. Raises EndlessError if one takes too long."""
    try:
        answer = exercise.answer(text)
    except Exception:
        return False
    with one_thread():
        for trial in exercise.trials(draw):
            with time_limit():
                if not judge(trial, answer)[0].passed:
                    return False
    return True


def accepted(exercise: Exercise) -> dict[str, bool]:
    """The changes of a solution that at least one draw accepts -> whether they are right."""
    found = {}
    for draw in (*DRAWS, ANOTHER):
        # without a time limit: it may import something large
        assert grade(exercise.name, draw=draw).ok
    lines = [line.strip() for line in exercise.source.splitlines()]
    solution = range(lines.index(BEGIN) + 1, lines.index(END) + 1)
    for text, change in mutants(exercise.source, solution).items():
        with suppress(EndlessError):
            good = [draw for draw in DRAWS if passes(exercise, text, draw)]
            if good:
                found[change] = good == [*DRAWS] and is_right(exercise, exercise.answer(text))
    return found


def accepted_in_kernel(blank: Blank) -> dict[str, bool]:
    """The changes of a blank's answer that its verdict calls right -> whether they are."""
    given, found = code_lines(blank.stub), {}
    lines = enumerate(blank.source.splitlines(), start=1)
    written = [number for number, line in lines if line.strip() not in given]
    for text, change in mutants(blank.source, written).items():
        answer = function_of(blank, text + "\n")
        if not verdict(blank, answer):
            found[change] = is_right(blank, answer)
    return found


def is_right(told: Exercise | Blank, answer: Callable) -> bool:
    """Whether an answer behaves as ours does on another draw; a blank's has other sizes, too."""
    for trial in told.trials(ANOTHER):
        (numbers, cost), (right, its_cost) = behaviour(trial, answer), behaviour(trial, None)
        if cost != its_cost or not all(is_near(numbers[name], right[name]) for name in right):
            return False
    return True


def behaviour(trial: Trial, answer: Callable | None) -> tuple[dict[str, Tensor], int]:
    """What an answer computes, and its memory transactions. None: our own answer."""
    trace = trial.trace and trial.trace(answer)
    cost = global_traffic(trace).total("transactions") if trace else 0
    return {name: torch.as_tensor(array) for name, array in trial.run(answer).items()}, cost


def is_near(found: Tensor, right: Tensor) -> bool:
    """Equal to the last bits of a float32, or to the last one of 16 bits, of the largest number."""
    rounding = torch.finfo(right.dtype).eps if right.dtype.itemsize == 2 else ROUNDING
    right = right.double()
    largest = float(right.nan_to_num(0, 0, 0).abs().max())
    return torch.allclose(found.double(), right, rtol=0, atol=rounding * largest, equal_nan=True)


if __name__ == "__main__":
    print_anything()
    for name in sys.argv[1:] or (*EXERCISES, *all_blanks()):
        blank = all_blanks().get(name)
        found = accepted_in_kernel(blank) if blank else accepted(EXERCISES[name])
        for change, right in found.items():
            print(f"{name}\n{change}\nright: {right}\n", flush=True)
