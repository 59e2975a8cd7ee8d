"""The verdict on a blank: right, or the first quantity that is wrong, with thread and line."""

import ast
import inspect
import re
import textwrap
from collections.abc import Callable

import numpy as np
import torch

from pa_tutorial.checks.comparing import Comparison, compare
from pa_tutorial.checks.diagnosing import told_apart
from pa_tutorial.checks.progress import with_progress
from pa_tutorial.checks.running import Trial, describe, one_thread, torch_settings_kept
from pa_tutorial.exercises import sizes
from pa_tutorial.exercises.blank import Blank
from pa_tutorial.exercises.blank_cases import EMPTY, MOST_TURNS, launch_of
from pa_tutorial.exercises.ours import BACKENDS, SET, is_ours, is_unfinished
from pa_tutorial.kernels import template
from pa_tutorial.kernels.template import FILES, KernelFileError
from simt import Trace

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
AS_BITS = "A bfloat16 is kept as its bits: is `to_float`, `from_float` or `widen` missing?"
DEVICE = "@cuda.jit(device=True)"
SIGNED = (
    "it asks for cuda.threadIdx.x, which is signed. Use thread_idx, its last argument: with one "
    "signed number among its indices, a thread of v1 needs 255 registers in place of 56"
)
FLT_MAX = float(np.finfo(np.float32).max)


def verdict(blank: Blank, function: Callable) -> str:
    """Empty if the function is right; else what is wrong, for its author."""
    why, _ = judged(blank, function)
    return why


def judged(blank: Blank, function: Callable) -> tuple[str, Trial]:
    """The verdict, and the case that it is about; the first, if it is about none."""
    trials = blank.trials()
    if why := not_a_try(blank, function):
        return why, trials[0]
    with one_thread(), torch_settings_kept():
        for number, trial in enumerate(with_progress(blank.function, trials)):
            if why := why_wrong(blank, trial, function):
                case = f"Case {number + 1} of {len(trials)}"
                return f"not yet. {case}, {title_of(trial)}:\n{why}", trial
    return "", trials[0]


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
        text = text_of(function)
    except KernelFileError as error:
        return str(error)
    if is_unfinished(function):
        return "not written yet."
    if "thread_idx" in wanted and asks_for_thread_idx(text):
        return SIGNED
    if blank.source.startswith(DEVICE) and "device=True" not in text:
        return f"GPU code can call it only if the line above it is {DEVICE}"
    return ""


def text_of(function: Callable) -> str:
    return template.source_of(function).text


def asks_for_thread_idx(text: str) -> bool:
    nodes = ast.walk(ast.parse(text))
    return any(isinstance(node, ast.Attribute) and node.attr == "threadIdx" for node in nodes)


def returns_a_value(text: str) -> bool:
    return any(isinstance(n, ast.Return) and n.value for n in ast.walk(ast.parse(text)))


def why_wrong(blank: Blank, trial: Trial, function: Callable) -> str:
    """Empty if the function passes the trial."""
    try:
        found = trial.run(function)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a reader's function may raise anything
        words = in_its_own_lines(in_plain_words(error), function)
        returns = returns_a_value(text_of(function)) or "and no end: " in words
        if returns_a_value(blank.source) and not returns:
            return "  it returns nothing: the last line, `return …`, is missing"
        return textwrap.indent(loop_named(words, function), "  ")
    references = {name: compute() for name, compute in trial.references.items()}
    compared = compare(found, references, trial.bounds)
    wrong = next((c for c in compared if not c.passed), None)
    if wrong is None:
        return ""
    if trial.problem is None:
        tell = first_number if len(trial.axes) == 1 else first_slot
        return f"  {tell(wrong, trial.axes)}"
    place, sentence = first_wrong(wrong, compared[0].expected)
    if trial.problem.dtype == torch.bfloat16:
        sentence += f"\n  {AS_BITS}"
    writer = last_writer(blank, trial, function, wrong.quantity, place)
    return "\n".join(f"  {line}" for line in (sentence, writer) if line)


# What is in an error -> what to ask oneself.
ADVICE = {
    r" and no end: ": "Which variable of its condition changes?",
    r"have no such name$": "They have the constants and functions of the notebooks, but no other "
    "names of yours.",
    r"^only a number can be stored": "Does the function that made it return a number? (A vec is a "
    "tuple: `store` and `widen` write it.)",
    r"\[:\]\[:\] has no elements": "It was cut twice: the caller has already passed its part.",
    r"^no statement of \w+ is at": "Put the comment back where what it names is complete.",
    r"has no value here": "The check looks at these variables at the marks: keep their names.",
}
# What a reader can't use: our names of errors, places in our files (the line is quoted below).
NOT_FOR_READERS = (
    r"^it raised (SimtError|Unsupported|RuntimeError|KernelFileError): ",
    r"^it raised ValueError: watch: ",
    r"^it raised KeyError: (?='.* has no value)",
    r"(?<!:) \((?:[^()]|\([^()]*\))*, line \d+\)(?=:)",
    r"\w+\.<locals>\.",
    r"\n.* of launch_.*",
    r" \(max_turns\)",
)


