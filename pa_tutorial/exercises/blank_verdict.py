"""The verdict on a blank: right, or the first quantity that is wrong, with thread and line."""

import ast
import inspect
import io
import textwrap
from collections.abc import Callable
from contextlib import redirect_stdout
from typing import NamedTuple

import torch

from pa_tutorial.checks.comparing import Comparison, compare
from pa_tutorial.checks.progress import with_progress
from pa_tutorial.checks.running import Trial, one_thread, torch_settings_kept
from pa_tutorial.exercises import sizes
from pa_tutorial.exercises.blank import Blank
from pa_tutorial.exercises.blank_cases import partition_size_of
from pa_tutorial.exercises.goal import show_goal
from pa_tutorial.exercises.my_kernel import saved_of
from pa_tutorial.exercises.ours import BACKENDS, SET, is_ours, is_unfinished
from pa_tutorial.exercises.par import beside_right
from pa_tutorial.exercises.printed import FewLines
from pa_tutorial.exercises.reader_errors import in_its_own_lines, in_plain_words, loop_named
from pa_tutorial.exercises.together import Functions, one_by_one, others_of
from pa_tutorial.exercises.wrong_numbers import (
    NOBODY,
    first_number,
    first_place,
    first_slot,
    first_wrong,
    last_writer,
)
from pa_tutorial.kernels import template
from pa_tutorial.kernels.template import FILES, KernelFileError

AS_BITS = "A bfloat16 is kept as its bits: is `to_float`, `from_float` or `widen` missing?"
DEVICE = "@cuda.jit(device=True)"
SIGNED = (
    "it asks for cuda.threadIdx.x, which is signed. Use thread_idx, its last argument: with one "
    "signed number among its indices, a thread of v1 needs 255 registers in place of 56"
)
FIRST_BLOCK = 0, 0, 0
UNWRITTEN = "not written yet."


class Judged(NamedTuple):
    """The verdict on a function.

    words   empty if it is right
    trial   the case that they are about; the first, if they are about none
    block   the thread block with the first wrong number
    number  of the case, in the order of the trials
    """

    words: str
    trial: Trial
    block: tuple[int, int, int] = FIRST_BLOCK
    number: int = 0


def verdict(blank: Blank, function: Callable) -> str:
    """Empty if the function is right; else what is wrong, for its author."""
    return judged(blank, function).words


def judged(blank: Blank, function: Callable) -> Judged:
    """The verdict on a function together with the reader's others. What fails there is tried by
    itself, among ours, to find whose mistake it is."""
    if why := not_a_try(blank, function):
        return Judged(why, blank.trials()[0])
    with one_thread(), torch_settings_kept():
        beside, printed = others_of(function, blank.file), FewLines()
        trials = printed.of(blank.trials(beside=beside))
        found = first_failing(blank, function, trials)
        printed.say_how_many_more()
        if not found.words or not beside:
            return found
        with redirect_stdout(io.StringIO()):
            alone = first_failing(blank, function, blank.trials())
            return alone if alone.words else blamed(blank, function, found, beside)


def first_failing(blank: Blank, function: Callable, trials: list[Trial]) -> Judged:
    """The verdict in the first case that fails."""
    for number, trial in enumerate(with_progress(blank.function, trials)):
        why, block = why_wrong(blank, trial, function)
        if why:
            case = f"Case {number + 1} of {len(trials)}"
            words = f"not yet. {case}, {title_of(trial)}:\n{why}"
            return Judged(words, trial, block, number)
    return Judged("", trials[0])


def blamed(blank: Blank, function: Callable, together: Judged, beside: Functions) -> Judged:
    """The verdict on a function that is right among ours: which of the reader's it fails with."""

    def fails_with(one: Functions) -> bool:
        return bool(why_wrong(blank, blank.trials(beside=one)[together.number], function)[0])

    each = one_by_one(beside)
    culprit = next((name for name, one in each.items() if fails_with(one)), "")
    names = ", ".join(f"`{name}`" for name in ([culprit] if culprit else each))
    return together._replace(words=f"right by itself; with your {names}, {together.words}")


