"""The verdict on a blank: right, or the first quantity that is wrong, with thread and line."""

import inspect
import re
import textwrap
from collections.abc import Callable

import numpy as np

from pa_tutorial.checks.comparing import Comparison, compare
from pa_tutorial.checks.diagnosing import told_apart
from pa_tutorial.checks.running import Trial, describe, one_thread, torch_settings_kept
from pa_tutorial.exercises.blank import Blank
from pa_tutorial.exercises.blank_cases import MOST_TURNS, launch_of
from pa_tutorial.exercises.kernel_file import KernelFile, is_ours, is_unfinished, text_of
from pa_tutorial.simt import Trace

BASE = ("HEAD_SIZE", "BLOCK_SIZE", "DTYPE", "NUM_THREADS", "NUM_QUERIES_PER_KV", "PARTITION_SIZE")
# quantity -> what it is called, and what it has one of per token, element, …
WORDS = {
    "qk": ("score", "token"),
    "qk_max": ("largest score", ""),
    "exp_sum": ("sum of the exponentials", ""),
    "logits": ("weight", "token"),
    "accs": ("sum of V", "element"),
    "out": ("output", "element"),
}
SHARED = {"naive": "qk"}  # the array with the scores; else logits


def verdict(blank: Blank, function: Callable) -> str:
    """Empty if the function is right; else what is wrong, for its author."""
    if why := not_a_try(blank, function):
        return why
    trials = blank.trials()
    with one_thread(), torch_settings_kept():
        for number, trial in enumerate(trials):
            if why := why_wrong(blank, trial, function):
                passed = f"{number} of {len(trials)} cases are right. " if number else ""
                return f"not yet. {passed}{trial.name} ({trial.isolates}):\n{why}"
    return ""


def not_a_try(blank: Blank, function: object) -> str:
    """Why there is nothing to run: not written, no kernel's function, another signature."""
    ours = getattr(KernelFile(blank.file).module(), blank.function)
    plain = getattr(function, "py_func", function)
    if not inspect.isfunction(plain):
        return f"{blank.function} is {function!r}; it must be a function"
    if hasattr(ours, "py_func") and plain is function:
        return f"{blank.function} is a plain function: put its @cuda.jit line above it again"
    wanted = list(inspect.signature(getattr(ours, "py_func", ours)).parameters)
    found = list(inspect.signature(plain).parameters)
    if len(found) != len(wanted):
        return f"it takes ({', '.join(found)}); it must take ({', '.join(wanted)})"
    if is_unfinished(function):
        return "not written yet."
    return ""


def why_wrong(blank: Blank, trial: Trial, function: Callable) -> str:
    """Empty if the function passes the trial."""
    try:
        found = trial.run(function)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a reader's function may raise anything
        return textwrap.indent(in_its_own_lines(describe(error), function), "  ")
    references = {name: compute() for name, compute in trial.references.items()}
    wrong = next((c for c in compare(found, references, trial.bounds) if not c.passed), None)
    if wrong is None:
        return ""
    if blank.file == "sizes":
        return f"  {first_number(wrong, trial.axes)}"
    place, sentence = first_wrong(wrong)
    writer = last_writer(blank, trial, function, wrong.quantity, place)
    return "\n".join(f"  {line}" for line in (sentence, writer) if line)


def in_its_own_lines(message: str, function: Callable) -> str:
    """Lines of the reader's function counted from its first, as in its cell."""
    text, name = text_of(function), getattr(function, "py_func", function).__name__
    lines = [line.strip() for line in text.splitlines()]

    def own(match: re.Match[str]) -> str:
        code = match[2].strip()
        return f"line {lines.index(code) + 1} of {name}: {code}" if code in lines else match[0]

    return re.sub(rf"line (\d+) of {name}: +(.*)", own, message)


def first_number(wrong: Comparison, axes: tuple[str, ...]) -> str:
    """Of sizes: the first that is wrong."""
    index = int(np.argmax(wrong.actual != wrong.expected))
    name = axes[0].split("|")[index]
    return f"{name} should be {wrong.expected[index]:g}, is {wrong.actual[index]:g}"


def first_wrong(wrong: Comparison) -> tuple[tuple[int, int, int], str]:
    """(sequence, head, place) of the first wrong number, and a sentence about it."""
    what, unit = WORDS[wrong.quantity]
    bad = wrong.errors > wrong.bound
    sequence, head = map(int, np.argwhere(bad)[0])
    actual, expected = wrong.actual[sequence, head], wrong.expected[sequence, head]
    place = first_place(actual, expected, wrong.bound)
    found, wanted = told_apart(actual[place], expected[place], 3)
    of = f" of {unit} {place}" if unit else ""
    where = f"sequence {sequence}, head {head}"
    sentence = f"the {what}{of} should be {wanted}, is {found} ({where})"
    return (sequence, head, place), sentence + pattern(actual, expected, place, unit, bad[sequence])


