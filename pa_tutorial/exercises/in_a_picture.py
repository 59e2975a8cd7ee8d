"""The README's picture of what a reader does all day: a blank, a wrong answer, the right one."""

from collections.abc import Callable
from itertools import chain
from textwrap import wrap

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pa_tutorial.exercises.blank import Blank, all_blanks
from pa_tutorial.exercises.blank_verdict import judged
from pa_tutorial.exercises.exercise import compiled
from pa_tutorial.viz import style
from pa_tutorial.viz.accesses import COLORS, COLUMNS, LABEL, differing, draw_line, owners
from pa_tutorial.viz.drawing import LARGE, board, box, write

SHOWN, THREAD = "load_key", 0
CODE = {"family": "monospace", "size": 9.5}
LINE_LEN = 70
HEIGHT = 13.7  # of the board, whose rows are as high as a box of threads
WIDTH = LABEL + COLUMNS + 0.05


def function_of(blank: Blank, answer: str) -> Callable:
    names: dict[str, Callable] = {}
    exec(compiled(f"{blank.around}\n{answer}", "<the reader's cell>"), names)
    return names[blank.function]


@style.styled
def draw_blank_to_right() -> Figure:
    """The easiest wrong order of a thread's vecs, with the real verdicts and accesses."""
    blank = all_blanks()[SHOWN]
    wrong = blank.wrong[-1]
    title = "Fill in a blank, and the verdict shows which threads went astray"
    figure, axes = style.new_figure(title, 4.3)
    figure.suptitle(title, **(style.TITLE | {"size": LARGE + 1}))  # larger than the parts' titles
    board(axes, WIDTH, HEIGHT)
    y = draw_code(axes, 0, "1  A blank: one function of vLLM's kernel, with a plan", plan_of(blank))
    y = draw_try(axes, y, "2  A wrong answer", blank, wrong.made_in(blank.source), wrong.new)
    draw_try(axes, y, "3  The right one", blank, blank.source, wrong.old)
    return figure


def plan_of(blank: Blank) -> list[str]:
    plan = [line.strip() for line in blank.stub.splitlines() if line.startswith("    #")]
    wrapped = (wrap(line, LINE_LEN, subsequent_indent="# ") for line in plan)
    return [*chain.from_iterable(wrapped), "...  # your code"]


def draw_code(axes: Axes, y: float, title: str, lines: list[str]) -> float:
    """A title, and lines of a cell below it; returns where they end."""
    write(axes, 0, y + 0.5, title, "left", weight="bold", size=LARGE)
    box(axes, 0, y + 1.1, WIDTH, 0.3 + 0.8 * len(lines), style.EMPTY)
    for number, line in enumerate(lines):
        write(axes, 0.3, y + 1.65 + 0.8 * number, line, "left", **CODE)
    return y + 1.7 + 0.8 * len(lines)


def draw_try(axes: Axes, y: float, title: str, blank: Blank, answer: str, changed: str) -> float:
    """What is in the cell, who then reads the first elements of K, and the verdict."""
    (line,) = (line.strip() for line in answer.splitlines() if changed in line)
    function = function_of(blank, answer)
    found = judged(blank, function)
    y = draw_code(axes, y, title, [line])
    traces = blank.craft.seen(blank, function, found.trial, found.place)
    yours, right = (owners(traces[words]) for words in ("yours", "right"))
    # A line that begins with what the verdict's thread reads.
    first = min(element for element, threads in right.items() if THREAD in threads)
    wrong = differing(yours, right)
    write(axes, 0, y + 0.45, "K is read by\nthread", "left", size=9.5, linespacing=0.95)
    draw_line(axes, y, range(first, first + COLUMNS), yours, wrong, COLORS["k_cache"], 1)
    if found.words:
        words = f"{found.words.splitlines()[-1].strip()} · framed: wrong"
    else:
        words = f"right in all {len(blank.trials())} cases"
    color = style.WRONG if found.words else style.V
    write(axes, LABEL, y + 1.45, words, "left", size=LARGE, color=color)
    return y + 2.2