def title_of(trial: Trial) -> str:
    """A case, what is special about it, and its sizes: a mistake may show at some sizes only."""
    problem = trial.problem
    if problem is None:
        return trial.name
    dtype = str(problem.dtype).removeprefix("torch.")
    sizes = f"HEAD_SIZE {problem.head_size}, BLOCK_SIZE {problem.block_size}, {dtype}"
    return f"{trial.name} ({trial.isolates}; {sizes})"


def not_a_try(blank: Blank, function: object) -> str:
    """Why there is nothing to run: not written, no kernel's function, another signature."""
    name, ours = blank.function, ours_of(blank)
    plain = getattr(function, "py_func", function)
    if not inspect.isfunction(plain):
        return f"{name} is {function!r}; it must be a function"
    if hasattr(ours, "py_func") and plain is function:
        return f"{name} is a plain function: put its @cuda.jit line above it again"
    if plain.__name__ != name:
        return f"it is called {plain.__name__}; it must be called {name}, as the kernel calls it"
    wanted = list(inspect.signature(getattr(ours, "py_func", ours)).parameters)
    found = list(inspect.signature(plain).parameters)
    if len(found) != len(wanted):
        return f"it takes ({', '.join(found)}); it must take ({', '.join(wanted)})"
    try:
        text = template.source_of(function).text
    except KernelFileError as error:
        return str(error)
    if is_unfinished(function):
        return UNWRITTEN
    if "thread_idx" in wanted and asks_for_thread_idx(text):
        return SIGNED
    if blank.source.startswith(DEVICE) and "device=True" not in text:
        return f"GPU code can call it only if the line above it is {DEVICE}"
    return ""


def asks_for_thread_idx(text: str) -> bool:
    nodes = ast.walk(ast.parse(text))
    return any(isinstance(node, ast.Attribute) and node.attr == "threadIdx" for node in nodes)


def returns_a_value(text: str) -> bool:
    return any(isinstance(n, ast.Return) and n.value for n in ast.walk(ast.parse(text)))


def why_wrong(blank: Blank, trial: Trial, function: Callable) -> tuple[str, tuple[int, int, int]]:
    """What fails in a case, empty for nothing, and the thread block with the first wrong number."""
    try:
        found = trial.run(function)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a reader's function may raise anything
        return textwrap.indent(why_raised(blank, function, error), "  "), FIRST_BLOCK
    references = {name: compute() for name, compute in trial.references.items()}
    compared = compare(found, references, trial.bounds)
    wrong = next((c for c in compared if not c.passed), None)
    if wrong is None:
        return "", FIRST_BLOCK
    if trial.problem is None:
        tell = first_number if len(trial.axes) == 1 else first_slot
        return f"  {tell(wrong, trial.axes)}", FIRST_BLOCK
    return told(blank, trial, function, wrong, compared[0])


def why_raised(blank: Blank, function: Callable, error: BaseException) -> str:
    words = in_its_own_lines(in_plain_words(error), blank, function)
    returns = returns_a_value(template.source_of(function).text)
    if returns_a_value(blank.source) and not returns and not says_more(words):
        return "it returns nothing: the last line, `return …`, is missing"
    return loop_named(words, function)


def says_more(words: str) -> bool:
    """Whether an error would come with a `return`, too."""
    return "and no end: " in words or "does not know" in words


def told(
    blank: Blank, trial: Trial, function: Callable, wrong: Comparison, scores: Comparison
) -> tuple[str, tuple[int, int, int]]:
    """The first wrong number of a step, and who wrote it."""
    at = first_place(wrong)
    with redirect_stdout(io.StringIO()):
        writer = last_writer(blank, trial, function, wrong.quantity, at)
    size = partition_size_of(trial.problem) if trial.name.endswith("in partitions") else 0
    lines = [first_wrong(wrong, at, scores.expected, trial.problem, writer, size)]
    if trial.problem.dtype == torch.bfloat16:
        lines.append(AS_BITS)
    if writer not in ("", NOBODY):
        lines.append(writer)
    return "\n".join(f"  {line}" for line in lines), at.block


