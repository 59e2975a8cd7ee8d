"""Which thread accesses which element, in a reader's function and in the correct one."""

from collections.abc import Iterator, Mapping, Set
from itertools import groupby

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pa_tutorial.viz import style
from pa_tutorial.viz.drawing import SMALL, board, box, note, plural, span, write
from simt import Trace
from simt.trace import TracedArray

COLUMNS = 16  # elements of a line, at most; those of a shorter row have their own line
MOST_LINES = {16: 4, 8: 6}
LABEL = 4.2  # columns to the left of the elements
AXES = {"k_cache": "block, head, piece, offset, place", "v_cache": "block, head, row, offset"}
COLORS = {"q": style.Q, "k_cache": style.K, "v_cache": style.V, "out": style.OUT}

Owners = dict[int, tuple[int, ...]]  # element, counted from the array's first -> its threads


def owners(trace: Trace) -> Owners:
    """The threads that touch each element, in order."""
    found: dict[int, set[int]] = {}
    if not len(trace):
        return {}
    array, records = trace.the_array(), trace.records
    size = array.dtype.itemsize
    firsts = (records.address - array.address) // size
    for first, count, thread in zip(firsts, records.num_bytes // size, trace.threads, strict=True):
        for element in range(int(first), int(first + count)):
            found.setdefault(element, set()).add(int(thread))
    return {element: tuple(sorted(threads)) for element, threads in found.items()}


def differing(yours: Owners, right: Owners) -> set[int]:
    """The elements that different threads touch, or that only one of the two functions touches."""
    both = yours.keys() | right.keys()
    return {element for element in both if yours.get(element) != right.get(element)}


@style.styled
def draw_accesses(
    traces: Mapping[str, Trace],
    what: str,
    empty: Set[int] = frozenset(),
    is_right: bool = False,
) -> Figure:
    """Some lines of elements in memory order, starting at the first that the kernel touches.

    If these are right and later ones aren't, it starts with the line of the first wrong one.

    traces    "yours" and "right" -> accesses of one array
    what      "read k_cache" or "write out"
    empty     elements of slots without a token, counted from the array's first: whether a thread
              reads them makes no difference
    is_right  the verdict on the function: then no element is wrong, whichever thread touches it
    """
    kind, name = what.split()
    yours, right = (owners(traces[words]) for words in ("yours", "right"))
    others, touched = differing(yours, right) - empty, (yours.keys() | right.keys()) - empty
    wrong = set() if is_right else others
    heading = title(kind, name, len(others), len(touched), is_right)
    array, color = traces["right"].the_array(), COLORS.get(name, style.QUIET)
    columns = columns_of(array)
    lines, wide = lines_from(next(iter(right)), max(touched), wrong, columns), COLUMNS / columns
    figure, axes = style.new_figure(heading, 0.82 + 0.42 * len(lines))
    height = len(lines) + 0.6
    board(axes, LABEL + COLUMNS + 0.05, 2 * height + 1.5)
    other = "ours" if is_right else "right"
    for top, words, threads, framed in (0, "yours", yours, wrong), (height, other, right, set()):
        write(axes, 0, top + 0.5, words, "left", weight="bold")
        for number, elements in enumerate(lines):
            y = top + number
            index = array.indices(array.address + elements[0] * array.dtype.itemsize)
            note(axes, LABEL - 0.3, y + 0.5, [*map(int, index)], "right", size=SMALL)
            draw_line(axes, y, elements, threads, framed, color, wide)
    several = any(len(threads) > 1 for threads in yours.values())
    words = "; 4+: thread 4 and others" * several + ("; framed: wrong" if wrong else "")
    caption(axes, 2 * height + 0.2, what, words)
    return figure


@style.styled
def draw_goal(trace: Trace, what: str) -> Figure:
    """What the correct function touches, alone: the goal of a reader who hasn't written it."""
    kind, name = what.split()
    right, array = owners(trace), trace.the_array()
    columns = columns_of(array)
    lines, wide = lines_from(next(iter(right)), max(right), set(), columns), COLUMNS / columns
    heading = "The goal" + ", in the first lines" * (max(right) not in lines[-1])
    heading += f": which thread {kind}s which element of {name}"
    figure, axes = style.new_figure(heading, 0.67 + 0.21 * len(lines))
    board(axes, LABEL + COLUMNS + 0.05, len(lines) + 1.9)
    for y, elements in enumerate(lines):
        index = array.indices(array.address + elements[0] * array.dtype.itemsize)
        note(axes, LABEL - 0.3, y + 0.5, [*map(int, index)], "right", size=SMALL)
        draw_line(axes, y, elements, right, set(), COLORS.get(name, style.QUIET), wide)
    caption(axes, len(lines) + 0.6, what)
    return figure


def caption(axes: Axes, y: float, what: str, more: str = "") -> None:
    kind, name = what.split()
    words = f"A number: the thread that {kind}s these elements{more}."
    note(axes, 0, y, words, "left", size=SMALL)
    words = f"[…]: {AXES.get(name, 'the index')} of a line's first element"
    note(axes, 0, y + 0.75, words, "left", size=SMALL)


def columns_of(array: TracedArray) -> int:
    return COLUMNS // 2 if array.shape[-1] <= COLUMNS // 2 else COLUMNS


def lines_from(start: int, last: int, wrong: set[int], columns: int) -> list[range]:
    """The elements of each line; if those from `start` are right, start at the first wrong one."""
    most = columns * MOST_LINES[columns]
    if wrong and not wrong & set(range(start, start + most)):
        start = max(0, start + (min(wrong) - start) // columns * columns)
    end = min(start + most, last + 1)
    return [range(at, min(at + columns, end)) for at in range(start, end, columns)]


def title(kind: str, name: str, num_other: int, count: int, is_right: bool) -> str:
    """num_other  elements that other threads touch than in ours; count: those of both"""
    if not num_other:
        who = "Your threads" if is_right else "In these lines, your threads"
        return f"{who} {kind} the right elements of {name}"
    verb = "is" if num_other == 1 else "are"
    past = "read" if kind == "read" else "written"
    of = f"{num_other:,} of {plural(count, 'element')} of {name}"
    whom = (
        "other threads than in ours, which is right too"
        if is_right
        else "the wrong threads, or by none"
    )
    return f"{of} {verb} {past} by {whom}"


def draw_line(
    axes: Axes,
    y: float,
    elements: range,
    threads: Owners,
    wrong: set[int],
    color: str,
    wide: float,
) -> None:
    """A box for neighbouring elements of the same threads, each so wide; empty without threads."""
    for run, owned, is_wrong in runs(elements, threads, wrong):
        x = LABEL + (run[0] - elements[0]) * wide
        shade = style.lighter(color, 0.4 + 0.3 * (owned[0] % 2)) if owned else style.EMPTY
        look = {"edgecolor": style.INK, "linewidth": 1.1, "zorder": 2} if is_wrong else {}
        box(axes, x, y, len(run) * wide, 0.9, shade, label(owned, len(run)), SMALL - 0.5, **look)


def runs(
    elements: range, threads: Owners, wrong: set[int]
) -> Iterator[tuple[list[int], tuple[int, ...], bool]]:
    """Neighbours that the same threads touch, these threads, and whether they are wrong."""
    for (owned, is_wrong), run in groupby(elements, lambda e: (threads.get(e, ()), e in wrong)):
        yield list(run), owned, is_wrong


def label(threads: tuple[int, ...], width: int) -> str:
    """The threads in as many columns: "5", "0–31", or "0+" for thread 0 and others."""
    if len(threads) < 2:
        return "".join(map(str, threads))
    neighbours = threads[-1] - threads[0] == len(threads) - 1
    words = span(threads) if neighbours else ", ".join(map(str, threads))
    return words if len(words) <= 2 * width else f"{threads[0]}+"
