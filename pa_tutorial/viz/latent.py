"""The figure of notebook 16: the intermediates of attention over a latent cache, in two forms."""

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

from pa_tutorial.viz import style
from pa_tutorial.viz.drawing import add, arrow, board, write

LATENT = style.lighter(style.QUIET, 0.3)
BOX = {"boxstyle": "round,pad=0.02,rounding_size=0.08", "linewidth": 0.8, "edgecolor": style.QUIET}
EXPANDED = (
    # column, row, words, colour: per sequence of T tokens
    (0, 0, "rows of the cache\nT × (512 + 64)", LATENT),
    (1, -0.6, "K = [latents · w_k,\nposition piece]\nT × 128 × (128 + 64)", style.K),
    (1, 0.6, "V = latents · w_v\nT × 128 × 128", style.V),
    (2, 0, "attention\neach head has\nits own K and V", style.EMPTY),
    (3, 0, "out\n128 × 128", style.OUT),
    (2, -1.3, "q\n128 × 192", style.Q),
)
ABSORBED = (
    (0, 0, "rows of the cache\nT × (512 + 64)", LATENT),
    (2, 0, "attention\nall heads read the\nsame rows as K and V", style.EMPTY),
    (3, 0, "out = w_v · weighted\nmean of the latents\n128 × 128", style.OUT),
    (1, -1.3, "q\n128 × 192", style.Q),
    (2, -1.3, "q · w_k\n128 × (512 + 64)", style.Q),
)
EXPANDED_ARROWS = (((0, 0), (1, -0.6)), ((0, 0), (1, 0.6)), ((1, -0.6), (2, 0)),
                   ((1, 0.6), (2, 0)), ((2, 0), (3, 0)), ((2, -1.3), (2, 0)))  # fmt: skip
ABSORBED_ARROWS = (((0, 0), (2, 0)), ((2, 0), (3, 0)), ((1, -1.3), (2, -1.3)),
                   ((2, -1.3), (2, 0)))  # fmt: skip
WIDE, HIGH = 0.8, 0.72


@style.styled
def draw_two_ways() -> Figure:
    """DeepSeek-V3, one sequence of T tokens: the intermediates on the way to the output."""
    title = (
        "Expanded, K and V are computed for every token and head; absorbed, only q and out change"
    )
    figure, (above, below) = style.new_figure(title, 4.6, nrows=2, height_ratios=(2.8, 2.2))
    for axes, name, boxes, arrows, end in (
        (above, "expanded", EXPANDED, EXPANDED_ARROWS, 1.05),
        (below, "absorbed", ABSORBED, ABSORBED_ARROWS, 0.45),
    ):
        for tail, head in arrows:
            _draw_step(axes, tail, head)
        for column, row, words, color in boxes:
            _draw_box(axes, column, row, words, color)
        write(axes, -0.42, -1.3, name, "left", weight="bold")
        board(axes, 3.45, end, -0.45, -1.75)
    return figure


def _draw_box(axes: Axes, column: float, row: float, words: str, color: str) -> None:
    corner = column - WIDE / 2, row - HIGH / 2
    add(axes, FancyBboxPatch(corner, WIDE, HIGH, facecolor=style.lighter(color), **BOX))
    write(axes, column, row, words, size=8.5)


def _draw_step(axes: Axes, tail: tuple[float, float], head: tuple[float, float]) -> None:
    """An arrow from the right side of a box to the left side of another; downwards in a column."""
    if tail[0] == head[0]:
        start, end = (tail[0], tail[1] + HIGH / 2 + 0.03), (head[0], head[1] - HIGH / 2 - 0.03)
    else:
        start, end = (tail[0] + WIDE / 2 + 0.03, tail[1]), (head[0] - WIDE / 2 - 0.03, head[1])
    arrow(axes, start, end)
