"""Blanks in kernels: their files, made for the sizes of the reader's notebook, on the simulator."""

import ast
import io
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import replace
from functools import partial

import torch
from matplotlib.figure import Figure

from pa_tutorial.checks.comparing import Comparison
from pa_tutorial.checks.running import Trial
from pa_tutorial.exercises import kernel_costs
from pa_tutorial.exercises.blank import Blank
from pa_tutorial.exercises.blank_cases import kernel_trials, partition_size_of
from pa_tutorial.exercises.my_kernel import saved_in
from pa_tutorial.exercises.numbers_in_words import first_number
from pa_tutorial.exercises.our_kernels import BACKENDS
from pa_tutorial.exercises.ours import SET
from pa_tutorial.exercises.reader_files import files_with, tree_of
from pa_tutorial.exercises.together import Functions, others_of
from pa_tutorial.exercises.wrong_numbers import (
    NOBODY,
    first_place,
    first_slot,
    first_wrong,
    last_writer,
)
from pa_tutorial.kernels.sources import constants, source_of
from simt import Trace

AS_BITS = "A bfloat16 is kept as its bits: is `to_float`, `from_float` or `widen` missing?"
DEVICE = "@cuda.jit(device=True)"
SIGNED = (
    "it asks for cuda.threadIdx.x, which is signed. Use thread_idx, its last argument: with one "
    "signed number among its indices, a thread of v1 needs 255 registers in place of 56"
)
CALLER = "the kernel calls it"
TAKER = "thread block 0"
ADVICE, dearest = kernel_costs.ADVICE, kernel_costs.dearest
FIRST_BLOCK = 0, 0, 0

Told = tuple[str, tuple[int, int, int]]


def trials(blank: Blank, draw: int, beside: Functions) -> list[Trial]:
    """The cases; what each takes of what is counted for par."""
    made = kernel_trials(blank.file, blank.function, draw, beside)
    if not blank.par:
        return made
    return [replace(t, costs=partial(kernel_costs.taken, blank, t)) for t in made]


def others(blank: Blank, function: Callable) -> Functions:
    return others_of(function, blank.file)


def why_not(blank: Blank, function: Callable, arguments: list[str]) -> str:
    """Why a function that could be tried otherwise can't be one of the kernel's."""
    text = source_of(function).text
    if "thread_idx" in arguments and asks_for_thread_idx(text):
        return SIGNED
    if blank.source.startswith(DEVICE) and "device=True" not in text:
        return f"GPU code can call it only if the line above it is {DEVICE}"
    return ""


def asks_for_thread_idx(text: str) -> bool:
    nodes = ast.walk(ast.parse(text))
    return any(isinstance(node, ast.Attribute) and node.attr == "threadIdx" for node in nodes)


def told(
    blank: Blank, trial: Trial, function: Callable | None, wrong: Comparison, scores: Comparison
) -> Told:
    """The first wrong number of a step, and the thread block that wrote it.

    function  None: it isn't in this process, so who wrote the number isn't told
    """
    if trial.problem is None:
        tell = first_number if len(trial.axes) == 1 else first_slot
        return f"  {tell(wrong, trial.axes)}", FIRST_BLOCK
    at = first_place(wrong)
    with redirect_stdout(io.StringIO()):
        writer = last_writer(blank, trial, function, wrong.quantity, at) if function else ""
    size = partition_size_of(trial.problem) if trial.name.endswith("in partitions") else 0
    lines = [first_wrong(wrong, at, scores.expected, trial.problem, writer, size)]
    if trial.problem.dtype == torch.bfloat16:
        lines.append(AS_BITS)
    if writer not in ("", NOBODY):
        lines.append(writer)
    return "\n".join(f"  {line}" for line in lines), at.block


# Ours, and the reader's as it was saved -----------------------------------------------------------


def ours_of(blank: Blank, function: object = None) -> Callable:
    """Our answer, with the constants of the notebook in which a function was written."""
    return with_constants_of(function, blank, ours_in)


def saved_of(blank: Blank, function: object = None) -> Callable | None:
    """The answer that the reader has saved, if they have; with the same constants."""
    return with_constants_of(function, blank, saved_in)


def ours_in(blank: Blank, **constants: object) -> Callable:
    return getattr(BACKENDS[blank.file].namespace(**constants), blank.function)


def with_constants_of(function: object, blank: Blank, make: Callable) -> Callable | None:
    """What `make` gives for the constants of the reader's notebook; for our own if vLLM hasn't
    theirs."""
    try:
        return make(blank, **constants_of(function, blank.file))
    except (TypeError, ValueError) as error:
        print(f"{error}. It is made for our own sizes.")
        return make(blank)


def constants_of(function: object, file: str) -> dict[str, object]:
    """The constants of a kernel as they are where the function was written."""
    known = getattr(getattr(function, "py_func", function), "__globals__", {})
    names = SET & {name for one in files_with(file) for name in constants(tree_of(one))}
    return {name: known[name] for name in sorted(names & known.keys())}


# Pictures -----------------------------------------------------------------------------------------


def seen(
    blank: Blank, function: Callable, trial: Trial, block: tuple[int, int, int] | None
) -> dict[str, Trace]:
    """What it reads or writes in a thread block, and what ours does; empty for nothing."""
    if not hasattr(function, "py_func") or function.py_func.__name__ != blank.function:
        return {}
    kind, array = blank.picture.split()
    traces = {
        words: trial.trace(answer, block or FIRST_BLOCK).only(array=array, kind=kind)
        for words, answer in (("yours", function), ("right", None))
    }
    return traces if len(traces["yours"]) else {}


def draw(blank: Blank, traces: dict[str, Trace], trial: Trial, is_right: bool) -> Figure:
    from pa_tutorial.viz.accesses import draw_accesses

    empty = empty_slots(trial, blank.picture.split()[1])
    return draw_accesses(traces, blank.picture, empty, is_right=is_right)


def draw_goal(blank: Blank, trial: Trial) -> Figure:
    """What ours reads or writes."""
    from pa_tutorial.viz.accesses import draw_goal

    kind, array = blank.picture.split()
    return draw_goal(trial.trace(None).only(array=array, kind=kind), blank.picture)


def empty_slots(trial: Trial, array: str) -> frozenset[int]:
    """The elements of a cache, in memory order, that belong to slots without a token."""
    if trial.problem is None or array not in ("k_cache", "v_cache"):
        return frozenset()
    cache = getattr(trial.problem.paged("vllm"), array).float()
    return frozenset(cache.isnan().flatten().nonzero().flatten().tolist())
