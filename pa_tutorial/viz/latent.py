"""Figures of the latent cache: operations for each byte, and what is computed in which order."""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

from pa_tutorial.attention.cache_bytes import MODELS, CachedToken, intensity
from pa_tutorial.distributed.sizes import H100, Device
from pa_tutorial.viz import style

LATENT = style.lighter(style.QUIET, 0.3)
SHADES = {"MHA": style.lighter(style.K, 0.6), "GQA": style.K, "MLA": LATENT}
# NVIDIA, data sheet "H100 Tensor Core GPU", SXM: float32 without tensor cores.
H100_FLOAT32_FLOPS = 67e12


def ridges(device: Device = H100, float32_flops: float = H100_FLOAT32_FLOPS) -> tuple[float, float]:
    """Operations per byte from which on computing takes longer than reading: without tensor cores
    (float32), and with them."""
    return float32_flops / device.bandwidth, device.flops / device.bandwidth


@style.styled
def draw_intensity(models: Sequence[CachedToken] = MODELS, device: Device = H100) -> Figure:
    """Operations per byte of a decode step, against what the device can do for a byte."""
    without, with_cores = ridges(device)
    shown = [model for model in models if "expanded" not in model.name]
    beyond = [model.name for model in shown if intensity(model) > without]
    figure, axes = style.new_figure(
        f"{' and '.join(beyond)} needs {intensity(shown[-1]):.0f} operations for each byte:\n"
        "only tensor cores keep up with the memory",
        2.4,
    )
    for row, model in enumerate(shown):
        value = intensity(model)
        axes.plot(
            (0.7, value), (row, row), color=SHADES[model.kind], linewidth=10, solid_capstyle="butt"
        )
        inside = {"x": 0.9 * value, "ha": "right"} if value > without else {"x": 1.15 * value}
        axes.text(y=row, s=f"{value:.0f}", va="center", **inside)
    for place, words in ((without, "float32 units"), (with_cores, "tensor cores")):
        axes.axvline(place, color=style.INK, linewidth=1, linestyle=":")
        axes.text(place, -0.75, f"{words}: {place:.0f}", ha="center", va="bottom")
    axes.set_yticks(range(len(shown)), [f"{model.name} ({model.kind})" for model in shown])
    axes.set_ylim(len(shown) - 0.4, -0.7)
    axes.set_xscale("log")
    axes.set_xlim(0.7, 900)
    axes.set_xticks([1, 10, 100], ["1", "10", "100"])
    axes.set_xlabel(
        f"operations for each byte of the cache (logarithmic); dotted: what an {device.name} can do"
    )
    return figure


# Two ways ---------------------------------------------------------------------------------------

BOX = {"boxstyle": "round,pad=0.02,rounding_size=0.08", "linewidth": 0.8, "edgecolor": style.QUIET}
EXPANDED = (
    # column, row, words, colour: per sequence of T tokens
    (0, 0, "rows of the cache\nT × (512 + 64)", LATENT),
    (1, -0.6, "K = latents · w_k, beside\nthe position piece\nT × 128 × (128 + 64)", style.K),
    (1, 0.6, "V = latents · w_v\nT × 128 × 128", style.V),
    (2, 0, "attention\nevery head its own\nK and V", style.EMPTY),
    (3, 0, "out\n128 × 128", style.OUT),
    (2, -1.3, "q\n128 × 192", style.Q),
)
ABSORBED = (
    (0, 0, "rows of the cache\nT × (512 + 64)", LATENT),
    (2, 0, "attention\nall heads the same\nrows, K and V alike", style.EMPTY),
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
    """DeepSeek-V3, one sequence of T tokens: what is made on the way to the output."""
    figure, (above, below) = style.new_figure(
        "Expanded makes K and V of every token and head; absorbed changes one query and one output",
        4.6,
        nrows=2,
        height_ratios=(2.8, 2.2),
    )
    for axes, name, boxes, arrows, end in (
        (above, "expanded", EXPANDED, EXPANDED_ARROWS, 1.05),
        (below, "absorbed", ABSORBED, ABSORBED_ARROWS, 0.45),
    ):
        for tail, head in arrows:
            _draw_step(axes, tail, head)
        for column, row, words, color in boxes:
            _draw_box(axes, column, row, words, color)
        axes.text(-0.42, -1.3, name, va="center", weight="bold")
        axes.set_xlim(-0.45, 3.45)
        axes.set_ylim(end, -1.75)
        axes.axis("off")
    return figure


def _draw_box(axes: Axes, column: float, row: float, words: str, color: str) -> None:
    corner = column - WIDE / 2, row - HIGH / 2
    style.add(axes, FancyBboxPatch(corner, WIDE, HIGH, facecolor=style.lighter(color), **BOX))
    axes.text(column, row, words, ha="center", va="center", size=8)


def _draw_step(axes: Axes, tail: tuple[float, float], head: tuple[float, float]) -> None:
    """From the right side of a box to the left side of another; downwards in a column."""
    if tail[0] == head[0]:
        start, end = (tail[0], tail[1] + HIGH / 2 + 0.03), (head[0], head[1] - HIGH / 2 - 0.03)
    else:
        start, end = (tail[0] + WIDE / 2 + 0.03, tail[1]), (head[0] - WIDE / 2 - 0.03, head[1])
    style.add(axes, style.arrow(start, end))
