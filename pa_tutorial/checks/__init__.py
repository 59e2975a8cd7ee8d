"""The shared test module: the same checks in notebooks, in pytest and in a course.

    from pa_tutorial.checks import check

    check("kv_cache")                 # our stage; raises CheckFailure if it is wrong
    check("kv_cache", my_attention)   # yours in its place
    check("kv_cache", my_attention, raises=False)  # the result, right or wrong
    check("cuda_v2", short=True)      # a few cases that catch every mistake in tests/wrong
    check("block_manager", mine.Pages)  # who has which block; ours without mine.Pages
    check("prefix_cache")             # ours: known blocks are found again; swap, sliding windows
    check("engine")                   # scheduler, batch, runner: requests served together

It returns a Result: .ok, .passed, .total, .first_failure, .cases.
"""

from collections.abc import Sequence
from typing import Any

from pa_tutorial.arguments import require, require_bool
from pa_tutorial.attention.backend import Backend
from pa_tutorial.checks.calls import Function
from pa_tutorial.checks.ladder import PAGED, STAGES, backend_named, load
from pa_tutorial.checks.running import CheckFailure, Trial, run_trials, stage_trials
from pa_tutorial.checks.showing import CaseResult, Result

__all__ = ["CaseResult", "CheckFailure", "Result", "check"]


# Checks that aren't stages -> where their trials are; loaded on demand, like stages.
OTHERS = {
    "block_manager": "checks.block_manager_check:story_trials",
    "prefix_cache": "checks.prefix_cache_check:prefix_trials",
    "engine": "checks.engine_check:scene_trials",
}
OURS: Any = object()  # not None, because passing None is a reader's mistake, not a request for ours
SCALES = ("k_scale", "v_scale")  # our stages are tried with 8-bit caches too
TAKEN = sorted({"probe", *SCALES}.union(*(stage.cut_by for stage in STAGES.values())))


def check(
    name: str,
    function: Function | Backend = OURS,
    short: bool = False,
    takes: Sequence[str] = (),
    compiled: tuple[int, int] | bool = False,
    raises: bool = True,
) -> Result:
    """Run a stage, or a function in its place, over all its cases.

    name      a stage (`python -m pa_tutorial.checks --help` lists them), "block_manager",
              "prefix_cache" or "engine"
    function  what to run in its place; by default the stage itself. For a stage that reads blocks,
              a function of the fields of a DecodeStep, by name, or a backend; for "block_manager"
              what makes an object of the protocol Pages from num_blocks and block_size; for
              "prefix_cache" a class like PrefixCachingAllocator, for "engine" one like Engine
    short     for stages that read blocks only: SHORT_CHECK (cases.py) instead of all cases,
              because a simulated kernel takes about a second per case
    takes     for a function in place of a stage only: what else it takes by name. With "probe", a
              dict that it fills with qk, logits and the like, a failing check says which is wrong
              first; "partition_size" gives a v2 several partitions; "k_scale" and "v_scale" add the
              cases with an 8-bit cache, for a backend too
    compiled  for stages in CUDA: the compute capability, such as (9, 0), for which Numba compiles
              the kernels, and True for (8, 0); their PTX is run in place of their source. Compiling
              takes about 3 seconds per geometry. Races aren't looked for: the check of the
              source does that
    raises    False: a wrong result is returned too

    Raises CheckFailure (an AssertionError) if a case fails; ValueError for an unknown name, for
    `takes` that aren't known and for a short check where there is none, TypeError if `function`
    can't be called, ImportError for one of our stages that needs something this machine lacks.
    """
    require_bool("raises", raises)
    if function is OURS:
        if name in STAGES and (why := STAGES[name].why_absent()):
            raise ImportError(f"stage {name} cannot run here: {why}")
        takes = SCALES if name in STAGES else ()
    elif not callable(function) and not isinstance(function, Backend):
        raise TypeError(f"function is {function!r}; it must be callable")
    trials = _trials(name, short, takes)
    if compiled:
        function = as_compiled(name, function, (8, 0) if compiled is True else compiled)
    result = run_trials(name, trials, None if function is OURS else function)
    if raises and not result.ok:
        raise CheckFailure(result)
    return result


def as_compiled(name: str, function: Backend, capability: tuple[int, int]) -> Backend:
    """A stage, or a backend in its place, whose kernels run as they are compiled."""
    from pa_tutorial.kernels.compiled.backend import compiled_stage  # loads the simulator

    ours = function is OURS and name in PAGED
    return compiled_stage(name, backend_named(name) if ours else function, capability)


def has_short_check(name: str) -> bool:
    return name in STAGES and STAGES[name].is_paged


def _trials(name: str, short: bool, takes: Sequence[str] = ()) -> list[Trial]:
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
    raise ValueError(
        f"name is {name!r}; it must be a stage ({', '.join(STAGES)}) or {' or '.join(OTHERS)}"
    )
