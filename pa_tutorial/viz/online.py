"""The figures of notebook 05: online softmax token by token, parts and their merge."""

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch, Rectangle
from torch import Tensor

from pa_tutorial.attention.online import Part, part_of
from pa_tutorial.viz import style
from pa_tutorial.walk.cases import WORKED_EXAMPLE


def worked_scores_and_values() -> tuple[list[float], Tensor]:
    """Head 0 of the worked example: a score for each token, and the first 2 elements of its V."""
    values = WORKED_EXAMPLE.inputs().values[0][:, 0, :2].double()
    return WORKED_EXAMPLE.expected()["qk"][0, 0].tolist(), values


def worked_part(start: int, end: int) -> Part:
    """The part of tokens start to end - 1 of it, as Python numbers."""
    scores, values = worked_scores_and_values()
    if start == end:
        return Part(-math.inf, 0.0, [0.0, 0.0])
    qk = torch.tensor([scores[start:end]], dtype=torch.float64)
    m, l, acc = part_of(qk, values[start:end])
    return Part(m.item(), l.item(), acc[0].tolist())


@style.styled
def draw_trail(scores: Sequence[float], parts: Sequence[Part]) -> Figure:
    """m, l and the first element of acc after 0, 1, 2, … tokens."""
    new_maximum = [j for j, score in enumerate(scores) if score > parts[j].m]
    figure, (top, middle, bottom) = style.new_figure(
        f"At tokens {' and '.join(str(j) for j in new_maximum[1:])} a new maximum comes: "
        "the old sums are multiplied",
        4.6,
        nrows=3,
        sharex=True,
    )
    tokens = range(len(scores))
    top.bar(tokens, scores, width=0.6, color=style.LOGITS)
    top.step(tokens, [part.m for part in parts[1:]], where="mid", color=style.INK, linewidth=2)
    top.text(len(scores) - 0.3, parts[-1].m, "m", va="center", weight="bold")
    top.set_ylabel("score")

    kept = [part.l * math.exp(part.m - after.m) for part, after in pairwise(parts)]
    added = [after.l - old for after, old in zip(parts[1:], kept, strict=True)]
    middle.bar(tokens, kept, width=0.6, color=style.lighter(style.QUIET, 0.5))
    middle.bar(tokens, added, width=0.6, bottom=kept, color=style.INK)
    middle.text(len(scores) - 0.3, parts[-1].l, "l", va="center", weight="bold")
    note = "grey: old sum × factor\nblack: the new exp(score - m)"
    middle.text(0.62, parts[-1].l, note, va="top")
    middle.set_ylabel("sum")

    bottom.bar(tokens, [part.acc[0] for part in parts[1:]], width=0.6, color=style.V)
    outs = [part.acc[0] / part.l for part in parts[1:]]
    bottom.plot(tokens, outs, "o-", color=style.OUT, linewidth=1)
    bottom.text(len(scores) - 0.3, parts[-1].acc[0], "acc", va="center", weight="bold")
    bottom.text(len(scores) - 0.3, outs[-1], "acc / l", va="center", color=style.INK)
    bottom.set_ylabel("element 0")
    bottom.set_xlabel("token")
    bottom.set_xticks(tokens)
    bottom.set_xlim(-0.7, len(scores) + 0.8)
    for axes in (top, bottom):
        axes.axhline(0, color=style.QUIET, linewidth=0.8)
    for j in new_maximum[1:]:
        factor = math.exp(parts[j].m - parts[j + 1].m)
        for axes in (middle, bottom):
            axes.axvline(j - 0.5, color=style.INK, linewidth=1, linestyle=":")
        behind = {"facecolor": style.PAPER, "edgecolor": "none", "pad": 1}
        place = (j - 0.5, 1.15 * parts[-1].l)
        middle.text(*place, f"× {factor:.2f}", ha="center", va="center", bbox=behind)
    middle.set_ylim(0, 1.3 * parts[-1].l)
    return figure


