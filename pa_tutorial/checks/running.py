"""Running trials and collecting their result, for check() and attempt()."""

import linecache
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from pa_tutorial.checks.calls import AnswerError, Function, OnlyIfRightError
from pa_tutorial.checks.cases import CASES, SHORT_CHECK
from pa_tutorial.checks.comparing import Comparison, bounds_of, compare
from pa_tutorial.checks.diagnosing import diagnose
from pa_tutorial.checks.ladder import STAGES, Stage
from pa_tutorial.checks.progress import with_progress
from pa_tutorial.checks.showing import CaseResult, Result
from pa_tutorial.tracebacks import ShortInNotebooks, own_frames


@dataclass(frozen=True)
class Trial:
    """One case, prepared: how to run a function on it, and the expected result.

    run         function -> quantity -> array
    references  name of the reference -> function that computes quantity -> array
    bounds      quantity -> largest error that passes
    axes        what each dimension of `out` counts
    trace       (function, thread block) -> what a kernel with it accesses; None if nobody asks
    drawn       function -> what the picture of a verdict shows; None: there is no picture
    costs       function -> quantity -> how much it takes; None if that is no matter
    goal        what an unwritten answer is shown, and what each of its dimensions counts; None: the
                expected `out`
    """

    name: str
    isolates: str
    meaning: str
    run: Callable[[Function | None], Mapping[str, Any]]
    references: Mapping[str, Callable[[], Mapping[str, Any]]]
    bounds: Mapping[str, float]
    axes: tuple[str, ...]
    problem: object = None
    trace: Callable[..., Any] | None = None
    drawn: Callable[[Function | None], Any] | None = None
    costs: Callable[[Function | None], Mapping[str, int]] | None = None
    goal: Callable[[], tuple[Any, tuple[str, ...]]] | None = None


class CheckFailure(ShortInNotebooks, AssertionError):
    """A check found something wrong. `result` holds every case; the message is the table."""

    def __init__(self, result: Result) -> None:
        super().__init__(f"\n{result}")
        self.result = result


def describe(error: BaseException) -> str:
    """What went wrong, for the author of the function."""
    try:
        text = str(error)
    except Exception:
        text = "(its message can't be read)"
    if isinstance(error, AnswerError):
        return text
    lines = () if isinstance(error, ShortInNotebooks) else _last_line(error)
    return "\n".join([f"it raised {type(error).__name__}: {text}", *lines])


def _last_line(error: BaseException) -> Iterator[str]:
    """The author's last line that ran and, for an index error, the integer variables in it."""
    places = [(f.f_code.co_name, f, n) for f, n in own_frames(error)]
    for name, frame, number in places[-1:]:
        code = linecache.getline(frame.f_code.co_filename, number).strip()
        yield f"  line {number} of {name}:  {code}"
        words = {word: frame.f_locals.get(word) for word in re.findall(r"\w+", code)}
        numbers = [f"{word} = {value}" for word, value in words.items() if type(value) is int]
        if isinstance(error, IndexError) and numbers:
            yield f"  where {', '.join(numbers)}"


def is_outside(error: BaseException) -> bool:
    """Whether an index is out of bounds, in Python or in a kernel, or belongs to another thread."""
    finding = getattr(error, "finding", None)
    return isinstance(error, IndexError) or (finding and finding.check in ("memory", "race"))


@contextmanager
def torch_settings_kept() -> Iterator[None]:
    """Restore torch's default dtype, default device and random state afterwards."""
    dtype, device = torch.get_default_dtype(), torch.get_default_device()
    with torch.random.fork_rng(devices=[]):
        try:
            yield
        finally:
            torch.set_default_dtype(dtype)
            if torch.get_default_device() != device:
                torch.set_default_device(device)


@contextmanager
def one_thread() -> Iterator[None]:
    """Use one thread, because small matrices don't need more, and threads wait on busy cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def numbers_of(trial: Trial, function: Function | None) -> tuple[Mapping[str, Any], str]:
    """What a function returns in a case, and what is wrong with it if that is right."""
    try:
        return trial.run(function), ""
    except OnlyIfRightError as error:
        return error.found, describe(error)


def judge(trial: Trial, function: Function | None) -> tuple[CaseResult, list[Comparison]]:
    """Run one trial. Anything the function does wrong is a failure, not an error of the check."""
    described = (trial.name, trial.isolates, trial.meaning)
    at_work = ""  # what to say if the running reference fails; empty for the function itself
    references = {}
    try:
        for name, compute in trial.references.items():
            at_work = f"{name}, the reference for this case, gave no result: "
            with torch_settings_kept():  # building a model draws random numbers
                references[name] = compute()
        at_work = ""
        with torch_settings_kept():
            actual, only_if_right = numbers_of(trial, function)
        comparisons = compare(actual, references, trial.bounds)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # even SystemExit, because the function may do anything
        refused = isinstance(error, AnswerError)
        why = at_work + describe(error)
        failed = CaseResult(
            *described, False, None, trial.bounds["out"], why, refused, is_outside(error)
        )
        return failed, []
    failed = [comparison for comparison in comparisons if not comparison.passed]
    outputs = failed or comparisons
    deciding = max(
        (c for c in outputs if c.quantity == "out"), key=lambda c: c.worst, default=outputs[0]
    )
    if only_if_right and not failed:
        bound = trial.bounds["out"]
        return CaseResult(*described, False, None, bound, only_if_right, True), comparisons
    diagnosis = diagnose(failed, trial.axes, trial.problem) if failed else ""
    case = CaseResult(*described, not failed, deciding.worst, deciding.bound, diagnosis)
    return case, comparisons


def run_trials(title: str, trials: Sequence[Trial], function: Function | None) -> Result:
    """Run every trial and return the overall result."""
    if not trials:
        raise ValueError(f"{title} has no cases to run")
    with one_thread():
        cases = tuple(judge(trial, function)[0] for trial in with_progress(title, trials))
    return Result(title, tuple(trials[0].references), cases)


def stage_trials(stage: Stage, short: bool = False, takes: Sequence[str] = ()) -> list[Trial]:
    """The cases of a stage, each against the oracle and against the stages before it.

    short  only the cases of SHORT_CHECK, in its order
    takes  what a function in the stage's place takes by name: see Candidate. Without the scales,
           there are no cases with an 8-bit cache
    """
    return [
        stage_trial(stage, case_id, takes=takes)
        for case_id in (SHORT_CHECK if short else CASES)
        if stage.is_checked_on(CASES[case_id])
        and ("k_scale" in takes or not getattr(CASES[case_id], "cache_dtype", None))
    ]


def stage_trial(
    stage: Stage,
    case_id: str,
    bounds: Mapping[str, float] | None = None,
    takes: Sequence[str] = (),
) -> Trial:
    """One case of a stage. Pass `bounds` to replace the recorded ones while recording them."""
    problem = CASES[case_id]

    before = {
        name: partial(STAGES[name].run, problem)
        for name in stage.checked_against
        if STAGES[name].reads(problem)
    }
    return Trial(
        name=case_id,
        isolates=problem.isolates,
        meaning=problem.meaning,
        run=lambda function: stage.run(problem, function, takes),
        references={"the oracle": problem.expected, **before},
        bounds=bounds or bounds_of(case_id),
        axes=problem.axes,
        problem=problem,
    )
