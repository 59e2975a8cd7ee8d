"""The elements of figures: boards, words, boxes, rows of cells, arrows, lines with names."""

from collections.abc import Iterable, Sequence

from matplotlib.axes import Axes
from matplotlib.patches import FancyArrowPatch, Patch, Rectangle
from matplotlib.text import Text

from pa_tutorial.viz.style import EMPTY, INK, PAPER, QUIET, UNUSED_HATCH, ink_on

Place = tuple[float, float]
SMALL = 8.5  # points: numbers in cells
LARGE = 11  # readable where the figure is 400 pixels wide


def board(
    axes: Axes,
    right: float,
    bottom: float,
    left: float = -0.05,
    top: float = -0.05,
    square: bool = False,
) -> None:
    """No ticks, no frame, the origin at the top left; `square`: a cell is as wide as high."""
    axes.set_xlim(left, right)
    axes.set_ylim(bottom, top)
    axes.set_aspect("equal" if square else "auto")
    axes.axis("off")


def add(axes: Axes, patch: Patch) -> None:
    """A patch on a board, whose limits are known, so the patch needs no further room.

    With `add_patch` and the layout, Matplotlib would compute the limits and the room, which takes a
    quarter of the time of a figure with many cells.
    """
    axes.add_artist(patch).set_in_layout(False)


def write(
    axes: Axes, x: float, y: float, text: object, ha: str = "center", **options: object
) -> Text:
    """A text centred at a place, or beside it; `ha` is the side of the text where the place is."""
    return axes.text(x, y, str(text), ha=ha, **{"va": "center", **options})


def note(
    axes: Axes, x: float, y: float, text: object, ha: str = "center", **options: object
) -> Text:
    """A grey text that names something instead of showing its content."""
    return write(axes, x, y, text, ha, color=QUIET, **options)


def plate(pad: float, color: str = PAPER) -> dict[str, object]:
    """The bbox that keeps a text readable on top of something else."""
    return {"facecolor": color, "edgecolor": "none", "pad": pad}


def plural(count: int, noun: str) -> str:
    """1 load, 2 loads."""
    return f"{count:,} {noun}{'s' * (count != 1)}"


def are(count: int) -> str:
    return "is" if count == 1 else "are"


def compared(case: str, finding: str) -> str:
    """The title of a picture of yours beside the right one."""
    return f"{case}: {finding}" if case else finding[0].upper() + finding[1:]


def goal(case: str, finding: str) -> str:
    """The title of a picture of the right one alone."""
    if not case:
        return f"The goal: {finding}"
    case = case if case.startswith("The goal") else f"The goal: {case}"
    return f"{case}; {finding}" if ":" in case else f"{case}: {finding}"


def span(numbers: Sequence[int]) -> str:
    """The numbers 4, 5, 6, 7 as 4–7."""
    first, last = numbers[0], numbers[-1]
    return f"{first}–{last}" if last > first else str(first)


def box(
    axes: Axes,
    x: float,
    y: float,
    width: float,
    height: float,
    color: str,
    text: object = "",
    size: float | None = None,
    **look: object,
) -> None:
    """A rectangle with a text in the middle, readable on its colour."""
    look = {"facecolor": color, "edgecolor": PAPER, **look}
    add(axes, Rectangle((x, y), width, height, **look))
    if text != "":
        write(axes, x + width / 2, y + height / 2, text, color=ink_on(color), size=size)


def frame(
    axes: Axes, x: float, y: float, width: float, height: float, color: str = INK, **look: object
) -> None:
    """An outline around existing cells."""
    add(axes, Rectangle((x, y), width, height, fill=False, edgecolor=color, **look))


def cell(
    axes: Axes,
    x: float,
    y: float,
    color: str,
    text: object = "",
    unused: bool = False,
    size: float | None = None,
) -> None:
    """One square; hatched if unused."""
    look = {"facecolor": EMPTY, "hatch": UNUSED_HATCH} if unused else {"facecolor": color}
    add(axes, Rectangle((x, y), 1, 1, edgecolor=PAPER, linewidth=1.2, **look))
    if text != "":
        label = write(axes, x + 0.5, y + 0.5, text, color=ink_on(color), size=size)
        label.set_in_layout(len(str(text)) > 3)  # a short one needs no room beyond its square


def cells(axes: Axes, x: float, y: float, texts: Iterable[object], color: str, size: float) -> None:
    """An array: cells of one colour from left to right, each with its text."""
    for column, text in enumerate(texts):
        box(axes, x + column, y, 1, 1, color, text, size)


def arrow(axes: Axes, tail: Place, head: Place, size: float = 7, **look: object) -> None:
    """A straight arrow between two points; `size` is the size of its head, in points."""
    look = {"color": QUIET, "linewidth": 0.8, "shrinkA": 0, "shrinkB": 0, **look}
    add(axes, FancyArrowPatch(tail, head, arrowstyle="-|>", mutation_scale=size, **look))


def label_line(
    axes: Axes, xs: Sequence[float], ys: Sequence[float], text: str, color: str, rise: float = 0
) -> None:
    """A line with its name at its end instead of a legend; `rise` moves the name, in points."""
    axes.plot(xs, ys, color=color, linewidth=2)
    place = {"xytext": (4, rise), "textcoords": "offset points", "va": "center"}
    axes.annotate(text, (xs[-1], ys[-1]), color=color, annotation_clip=False, **place)
