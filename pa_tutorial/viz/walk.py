"""The map of the walk: the stages of the ladder, and what each is checked against."""

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

from pa_tutorial.viz import style
from pa_tutorial.viz.drawing import add, arrow, board, note, write

# name, what is new, notebook, checked against, (column, row)
PLAN = (
    ("full_recompute", "the definition", "01", (), (0, 0)),
    ("kv_cache", "keep K and V", "01", ("full_recompute",), (0, 1)),
    ("paged_gather", "K and V in blocks", "04", ("kv_cache",), (0, 2)),
    ("online_softmax", "one pass", "05", ("kv_cache",), (1, 2)),
    ("paged_online", "blocks, one pass", "06", ("paged_gather", "online_softmax"), (0.5, 3)),
    ("cuda_naive", "a thread per token", "08", ("paged_online",), (2.25, 3)),
    ("cuda_v1", "vLLM's v1", "10 to 12", ("cuda_naive",), (2.25, 2)),
    ("cuda_v1_vector", "16-byte loads", "13", ("cuda_v1",), (2.25, 1)),
    ("cuda_v2", "partitions", "14", ("cuda_v1_vector",), (2.25, 0)),
    ("cpu", "compiled, all cores", "23", ("paged_online",), (0, 4)),
    ("triton", "written in Triton", "24", ("paged_online",), (1, 4)),
)
BOX, STEP = (1.85, 0.95), (2.15, 1.35)


@style.styled
def draw_map() -> Figure:
    """An arrow leads to the stage that is checked."""
    title = "The walk: each stage is checked against the stages that its arrows come from"
    figure, axes = style.new_figure(title, 5.0)
    board(axes, 2.25 * STEP[0] + BOX[0] + 0.1, 4 * STEP[1] + BOX[1] + 0.5, square=True)
    corner = {name: (c * STEP[0] + 0.05, r * STEP[1] + 0.4) for name, *_, (c, r) in PLAN}
    for column, heading in ((0, "in torch"), (2.25, "CUDA, in the simulator")):
        note(axes, column * STEP[0] + 0.05 + BOX[0] / 2, 0.2, heading)
    for name, new, notebook, before, _ in PLAN:
        _draw_box(axes, corner[name], name, new, f"notebook {notebook}", facecolor=style.OUT)
        for previous in before:
            _draw_arrow(axes, corner[previous], corner[name])
    legend = corner["cuda_naive"][0], corner["cpu"][1]
    _draw_box(axes, legend, "name of a stage", "what is new", "where", facecolor=style.PAPER)
    return figure


def _draw_box(axes: Axes, place: tuple[float, float], *lines: str, facecolor: str) -> None:
    """Three lines in a box; the first is bold."""
    form = {"boxstyle": "round,pad=0,rounding_size=0.12", "edgecolor": style.INK}
    add(axes, FancyBboxPatch(place, *BOX, facecolor=facecolor, **form))
    (x, y), weights = place, ("bold", "normal", "normal")
    for text, down, weight in zip(lines, (0.25, 0.5, 0.73), weights, strict=True):
        write(axes, x + BOX[0] / 2, y + down, text, weight=weight)


def _draw_arrow(axes: Axes, start: tuple[float, float], end: tuple[float, float]) -> None:
    """Down from one box to the next, up, or sideways in the same row."""
    (x0, y0), (x1, y1) = start, end
    width, height = BOX
    if y1 > y0:
        tail, head = (x0 + width / 2, y0 + height), (x1 + width / 2, y1)
    elif y1 < y0:
        tail, head = (x0 + width / 2, y0), (x1 + width / 2, y1 + height)
    else:
        tail, head = (x0 + width, y0 + height / 2), (x1, y1 + height / 2)
    arrow(axes, tail, head, 10, color=style.INK, linewidth=1)
