"""The shared test module: the same checks in notebooks, in pytest and in a course.

    from pa_tutorial.checks import attempt, check

    check("kv_cache")                 # our stage; raises CheckFailure if it is wrong
    check("kv_cache", my_attention)   # yours in its place
    check("cuda_v2", short=True)      # a few cases that catch every mistake in tests/wrong
    attempt("kv_cache", my_attention) # the same, but says "not yet" instead of raising
    check("block_manager")            # allocator, block tables, prefix cache, swap
    check("engine")                   # scheduler, batch, runner: requests served together

    qk_dot = attempt("qk_dot", qk_dot)   # a blank of a kernel: yours if it is right, else ours

Both return a Result, except for a blank: .ok, .passed, .total, .first_failure, .cases.
"""

from collections.abc import Sequence
from typing import Any

from pa_tutorial.arguments import require
from pa_tutorial.attention.backend import Backend
from pa_tutorial.checks.calls import Function
from pa_tutorial.checks.ladder import PAGED, STAGES, backend_named, load
from pa_tutorial.checks.running import CheckFailure, Trial, run_trials, stage_trials
from pa_tutorial.checks.showing import CaseResult, Result

__all__ = ["CaseResult", "CheckFailure", "Result", "attempt", "check"]


# Checks that aren't stages -> where their trials are; loaded on demand, like stages.
OTHERS = {
    "block_manager": "checks.block_manager_check:story_trials",
    "engine": "checks.engine_check:scene_trials",
}
OURS: Any = object()  # not None, because passing None is a reader's mistake, not a request for ours


def attempt(
    name: str,
    function: Function | Backend = OURS,
    draw: int = 0,
    short: bool = False,
    takes: Sequence[str] = (),
) -> Result | Function:
    """Run a stage or an exercise over all its cases; a wrong result never raises.

    qk_dot = attempt("qk_dot", qk_dot)  # a blank: yours if it is right, else ours

    name      a stage (`python -m pa_tutorial.checks --help` lists them), "block_manager",
              "engine", an exercise, or a blank of a kernel (notebooks 08 to 13)
    function  what to run in its place; by default the stage itself, or the exercise's solution.
              For a stage that reads blocks, a function of the seven fields of a DecodeStep, or a
              backend; for "block_manager" a class like PrefixCachingAllocator, for "engine" one
              like Engine
    draw      for exercises only: 0 means the notebook's cases, any other number the same cases
              with other numbers in them, for grading
    short     for stages that read blocks only: SHORT_CHECK (walk/cases.py) instead of all cases,
              because a simulated kernel takes about a second per case
    takes     for a function in place of a stage only: what else it takes by name. With "probe", a
              dict that it fills with qk, logits and the like, a failing check says which is wrong
              first; "partition_size" gives a v2 several partitions; "k_scale" and "v_scale" add the
              cases with an 8-bit cache, for a backend too

    Raises ValueError for an unknown name, for `takes` that aren't known, for a draw of anything but
    an exercise and for a short check where there is none, TypeError if `function` can't be called,
    ImportError for one of our stages that needs something this machine doesn't have.
    """
    if name not in (*STAGES, *OTHERS) and (blank := _blank(name)):
        from pa_tutorial.exercises.blank_verdict import go_on  # loads the simulator

        return go_on(blank, function)
    return _run(name, function, draw, short, takes)


SCALES = ("k_scale", "v_scale")  # our stages are tried with 8-bit caches too
TAKEN = sorted({"probe", *SCALES}.union(*(stage.cut_by for stage in STAGES.values())))


def _run(
    name: str, function: Function | Backend, draw: int, short: bool, takes: Sequence[str]
) -> Result:
    if function is OURS:
        if name in STAGES and (why := STAGES[name].why_absent()):
            raise ImportError(f"stage {name} cannot run here: {why}")
        takes = SCALES if name in STAGES else ()
        return run_trials(name, _trials(name, draw, short, takes), None)
    if not callable(function) and not isinstance(function, Backend):
        raise TypeError(f"function is {function!r}; it must be callable")
    return run_trials(name, _trials(name, draw, short, takes), function)


def check(
    name: str,
    function: Function | Backend = OURS,
    draw: int = 0,
    short: bool = False,
    takes: Sequence[str] = (),
    compiled: tuple[int, int] | bool = False,
) -> Result:
    """Like attempt, but raises CheckFailure (an AssertionError) if any case fails.

    compiled  for stages in CUDA: the compute capability, such as (9, 0), for which Numba compiles
              the kernels, and True for (8, 0); their PTX is run in place of their source. Compiling
              takes about 3 seconds per geometry. Races aren't looked for: the check of the
              source does that

    Returns a Result for a blank too.
    """
    if compiled:
        from pa_tutorial.kernels.compiled.backend import compiled_stage  # loads the simulator

        capability = (8, 0) if compiled is True else compiled
        takes = SCALES if function is OURS else takes
        tried = backend_named(name) if function is OURS and name in PAGED else function
        function = compiled_stage(name, tried, capability)
    result = _run(name, function, draw, short, takes)
    if not result.ok:
        raise CheckFailure(result)
    return result


def _blank(name: str) -> Any:
    from pa_tutorial.exercises.blank import all_blanks

    return all_blanks().get(name)


def has_short_check(name: str) -> bool:
    return name in STAGES and STAGES[name].is_paged


def _trials(name: str, draw: int, short: bool, takes: Sequence[str] = ()) -> list[Trial]:
    if draw and name in (*STAGES, *OTHERS):
        raise ValueError(f"draw is {draw}; it must be 0, because only exercises have other draws")
    if short and not has_short_check(name):
        raise ValueError(
            f"short is {short}; it must be False for {name!r}: only the stages that read blocks "
            "have a short check"
        )
    known = isinstance(takes, list | tuple) and all(name in TAKEN for name in takes)
    both = known and ("k_scale" in takes) == ("v_scale" in takes)
    allowed = f"a list with any of {', '.join(TAKEN)}, and with both scales or neither"
    require(both, "takes", repr(takes), allowed)
    if takes and name not in STAGES:
        raise ValueError(f"takes is {takes!r}; it must be empty for {name!r}, which isn't a stage")
    if name in STAGES:
        return stage_trials(STAGES[name], short, takes)
    if name in OTHERS:
        return load(OTHERS[name])()
    from pa_tutorial import exercises  # here, because exercises are made of trials

    if exercise := _blank(name) or exercises.find(name):
        return exercise.trials(draw)
    raise ValueError(
        f"name is {name!r}; it must be a stage ({', '.join(STAGES)}), {', '.join(OTHERS)} "
        f"or an exercise ({', '.join(exercises.EXERCISES)})"
    )