def ours_of(blank: Blank, **constants: object) -> Callable:
    """Our answer, with these constants around it."""
    around = sizes if blank.file == "sizes" else BACKENDS[blank.file].namespace(**constants)
    return getattr(around, blank.function)


def constants_of(function: object, file: str) -> dict[str, object]:
    """The constants of a kernel as they are where the function was written."""
    known = getattr(getattr(function, "py_func", function), "__globals__", {})
    trees = [template.tree_of(one) for one in FILES.get(file, ())]
    names = SET & {name for tree in trees for name in template.constants(tree)}
    return {name: known[name] for name in sorted(names & known.keys())}


def made_here(blank: Blank, function: Callable, make: Callable) -> Callable | None:
    """A function by saved_of or ours_of, with the constants of the reader's notebook; with our own
    if vLLM hasn't theirs."""
    try:
        return make(blank, **constants_of(function, blank.file))
    except (TypeError, ValueError) as error:
        print(f"{error}. It is made for our own sizes.")
        return make(blank)


def go_on(blank: Blank, function: Callable) -> Callable:
    """Print the verdict. Returns the function if it is right; else the one that the reader has
    saved, or ours."""
    name = blank.function
    if is_ours(function):
        print(f"{name}: still ours.")
        return made_here(blank, function, ours_of)
    found = judged(blank, function)
    saved = made_here(blank, function, saved_of) if found.words else None
    if found.words == UNWRITTEN and saved is not None:
        function, found = saved, judged(blank, saved)
        name, saved = f"{name}, as you saved it", None
    is_drawn = draw(blank, function, found)
    if found.words:
        whose = "ours" if saved is None else "the one that you saved"
        print(f"{name}: {found.words}\nThe notebook goes on with {whose}.")
        if found.words == UNWRITTEN:
            show_goal(blank, is_drawn)
        return saved or made_here(blank, function, ours_of)
    print(f"{name}: right in all {len(blank.trials())} cases. The notebook goes on with yours.")
    if line := beside_right(blank, function, found.trial):
        print(in_its_own_lines(line, blank, function))
    return function


def draw(blank: Blank, function: Callable, found: Judged) -> bool:
    """Show what it reads or writes where it fails, beside ours; also if it isn't finished. Says
    whether there was anything to show."""
    is_drawn = blank.picture and hasattr(function, "py_func")
    if not is_drawn or function.py_func.__name__ != blank.function:
        return False
    from IPython import get_ipython
    from IPython.display import display

    if get_ipython() is None:
        return False
    from pa_tutorial.viz.accesses import draw_accesses
    from pa_tutorial.viz.style import show

    kind, array = blank.picture.split()
    traces, (_, trial, block, _) = {}, found
    try:
        with redirect_stdout(io.StringIO()):
            for words, answer in (("yours", function), ("right", None)):
                traces[words] = trial.trace(answer, block).only(array=array, kind=kind)
    except Exception:  # the verdict says what is wrong
        return False
    if is_shown := len(traces["yours"]) > 0:
        empty = empty_slots(trial, array)
        display(show(draw_accesses(traces, blank.picture, empty, is_right=not found.words)))
    return is_shown


def empty_slots(trial: Trial, array: str) -> frozenset[int]:
    """The elements of a cache, in memory order, that belong to slots without a token."""
    if trial.problem is None or array not in ("k_cache", "v_cache"):
        return frozenset()
    cache = getattr(trial.problem.paged("vllm"), array).float()
    return frozenset(cache.isnan().flatten().nonzero().flatten().tolist())