def first_place(actual: np.ndarray, expected: np.ndarray, bound: float) -> int:
    """The first number that differs by more than its share of the row's bound."""
    there = np.isfinite(expected)
    share = bound * np.linalg.norm(expected[there]) / max(there.sum(), 1) ** 0.5
    with np.errstate(invalid="ignore"):  # -inf - -inf
        differs = ~(np.abs(actual - expected) <= share) & (actual != expected)
    return int(np.argmax(differs))


def pattern(
    actual: np.ndarray, expected: np.ndarray, place: int, unit: str, heads: np.ndarray
) -> str:
    """What else can be seen, as the end of the sentence."""
    there = np.isfinite(expected)
    actual, expected = actual[there], expected[there]
    if same := leading_same(actual, expected):
        return f"; {unit}s 0 to {same - 1} all have it"
    if np.isnan(actual).any():
        return ": something was read that isn't there, such as a slot without a token"
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = actual / expected
    if np.allclose(ratios, ratios[0], rtol=1e-2) and np.isfinite(ratios[0]):
        every = f", and so is every {unit}" if unit and len(ratios) > 1 else ""
        return f"; it is {ratios[0]:.3g} times what it should be{every}"
    if place and unit:
        return f"; the {unit}s before it are right"
    if not heads.all():
        return f"; heads {np.flatnonzero(~heads).tolist()} are right"
    return ""


def leading_same(actual: np.ndarray, expected: np.ndarray) -> int:
    """How many numbers at the beginning are equal to the first and shouldn't be; 0 for none."""
    count = int(np.argmin(np.append(actual == actual[0], False)))
    return count if count > 1 and np.ptp(expected[:count]) > 0 else 0


def last_writer(
    blank: Blank, trial: Trial, function: Callable, quantity: str, place: tuple[int, int, int]
) -> str:
    """Who wrote the number, and in which line; empty where no array holds it."""
    shared = SHARED.get(blank.file, "logits")
    if quantity not in ("qk", "logits", "out") or blank.file == "v2":
        return ""
    sequence, head, index = place
    try:
        launch = launch_of(blank.file, trial.problem, function)
        trace = launch.traced((head, sequence, 0), max_turns=MOST_TURNS)
        writes = trace.only(array="out" if quantity == "out" else shared, kind="write")
    except Exception:  # no such array, or a finding: there is enough to say
        return ""
    return of_record(writes, index, function, last=quantity != "qk")


def of_record(writes: Trace, index: int, function: Callable, last: bool) -> str:
    """The thread that wrote an element of the last axis, and the line if it is the function's."""
    if not len(writes):
        return "no thread wrote it"
    number = writes.the_array().indices(writes.records.address)[-1]
    hits = np.flatnonzero(number == index)
    if not len(hits):
        return "no thread wrote it"
    record = hits[-1 if last else 0]
    site, thread = writes.sites[writes.records.place[record]], writes.threads[record]
    if site.function != function.py_func.__name__:
        return f"thread {thread} wrote it, in {site.function}"
    words = f"thread {thread} wrote it: line {site.line} of {site.function}: {site.code}"
    return in_its_own_lines(words, function)


def constants_of(function: object, file: str) -> dict[str, object]:
    """The constants of a kernel as they are where the function was written."""
    known = getattr(getattr(function, "py_func", function), "__globals__", {})
    text = KernelFile(file).text()
    return {n: known[n] for n in BASE if n in known and re.search(rf"^{n} = ", text, re.MULTILINE)}


def go_on(blank: Blank, function: Callable) -> Callable:
    """Print the verdict. Returns the function if it is right, ours if it isn't."""
    name = blank.function
    if is_ours(function):
        print(f"{name}: still ours.")
        return function
    draw(blank, function)
    if why := verdict(blank, function):
        print(f"{name}: {why}\nThe notebook goes on with ours.")
        return getattr(KernelFile(blank.file).module(**constants_of(function, blank.file)), name)
    print(f"{name}: right in all {len(blank.trials())} cases. The notebook goes on with yours.")
    return function


def draw(blank: Blank, function: Callable) -> None:
    """Show what it reads or writes beside ours, also of a function that isn't finished."""
    if not blank.picture or not hasattr(function, "py_func"):
        return
    from IPython.display import display

    from pa_tutorial.viz.accesses import draw_accesses
    from pa_tutorial.viz.style import show

    kind, array = blank.picture.split()
    problem = blank.trials()[0].problem
    traces = {}
    for words, functions in (("yours", [function]), ("right", [])):
        launch = launch_of(blank.file, problem, *functions)
        try:
            trace = launch.traced(collect=True, max_turns=MOST_TURNS)
            traces[words] = trace.only(array=array, kind=kind)
        except Exception:  # the verdict says what is wrong
            return
    if len(traces["yours"]):
        display(show(draw_accesses(traces, blank.picture)))
