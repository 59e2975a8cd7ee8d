"""The verdict on a blank: right, or the first quantity that is wrong, with thread and line."""

import ast
import inspect
import io
import textwrap
from collections.abc import Callable
from contextlib import redirect_stdout
from typing import Any, NamedTuple

from pa_tutorial.checks.comparing import compare
from pa_tutorial.checks.printed import FewLines
from pa_tutorial.checks.progress import with_progress
from pa_tutorial.checks.running import Trial, one_thread, torch_settings_kept
from pa_tutorial.exercises.blank import Blank
from pa_tutorial.exercises.goal import show_figure, show_goal
from pa_tutorial.exercises.ours import is_ours, is_unfinished
from pa_tutorial.exercises.par import beside_right
from pa_tutorial.exercises.reader_errors import in_its_own_lines, in_plain_words, loop_named
from pa_tutorial.exercises.together import Functions, one_by_one
from pa_tutorial.kernels.sources import KernelFileError, source_of

UNWRITTEN = "not written yet."


class Judged(NamedTuple):
    """The verdict on a function.

    words   empty if it is right
    trial   the case that they are about; the first, if they are about none
    place   for the picture: in a kernel, the thread block with the first wrong number
    number  of the case, in the order of the trials
    """

    words: str
    trial: Trial
    place: Any = None
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
        beside, printed = blank.craft.others(blank, function), FewLines()
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
        why, place = why_wrong(blank, trial, function)
        if why:
            case = f"Case {number + 1} of {len(trials)}"
            words = f"not yet. {case}, {title_of(trial)}:\n{why}"
            return Judged(words, trial, place, number)
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
    name, ours = blank.function, blank.craft.ours_of(blank)
    plain = getattr(function, "py_func", function)
    if not inspect.isfunction(plain):
        return f"{name} is {function!r}; it must be a function"
    if hasattr(ours, "py_func") and plain is function:
        return f"{name} is a plain function: put its @cuda.jit line above it again"
    if inspect.iscoroutinefunction(plain):
        return f"{name} must be a plain function: `def`, without `async`"
    if plain.__name__ != name:
        return f"it is called {plain.__name__}; it must be called {name}, as {blank.craft.CALLER}"
    wanted = list(inspect.signature(getattr(ours, "py_func", ours)).parameters)
    found = list(inspect.signature(plain).parameters)
    if len(found) != len(wanted):
        return f"it takes ({', '.join(found)}); it must take ({', '.join(wanted)})"
    try:
        source_of(function)
    except KernelFileError as error:
        return str(error)
    if is_unfinished(function):
        return UNWRITTEN
    return blank.craft.why_not(blank, function, wanted)


def returns_a_value(text: str) -> bool:
    return any(isinstance(n, ast.Return) and n.value for n in ast.walk(ast.parse(text)))


def why_wrong(blank: Blank, trial: Trial, function: Callable) -> tuple[str, Any]:
    """What fails in a case, empty for nothing, and the place for its picture."""
    try:
        found = trial.run(function)
        references = {name: compute() for name, compute in trial.references.items()}
        compared = compare(found, references, trial.bounds)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a reader's function may raise anything
        return textwrap.indent(why_raised(blank, function, error), "  "), None
    wrong = next((c for c in compared if not c.passed), None)
    return blank.craft.told(blank, trial, function, wrong, compared[0]) if wrong else ("", None)


def why_raised(blank: Blank, function: Callable, error: BaseException) -> str:
    words = in_its_own_lines(in_plain_words(error), blank, function)
    returns = returns_a_value(source_of(function).text)
    if returns_a_value(blank.source) and not returns and not says_more(words):
        return "it returns nothing: the last line, `return …`, is missing"
    return loop_named(words, function)


def says_more(words: str) -> bool:
    """Whether an error would come with a `return`, too."""
    return "and no end: " in words or "does not know" in words


def go_on(blank: Blank, function: Callable) -> tuple[Callable, Callable]:
    """Print the verdict. Returns the function if it is right, else the one that the reader has
    saved, or ours; and which one the verdict is on."""
    name, craft = blank.function, blank.craft
    if is_ours(function):
        print(f"{name}: still ours.")
        return craft.ours_of(blank, function), function
    found = judged(blank, function)
    saved = craft.saved_of(blank, function) if found.words else None
    if found.words == UNWRITTEN and saved is not None:
        function, found = saved, judged(blank, saved)
        name, saved = f"{name}, as you saved it", None
    is_drawn = draw(blank, function, found)
    if found.words:
        whose = "ours" if saved is None else "the one that you saved"
        print(f"{name}: {found.words}\nThe notebook goes on with {whose}.")
        if found.words == UNWRITTEN:
            show_goal(blank, is_drawn)
        return saved or craft.ours_of(blank, function), function
    print(f"{name}: right in all {len(blank.trials())} cases. The notebook goes on with yours.")
    if line := beside_right(blank, function, found.trial):
        print(in_its_own_lines(line, blank, function))
    return function, function


def draw(blank: Blank, function: Callable, found: Judged) -> bool:
    """Show what it does where it fails, beside ours; also if it isn't finished. Says whether there
    was anything to show."""
    from IPython import get_ipython

    if get_ipython() is None or not blank.picture:
        return False
    try:
        with redirect_stdout(io.StringIO()):
            seen = blank.craft.seen(blank, function, found.trial, found.place)
    except Exception:  # the verdict says what is wrong
        return False
    if seen:
        show_figure(blank.craft.draw(blank, seen, found.trial, not found.words))
    return bool(seen)