def in_plain_words(error: BaseException) -> str:
    """An error for a reader, with a question that may help."""
    words = describe(error)
    for pattern in NOT_FOR_READERS:
        words = re.sub(pattern, "", words)
    words = re.sub(r"\n  \S+, line (\d+), in (\w+):\n +", r"\n  line \1 of \2:  ", words)
    advice = [text for pattern, text in ADVICE.items() if re.search(pattern, words)]
    return "\n".join([words, *advice])


def in_its_own_lines(message: str, function: Callable) -> str:
    """Lines of the reader's function counted from its first, as in its cell.

    Of another function only the name is told: it may be the answer to another blank.
    """
    text, name = text_of(function), getattr(function, "py_func", function).__name__
    lines = [line.strip() for line in text.splitlines()]

    def own(match: re.Match[str]) -> str:
        code = match[2].strip()
        return f"line {lines.index(code) + 1} of {name}: {code}" if code in lines else match[0]

    message = re.sub(rf"line (\d+) of {name}: +(.*)", own, message)
    message = re.sub(r"\n +line \d+ of _\w+: .*", "", message)  # of to_float and the like
    return re.sub(rf"line \d+ of (?!{name}:)(\w+): +.*", r"in \1", message)


def loop_named(message: str, function: Callable) -> str:
    """Of a loop that doesn't end: a while of the reader's, not the `for` in it that was last."""
    lines = enumerate(text_of(function).splitlines(), start=1)
    whiles = [f"line {n}: {line.strip()}" for n, line in lines if line.strip().startswith("while ")]
    if "and no end: " not in message or not whiles:
        return message
    return re.sub("(?<=and no end: ).*", " or ".join(whiles), message, count=1)


def first_number(wrong: Comparison, axes: tuple[str, ...]) -> str:
    """Of sizes: the first that is wrong."""
    index = int(np.argmax(wrong.actual != wrong.expected))
    name = axes[0].split("|")[index]
    return f"{name} should be {wrong.expected[index]:g}, is {wrong.actual[index]:g}"


def first_slot(wrong: Comparison, axes: tuple[str, ...]) -> str:
    """Of a cache: the first element that is wrong, in the order of memory."""
    index = tuple(map(int, np.argwhere(wrong.actual != wrong.expected)[0]))
    where = f"k_cache[{', '.join(map(str, index))}] ({', '.join(axes)})"
    found, wanted = told_apart(wrong.actual[index], wrong.expected[index], 3)
    if wrong.actual[index] == EMPTY:
        return f"{where} was never written; it should be {wanted}"
    if wrong.expected[index] == EMPTY:
        return f"{where} was written; it must stay as it is"
    return f"{where} should be {wanted}, is {found}"


def first_wrong(wrong: Comparison, scores: np.ndarray) -> tuple[tuple[int, int, int], str]:
    """(sequence, head, place) of the first wrong number, and a sentence about it.

    scores  [num_seqs, num_heads, longest]: the right ones
    """
    what, unit = WORDS[wrong.quantity]
    bad = wrong.errors > wrong.bound
    sequence, head = map(int, np.argwhere(bad)[0])
    actual, expected = wrong.actual[sequence, head], wrong.expected[sequence, head]
    place = first_place(actual, expected, wrong.bound)
    found, wanted = told_apart(actual[place], expected[place], 3)
    of = f" of {unit} {place}" if unit else ""
    where = f"sequence {sequence}, head {head}"
    sentence = f"the {what}{of} should be {wanted}, is {found} ({where})"
    if unit:
        others = wrong.expected[..., place]
        seen = pattern(actual, expected, place, unit)
        seen += whose(actual, expected, place, unit, others)
    else:
        seen = of_one_number(wrong.quantity, actual[0], expected[0], scores[sequence, head])
    return (sequence, head, place), sentence + (seen or of_heads(bad[sequence]))


def first_place(actual: np.ndarray, expected: np.ndarray, bound: float) -> int:
    """The first number that differs by more than its share of the row's bound."""
    there = np.isfinite(expected)
    share = bound * np.linalg.norm(expected[there]) / max(there.sum(), 1) ** 0.5
    with np.errstate(invalid="ignore"):  # -inf - -inf
        differs = ~(np.abs(actual - expected) <= share) & (actual != expected)
    return int(np.argmax(differs))


def pattern(actual: np.ndarray, expected: np.ndarray, place: int, unit: str) -> str:
    """What else can be seen in a row of numbers, as the end of the sentence."""
    there = np.isfinite(expected)
    actual, expected = actual[there], expected[there]
    if same := leading_same(actual, expected):
        return f"; {unit}s 0 {'and 1 both' if same == 2 else f'to {same - 1} all'} have it"
    if np.isnan(actual).any():
        return (
            ": 0 was divided by 0, or something was read that isn't there, such as a slot without "
            "a token or a block of no sequence"
        )
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = actual / expected
    if np.allclose(ratios, ratios[0], rtol=1e-2) and np.isfinite(ratios[0]):
        every = f", and so is every {unit}" if len(ratios) > 1 else ""
        return f"; it is {ratios[0]:.3g} times what it should be{every}"
    return f"; the {unit}s before it are right" if place else ""