@style.styled
def draw_merge(scores: Sequence[float], parts: Sequence[Part], whole: Part, cut: int) -> Figure:
    """The tokens cut in two, the part of each piece, and the part of all of them."""
    pieces = [(0, cut), (cut, len(scores))]
    figure, axes = style.new_figure(
        "Each piece is attended alone; merged, the parts give the output of all tokens", 3.7
    )
    width = 1.35 * len(scores) + 1.2
    axes.set_xlim(-0.2, width)
    axes.set_ylim(7.4, -0.9)
    axes.axis("off")
    middles = []
    for index, (start, end) in enumerate(pieces):
        x = 1.35 * start + 1.2 * index
        for j in range(start, end):
            _score_cell(axes, x + 1.35 * (j - start), j, scores[j])
        middle = x + 1.35 * (end - start) / 2
        middles.append(min(middle, width - 3.6))
        _part_box(axes, middles[-1], 2.1, parts[index], f"part of tokens {start} to {end - 1}")
        _arrow(axes, (middle, 1.05), (middles[-1], 1.95))
    center = width / 2
    _part_box(axes, center, 5.3, whole, f"part of tokens 0 to {len(scores) - 1}")
    for middle, part in zip(middles, parts, strict=True):
        _arrow(axes, (middle, 4.05), (center, 5.2))
        factor = math.exp(part.m - whole.m)
        place = ((middle + center) / 2, 4.5)
        behind = {"facecolor": style.PAPER, "edgecolor": "none", "pad": 1}
        axes.text(*place, f"× {factor:.2f}", ha="center", va="center", bbox=behind)
    out = ", ".join(f"{x / whole.l:.2f}" for x in whole.acc)
    axes.text(center + 4.3, 6.2, f"out = acc / l\n= {out}, …", va="center")
    return figure


def _score_cell(axes: Axes, x: float, j: int, score: float) -> None:
    style.add(
        axes,
        Rectangle((x, 0), 1.3, 1, facecolor=style.lighter(style.LOGITS, 0.5), edgecolor="none"),
    )
    axes.text(x + 0.65, 0.5, f"{score:.2f}", ha="center", va="center", fontsize=7.5)
    axes.text(x + 0.65, -0.4, str(j), ha="center", va="center", color=style.QUIET, fontsize=7.5)


def _part_box(axes: Axes, center: float, y: float, part: Part, caption: str) -> None:
    """m, l and acc of a part; 7 wide."""
    style.add(
        axes,
        FancyBboxPatch(
            (center - 3.4, y),
            6.8,
            1.9,
            boxstyle="round,pad=0,rounding_size=0.25",
            facecolor=style.EMPTY,
            edgecolor=style.INK,
        ),
    )
    acc = ", ".join(f"{x:.2f}" for x in part.acc)
    axes.text(center, y + 0.5, caption, ha="center", va="center", weight="bold", fontsize=8)
    axes.text(center, y + 1.0, f"m {part.m:.2f}    l {part.l:.2f}", ha="center", va="center")
    axes.text(center, y + 1.5, f"acc {acc}, …", ha="center", va="center")


def _arrow(axes: Axes, start: tuple[float, float], end: tuple[float, float]) -> None:
    style.add(
        axes,
        FancyArrowPatch(
            start, end, arrowstyle="-|>", mutation_scale=10, color=style.INK, shrinkA=0, shrinkB=0
        ),
    )


def draw_worked_trail() -> Figure:
    scores, _ = worked_scores_and_values()
    return draw_trail(scores, [worked_part(0, count) for count in range(len(scores) + 1)])


def draw_worked_merge() -> Figure:
    scores, _ = worked_scores_and_values()
    cut, end = WORKED_EXAMPLE.block_size, len(scores)
    parts = [worked_part(0, cut), worked_part(cut, end)]
    return draw_merge(scores, parts, worked_part(0, end), cut)
