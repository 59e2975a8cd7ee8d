"""The trials of an exercise, from a table of its cases or from decode steps of the walk."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy, deepcopy
from typing import Any

import torch
from torch import Tensor

from pa_tutorial.checks.calls import AnswerError, require_written, same_numbers
from pa_tutorial.checks.cases import CASES
from pa_tutorial.checks.comparing import bounds_of
from pa_tutorial.checks.problem import DecodeProblem
from pa_tutorial.checks.running import Trial
from pa_tutorial.exercises.random_inputs import redrawn, reseeded

Trials = Callable[[int], list[Trial]]


def graded(
    cases: Sequence[tuple],
    run: Callable[..., Tensor],
    expected: Callable[..., Tensor],
    axes: tuple[str, ...] | Callable[..., tuple[str, ...]],
    again: Callable[..., tuple] | None = None,
    bound: float | Callable[..., float] = 0.0,
    drawn: Callable[..., Any] | None = None,
    costs: Callable[..., Mapping[str, int]] | None = None,
    goal: tuple[Callable[..., Tensor], tuple[str, ...]] | None = None,
) -> Trials:
    """Trials from a table.

    cases     (name, what it isolates, what its failure means, *numbers) each
    run       run(answer, *numbers) -> out, what the answer returned or left: a grader compares it
              in another process. AnswerError for what can't be compared, or where words say more
    expected  expected(*numbers) -> out; its name says where that comes from
    axes      those of out, or axes(*numbers)
    again     see `redrawn`; None: the draw stands behind the numbers, and `run` draws
    bound     the largest error that passes, or bound(*numbers)
    drawn     drawn(answer, *numbers) -> what the picture of a verdict shows
    costs     costs(answer, *numbers) -> quantity -> how much it takes
    goal      (of(*numbers), axes): what is shown in place of `out` before an answer is written
    """

    def trial(words: Sequence[str], numbers: Sequence) -> Trial:
        return Trial(
            *words,
            run=lambda answer: {"out": run(answer, *numbers)},
            references={name_of(expected): lambda: {"out": expected(*numbers)}},
            bounds={"out": bound(*numbers) if callable(bound) else bound},
            axes=axes(*numbers) if callable(axes) else axes,
            drawn=drawn and (lambda answer: drawn(answer, *numbers)),
            costs=costs and (lambda answer: costs(answer, *numbers)),
            goal=goal and (lambda: (goal[0](*numbers), goal[1])),
        )

    def trials(draw: int) -> list[Trial]:
        these = redrawn(cases, draw, again) if again else [(*case, draw) for case in cases]
        return [trial(case[:3], case[3:]) for case in these]

    return trials


# With other numbers than the notebook's, a right answer may round worse than any that the bounds
# were measured on; a largest score near 0 most of all.
ROOM, ROOM_OF_QK_MAX = 5, 100


def bounds_for(case_id: str, draw: int) -> dict[str, float]:
    """The bounds of the stages, with room for another draw."""
    room = {"qk_max": ROOM_OF_QK_MAX} if draw else {}
    usual = ROOM if draw else 1
    return {name: bound * room.get(name, usual) for name, bound in bounds_of(case_id).items()}


def name_of(expected: Callable) -> str:
    return getattr(expected, "__name__", "our solution").replace("_", " ")


def on_steps(
    cases: Sequence[str | DecodeProblem],
    run: Callable[[Callable, DecodeProblem], Any],
    expected: Callable[[DecodeProblem], Any] | None = None,
    axes: tuple[str, ...] = (),
    bound: float | None = None,
    meanings: Mapping[str, str] | None = None,
) -> Trials:
    """Trials from decode steps: problems, or names of checks/cases.

    run, expected  out, or several quantities by name; expected None: the oracle
    axes           those of another out than the step's
    bound          None: the bounds of the stages
    meanings       name of a case -> what its failure means for this exercise
    """

    def by_name(out: Any) -> Mapping[str, Any]:
        return out if isinstance(out, Mapping) else {"out": out}

    def trial(case: DecodeProblem, draw: int) -> Trial:
        source = name_of(expected) if expected else "the oracle"
        given = without_expected(case)
        return Trial(
            name=case.id,
            isolates=case.isolates,
            meaning=(meanings or {}).get(case.name, case.meaning),
            run=lambda answer: by_name(run(answer, given)),
            references={source: lambda: by_name((expected or DecodeProblem.expected)(case))},
            bounds=bounds_for(case.id, draw) if bound is None else {"out": bound},
            axes=axes or case.axes,
            problem=None if axes else case,
        )

    def trials(draw: int) -> list[Trial]:
        steps = (CASES[f"decode/{c}"] if isinstance(c, str) else c for c in cases)
        return [trial(reseeded(case, draw), draw) for case in steps]

    return trials


def without_expected(problem: DecodeProblem) -> DecodeProblem:
    """The same inputs without the right outputs: whoever compares has them."""
    other = copy(problem)
    object.__setattr__(other, "expected", None)  # it is frozen
    return other


def called(answer: Callable, *arguments: Any) -> Any:
    """What an answer returns for copies of the arguments; AnswerError if it changed one."""
    own = deepcopy(arguments)
    result = require_written(answer(*own))
    for mine, before in zip(own, arguments, strict=True):
        if not (same_numbers(mine, before) if isinstance(before, Tensor) else mine == before):
            raise AnswerError("it changed one of its arguments; it must only read them")
    return result


def results_of(answer: Callable, calls: Iterable[Sequence]) -> Tensor:
    """[num_calls] float64: the number that an answer returns for the arguments of each call.
    AnswerError, with the call, for anything else."""
    found = []
    for arguments in calls:
        result = called(answer, *arguments)
        if isinstance(result, str) or not hasattr(result, "__float__"):
            call = in_words(answer.__name__, arguments)
            raise AnswerError(f"{call} is {result!r:.60}; it must be a number")
        found.append(float(result))
    return torch.tensor(found, dtype=torch.float64)


def axes_of_calls(name: str, calls: Iterable[Sequence]) -> tuple[str]:
    """What each element of results_of is."""
    return ("".join(f"{in_words(name, arguments)}|" for arguments in calls),)


def in_words(name: str, arguments: Sequence) -> str:
    return f"{name}({', '.join(map(repr, arguments))})"


def require_tensors(result: Any, names: str, like: Sequence[Tensor]) -> list[Tensor]:
    """The tensors that an answer returned, in the shapes and the dtypes of `like`."""
    if not isinstance(result, tuple | list) or len(result) != len(like):
        raise AnswerError(f"it must return {len(like)} tensors: {names}")
    return [require_tensor(tensor, other) for tensor, other in zip(result, like, strict=True)]


def require_tensor(result: Any, like: Tensor) -> Tensor:
    """What an answer returned, if it is a tensor of that shape and dtype."""
    if require_shape(result, list(like.shape)).dtype != like.dtype:
        raise AnswerError(f"it returned {result.dtype}; it must return {like.dtype}")
    return result


def whole_numbers(result: Any, count: int, what: str = "whole numbers") -> list[int]:
    """`count` ints; a message for the author of an answer if it is something else."""
    if not isinstance(require_written(result), list | tuple) or len(result) != count:
        raise AnswerError(f"it returned {result!r:.60}; it must return {count} {what}")
    if not all(isinstance(number, int) and not isinstance(number, bool) for number in result):
        raise AnswerError(f"it returned {result!r:.60}; they must be ints: // and %")
    return list(result)


def require_shape(result: Any, shape: list[int]) -> Tensor:
    """What an answer returned, if it is a tensor of that shape; else a message for its author."""
    if not isinstance(require_written(result), Tensor):
        raise AnswerError(f"it returned a {type(result).__name__}; it must return a tensor")
    if list(result.shape) != shape:
        raise AnswerError(f"it returned the shape {list(result.shape)}; it must return {shape}")
    return result


def require_floats(result: Any, names: Sequence[str]) -> list[float]:
    """The answer as floats, one for each name; a message for its author if it is something else."""
    if (
        not isinstance(require_written(result), tuple | list)
        or len(result) != len(names)
        or not all(isinstance(number, int | float) for number in result)
    ):
        wanted = f"{len(names)} floats: {', '.join(names)}"
        raise AnswerError(f"it returned {result!r:.60}; it must return {wanted}")
    return [float(number) for number in result]
