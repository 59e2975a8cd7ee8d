"""The figures of notebook 05: online softmax token by token, parts and their merge."""

import math
from collections.abc import Sequence
from itertools import pairwise

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

from pa_tutorial.attention.online import Part
from pa_tutorial.viz import style
from pa_tutorial.viz.drawing import add, arrow, board, box, note, plate, write


@style.styled
def draw_trail(scores: Sequence[float], parts: Sequence[Part]) -> Figure:
    """m, l and the first element of acc after 0, 1, 2, … tokens."""
    new_maximum = [j for j, score in enumerate(scores) if score > parts[j].m][1:]
    which = " and ".join(map(str, new_maximum))
    title = f"Tokens {which} raise the maximum, so older sums shrink" if which else "No new maximum"
    figure, (top, middle, bottom) = style.new_figure(title, 4.6, nrows=3, sharex=True)
    tokens, end, last = range(len(scores)), len(scores) - 0.3, parts[-1]
    top.bar(tokens, scores, width=0.6, color=style.LOGITS)
    top.step(tokens, [part.m for part in parts[1:]], where="mid", color=style.INK, linewidth=2)
    write(top, end, last.m, "m", "left", weight="bold")
    top.set_ylabel("score")
    _draw_sums(middle, parts)
    write(middle, end, last.l, "l", "left", weight="bold")

    bottom.bar(tokens, [part.acc[0] for part in parts[1:]], width=0.6, color=style.V)
    outs = [part.acc[0] / part.l for part in parts[1:]]
    bottom.plot(tokens, outs, "o-", color=style.OUT, linewidth=1)
    write(bottom, end, last.acc[0], "acc", "left", weight="bold")
    write(bottom, end, outs[-1], "acc / l", "left")
    bottom.set_ylabel("element 0")
    bottom.set_xlabel("token")
    bottom.set_xticks(tokens)
    bottom.set_xlim(-0.7, len(scores) + 0.8)
    for axes in (top, bottom):
        axes.axhline(0, color=style.QUIET, linewidth=0.8)
    for j in new_maximum:
        for axes in (middle, bottom):
            axes.axvline(j - 0.5, color=style.INK, linewidth=1, linestyle=":")
        factor = math.exp(parts[j].m - parts[j + 1].m)
        write(middle, j - 0.5, 1.15 * last.l, f"× {factor:.2f}", bbox=plate(1))
    middle.set_ylim(0, 1.3 * last.l)
    return figure


def _draw_sums(axes: Axes, parts: Sequence[Part]) -> None:
    """For each sum, how much of the previous sum was kept, and what was added."""
    kept = [part.l * math.exp(part.m - after.m) for part, after in pairwise(parts)]
    added = [after.l - old for after, old in zip(parts[1:], kept, strict=True)]
    axes.bar(range(len(kept)), kept, width=0.6, color=style.lighter(style.QUIET, 0.5))
    axes.bar(range(len(kept)), added, width=0.6, bottom=kept, color=style.INK)
    words = "grey: old sum × factor\nblack: what is added to it"
    axes.text(0.62, parts[-1].l, words, va="top")
    axes.set_ylabel("sum")


@style.styled
def draw_merge(scores: Sequence[float], parts: Sequence[Part], whole: Part, cut: int) -> Figure:
    """The tokens split in two, the part of each half, and the part of all tokens."""
    title = "To merge two parts, multiply each one's l and acc by its factor, then add them up"
    figure, axes = style.new_figure(title, 3.7)
    width = 1.35 * len(scores) + 1.2
    board(axes, width, 7.4, -0.2, -0.9)
    center, middles = width / 2, []
    for index, (start, end) in enumerate(((0, cut), (cut, len(scores)))):
        x = 1.35 * start + 1.2 * index
        for j in range(start, end):
            left = x + 1.35 * (j - start)
            shade = style.lighter(style.LOGITS, 0.5)
            box(axes, left, 0, 1.3, 1, shade, f"{scores[j]:.2f}", edgecolor="none")
            note(axes, left + 0.65, -0.4, j)
        middle = x + 1.35 * (end - start) / 2
        middles.append(min(middle, width - 3.6))
        _draw_part(axes, middles[-1], 2.1, parts[index], f"part of tokens {start} to {end - 1}")
        arrow(axes, (middle, 1.05), (middles[-1], 1.95), 10, color=style.INK, linewidth=1)
    _draw_part(axes, center, 5.3, whole, f"part of tokens 0 to {len(scores) - 1}")
    for middle, part in zip(middles, parts, strict=True):
        arrow(axes, (middle, 4.05), (center, 5.2), 10, color=style.INK, linewidth=1)
        factor = math.exp(part.m - whole.m)
        write(axes, (middle + center) / 2, 4.5, f"× {factor:.2f}", bbox=plate(1))
    out = ", ".join(f"{x / whole.l:.2f}" for x in whole.acc)
    write(axes, center + 4.3, 6.2, f"out = acc / l\n= {out}, …", "left")
    return figure


def _draw_part(axes: Axes, center: float, y: float, part: Part, caption: str) -> None:
    """m, l and acc of a part; 7 wide."""
    form = {"boxstyle": "round,pad=0,rounding_size=0.25"}
    form |= {"facecolor": style.EMPTY, "edgecolor": style.INK}
    add(axes, FancyBboxPatch((center - 3.4, y), 6.8, 1.9, **form))
    acc = ", ".join(f"{x:.2f}" for x in part.acc)
    write(axes, center, y + 0.5, caption, weight="bold")
    write(axes, center, y + 1.0, f"m {part.m:.3f}    l {part.l:.3f}")
    write(axes, center, y + 1.5, f"acc {acc}, …")
