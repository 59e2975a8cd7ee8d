"""How answers of notebook 10 are graded: two whole numbers, and what a tree may cost."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from pa_tutorial.checks.running import Trial
from pa_tutorial.exercises import kernels
from pa_tutorial.simt import Trace
from pa_tutorial.walk.calls import AnswerError, require_written


def pairs_trial(
    words: Sequence[str], solution: Callable, asked: Sequence[tuple], axes: tuple[str, ...]
) -> Trial:
    """A case of a function that returns two ints, exactly right for all arguments `asked`."""

    def run(function: Callable | None) -> dict[str, Tensor]:
        answers = [two_ints((function or solution)(*given)) for given in asked]
        return {"out": torch.tensor(answers)}

    references = {"the formula": lambda: run(solution)}
    return Trial(*words, run=run, references=references, bounds={"out": 0.0}, axes=axes)


def two_ints(answer: object) -> tuple[int, int]:
    if not isinstance(require_written(answer), tuple | list) or len(answer) != 2:
        raise AnswerError(f"it returned {answer!r:.60}; it must return two numbers")
    if not all(isinstance(number, int) for number in answer):
        raise AnswerError(f"it returned {answer!r:.60}; both must be ints: // and %")
    return tuple(answer)


def require_tree(num_warps: int, num_rows: int, trace: Trace) -> None:
    """Every warp but one leaves its rows, once; two barriers a level. num_rows: of a lane."""
    requests = (num_warps - 1) * num_rows
    kernels.require_atomics(trace, 0, "the order of the sum would change from run to run")
    kernels.require_barriers(trace, 2 * (num_warps - 1).bit_length())
    for kind in ("write", "read"):
        kernels.require_shared_requests(trace, kind, requests)