def whose(
    actual: np.ndarray, expected: np.ndarray, place: int, unit: str, others: np.ndarray
) -> str:
    """Whose number it is, if it is right at another place or, `others`, in another head."""
    number = actual[place]
    if len(near := np.flatnonzero(is_near(expected, number))) == 1 and near[0] != place:
        return f"; it is what {unit} {near[0]} should be"
    near = np.argwhere(is_near(others, number) & (others != expected[place]))
    if len(near) == 1:
        return f"; it is what sequence {near[0, 0]}, head {near[0, 1]} should have there"
    return ""


def of_one_number(quantity: str, actual: float, expected: float, scores: np.ndarray) -> str:
    """What can be seen in the largest score or the sum of the exponentials, given all scores."""
    if actual == -FLT_MAX:
        return ", which is -FLT_MAX: no score was compared with it"
    if not np.isfinite(actual):
        return ": exp is too large for a float32, as if a score were more than the maximum"
    if quantity == "qk_max":
        near = np.flatnonzero(is_near(scores, actual))
        return f"; it is the score of token {near[0]}" if len(near) else ""
    there = scores[np.isfinite(scores)]
    if is_near(np.exp(there).sum(), actual):
        return "; it is the sum of exp(score), without the maximum"
    if len(near := np.flatnonzero(is_near(np.exp(there - there.max()), actual))):
        return f"; it is the exponential of token {near[0]} alone"
    ratio = actual / expected
    is_whole = ratio > 1.5 and is_near(np.array(ratio), round(ratio))
    return f"; it is {ratio:.3g} times what it should be" if is_whole else ""


def is_near(numbers: np.ndarray, number: float) -> np.ndarray:
    """Equal but for rounding in float16 and less."""
    return np.abs(numbers - number) <= 1e-3 * abs(number)


def of_heads(bad: np.ndarray) -> str:
    """Which heads of a sequence are right, if some are."""
    right = ", ".join(map(str, np.flatnonzero(~bad)))
    return f"; of the heads, {right} are right" if right else ""


def leading_same(actual: np.ndarray, expected: np.ndarray) -> int:
    """How many numbers at the beginning are equal to the first and shouldn't be; 0 for none."""
    count = int(np.argmin(np.append(actual == actual[0], False)))
    return count if count > 1 and np.ptp(expected[:count]) > 0 else 0


def last_writer(
    blank: Blank, trial: Trial, function: Callable, quantity: str, place: tuple[int, int, int]
) -> str:
    """Who wrote the number, and in which line; empty where no array holds it."""
    shared = SHARED.get(blank.file, "logits")
    if quantity not in ("qk", "logits", "out") or trial.name.endswith("in partitions"):
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
    # The memory of logits is out_smem too: there, add_warps writes something else.
    is_other = np.array([site.function == "add_warps" for site in writes.sites])
    hits = np.flatnonzero((number == index) & ~is_other[writes.records.place])
    if not len(hits):
        return "no thread wrote it"
    record = hits[-1 if last else 0]
    site, thread = writes.sites[writes.records.place[record]], writes.threads[record]
    if site.function != function.py_func.__name__:
        return f"thread {thread} wrote it, in {site.function}"
    words = f"thread {thread} wrote it: line {site.line} of {site.function}: {site.code}"
    return in_its_own_lines(words, function)


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


def go_on(blank: Blank, function: Callable) -> Callable:
    """Print the verdict. Returns the function if it is right, ours if it isn't."""
    name = blank.function
    if is_ours(function):
        print(f"{name}: still ours.")
        return ours_of(blank, **constants_of(function, blank.file))
    why, trial = judged(blank, function)
    draw(blank, function, trial)
    if why:
        print(f"{name}: {why}\nThe notebook goes on with ours.")
        return ours_of(blank, **constants_of(function, blank.file))
    print(f"{name}: right in all {len(blank.trials())} cases. The notebook goes on with yours.")
    return function


def draw(blank: Blank, function: Callable, trial: Trial) -> None:
    """Show what it reads or writes in a case, beside ours; also if it isn't finished."""
    is_drawn = blank.picture and hasattr(function, "py_func")
    if not is_drawn or function.py_func.__name__ != blank.function:
        return
    from IPython import get_ipython
    from IPython.display import display

    if get_ipython() is None:
        return
    from pa_tutorial.viz.accesses import draw_accesses
    from pa_tutorial.viz.style import show

    kind, array = blank.picture.split()
    traces = {}
    for words, answer in (("yours", function), ("right", None)):
        try:
            traces[words] = trial.trace(answer).only(array=array, kind=kind)
        except Exception:  # the verdict says what is wrong
            return
    if len(traces["yours"]):
        display(show(draw_accesses(traces, blank.picture)))
