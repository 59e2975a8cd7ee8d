"""The figures of notebook 01: what a cache stores, and how much work it saves."""

from collections.abc import Callable, Mapping, Sequence
from math import isfinite, isnan
from textwrap import fill

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from pa_tutorial.attention.cached import cached_attention
from pa_tutorial.viz import style
from pa_tutorial.viz.drawing import (
    LARGE,
    are,
    board,
    box,
    cell,
    compared,
    goal,
    label_line,
    note,
    plate,
    plural,
    write,
)


@style.styled
def draw_prefill_and_decode(
    q: Tensor, k: Tensor, attention: Callable[..., Tensor] = cached_attention, prompt_len: int = 4
) -> Figure:
    """Which key each query reads: all queries at prefill, one new query at each decode step.

    q, k       [seq_len, num_heads, head_size]; head 0 is drawn
    attention  (q, k, v, scale), ours or a reader's, whose weights are drawn
    """
    title = (
        "A decode step has one new query, and reads the k and v of earlier tokens from the cache"
    )
    figure, panels = style.new_figure(title, 2.9, ncols=3)
    (seq_len, _, head_size), q, k = q.shape, q[:, :1], k[:, :1]
    steps = [(0, prompt_len)] + [(end - 1, end) for end in range(prompt_len + 1, seq_len + 1)]
    for axes, (first, last) in zip(panels, steps, strict=True):
        board(axes, seq_len + 1.3, seq_len + 2.3, square=True)
        kind = "prefill" if first == 0 else f"decode, step {last - prompt_len}"
        axes.set_title(kind, loc="center", weight="normal")
        for row, (letter, color) in enumerate((("k", style.K), ("v", style.V))):
            for j in range(last):
                shade = color if j >= first else style.lighter(color)
                cell(axes, j + 1.2, row, shade, f"${letter}_{j}$")
        # With row j of the identity as v_j, a query's output is its weights.
        one_hot = torch.eye(last, head_size)[:, None]
        weights = attention(q[first:last], k[:last], one_hot, head_size**-0.5)
        for row, i in enumerate(range(first, last)):
            cell(axes, 0, row + 2.2, style.Q, f"$q_{i}$")
            for j, weight in enumerate(weights[row, 0, :last].tolist()):
                color = style.lighter(style.LOGITS, 0.8 - 0.8 * weight) if weight else style.EMPTY
                cell(axes, j + 1.2, row + 2.2, color, in_two_digits(weight) if weight else "")
        nouns = "query, key and value" if last - first == 1 else "queries, keys and values"
        light = f"faint: {first} k and v from the cache"
        cached = light if first else "pink: weights; grey: masked"
        axes.text(0, last - first + 2.5, f"new: {last - first} {nouns}\n{cached}", va="top")
    return figure


@style.styled
def draw_work_per_token(recompute: Sequence[int], cached: Sequence[int]) -> Figure:
    """Counted operations for each next token: two lists from flops_per_token."""
    num_tokens = len(cached)
    title = f"At token {num_tokens}, recomputing is {recompute[-1] / cached[-1]:.0f} times the work"
    figure, axes = style.new_figure(title, 2.6)
    lines = ((recompute, "recomputing", style.QUIET), (cached, "with the cache", style.INK))
    for counts, name, color in lines:
        millions = [count / 1e6 for count in counts]
        label_line(axes, range(1, num_tokens + 1), millions, name, color)
    _scales(axes, [2**power for power in range(num_tokens.bit_length())])
    axes.set_xlim(0.95, num_tokens * 2.6)
    axes.set_xlabel("tokens in the sequence")
    axes.set_ylabel("million operations\nper new token")
    return figure


def _scales(axes: Axes, ticks: Sequence[int]) -> None:
    """Both logarithmic; the ticks are powers of two."""
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(ticks, [str(tick) for tick in ticks])
    axes.minorticks_off()


# A reader's weights beside the right ones ---------------------------------------------------------

LABEL, SIDE_BY_SIDE = 3.2, 8  # columns: of a row's name, and of weights that two panels can have
MOST_ROWS, MOST_COLUMNS = 8, 16  # that are drawn
MOST_NUMBERS = 100  # in a row or column, that are compared
ROUNDING, DIFFERENT = 1e-6, 0.005

Weights = list[list[float]]


@style.styled
def draw_weights(
    weights: Mapping[str, Tensor],
    title: str = "",
    rows: str = "query",
    columns: str = "token",
) -> Figure:
    """A reader's weights beside the right ones; the right ones alone are the goal.

    Red: a weight that must be 0, and isn't. Hatched: NaN. Outlined: wrong otherwise.

    weights  "yours" and "right", [rows, columns] each; yours may be of a wrong function
    title    of which case they are; what is wrong is added
    """
    shown = {words: in_rows(found) for words, found in weights.items() if found is not None}
    right, yours = shown["right"], shown.get("yours")
    if is_goal := yours is None:
        zeros = sum(line.count(0) for line in right)
        heading = goal(title, f"{zeros} of {plural(sum(map(len, right)), 'weight')} are 0")
    else:
        heading = compared(title, in_short(yours, right, rows))
    num_rows = min(MOST_ROWS, max(size(one)[0] for one in shown.values()))
    num_columns = min(MOST_COLUMNS, max(size(one)[1] for one in shown.values()))
    across = len(shown) if num_columns <= SIDE_BY_SIDE else 1
    head = (
        1.0 if is_goal and size(right)[1] <= MOST_COLUMNS else 2.0
    )  # of a panel: whose it is, and the columns' numbers
    width, height = LABEL + num_columns + 0.3, num_rows + head + 0.6
    down = len(shown) // across
    figure, axes = style.new_figure("", 0.3 + 0.3 * height * down + 0.16 * (len(heading) // 88))
    figure.suptitle(fill(heading, 88), parse_math=False, **style.TITLE)
    board(axes, max(across * width, 15), height * down)
    for number, (words, one) in enumerate(shown.items()):
        x, y = (number * width, head) if across > 1 else (0, number * height + head)
        _draw_one(axes, x, y, "" if is_goal else words, one, right, (rows, columns))
    return figure


def in_rows(found: object) -> Weights:
    """What a wrong function returned as weights: as much of it as can be drawn."""
    try:
        numbers = torch.as_tensor(found).detach().to("cpu", torch.float64)
        while numbers.ndim > 2:
            numbers = numbers[0]
        numbers = numbers.reshape(-1, numbers.shape[-1]) if numbers.ndim else numbers[None, None]
        return numbers[:MOST_NUMBERS, :MOST_NUMBERS].tolist()
    except (TypeError, ValueError, RuntimeError, IndexError, NotImplementedError):
        return []


def size(one: Weights) -> tuple[int, int]:
    return len(one), max(map(len, one), default=0)


def must_be_zero(right: Weights, row: int, column: int) -> bool:
    """So is everything outside the right weights."""
    return row >= len(right) or column >= len(right[row]) or right[row][column] == 0


def in_short(yours: Weights, right: Weights, rows: str) -> str:
    """What the picture shows: the first of these."""
    places = [(row, column) for row, line in enumerate(yours) for column in range(len(line))]
    if nans := sum(isnan(yours[row][column]) for row, column in places):
        return f"{plural(nans, 'weight')} {are(nans)} NaN"
    leaks = sum(must_be_zero(right, *at) and abs(yours[at[0]][at[1]]) > ROUNDING for at in places)
    if leaks:
        return f"{plural(leaks, 'weight')} that must be 0 {are(leaks)} not (red)"
    for row, (line, other) in enumerate(zip(yours, right, strict=False)):
        if abs(sum(line) - sum(other)) > DIFFERENT:
            return f"the weights of {rows} {row} add up to {sum(line):.2f}, not {sum(other):.2f}"
    others = sum(is_other(yours[row][column], right, (row, column)) for row, column in places)
    if others:
        return f"{plural(others, 'weight')} {are(others)} wrong (outlined)"
    return "your weights are right"


def is_other(weight: float, right: Weights, place: tuple[int, int]) -> bool:
    """It must not be 0, and is another number than the right one."""
    row, column = place
    return not must_be_zero(right, *place) and abs(weight - right[row][column]) > DIFFERENT


def _draw_one(
    axes: Axes, x: float, y: float, words: str, one: Weights, right: Weights, names: tuple[str, str]
) -> None:
    """A panel: what it shows, the columns' numbers, then from y on a row for each query."""
    if size(one) != size(right):
        words += f": {len(one)} × {size(one)[1]}, not {len(right)} × {size(right)[1]}"
    elif size(one)[1] > MOST_COLUMNS:
        words += f" the first {MOST_COLUMNS} of {size(one)[1]} {names[1]}s"
    write(axes, x + LABEL, y - 1.5, words.strip(), "left", size=LARGE, weight="bold")
    look = {"size": LARGE - 1}
    note(axes, x + LABEL - 0.2, y - 0.6, names[1], "right", **look)
    for column in range(min(MOST_COLUMNS, size(one)[1])):
        note(axes, x + LABEL + column + 0.5, y - 0.6, column, **look)
    for row, line in enumerate(one[:MOST_ROWS]):
        leaks = any(must_be_zero(right, row, j) and abs(w) > ROUNDING for j, w in enumerate(line))
        top = y + row
        note(axes, x + LABEL - 0.2, top + 0.5, f"{names[0]} {row}", "right", **look)
        for column, weight in enumerate(line[:MOST_COLUMNS]):
            _draw_weight(axes, x + LABEL + column, top, weight, right, (row, column), leaks)


def _draw_weight(
    axes: Axes,
    x: float,
    y: float,
    weight: float,
    right: Weights,
    place: tuple[int, int],
    leaks: bool,
) -> None:
    """A cell, darker with a larger weight. `leaks`: another one of its row must be 0, and isn't,
    so that this one is too small, through no fault of its own."""
    zero = must_be_zero(right, *place)
    if isnan(weight):
        look = {"hatch": style.UNUSED_HATCH * 2, "edgecolor": style.WRONG}
        box(axes, x, y, 0.96, 0.96, style.PAPER, **look)
        write(axes, x + 0.5, y + 0.5, "NaN", size=LARGE - 2, color=style.WRONG, bbox=plate(0.5))
    elif zero and abs(weight) > ROUNDING:
        box(axes, x, y, 0.96, 0.96, style.WRONG, in_two_digits(weight), LARGE)
    elif zero:
        box(axes, x, y, 0.96, 0.96, style.EMPTY)
    else:
        pale = 1 - min(1, abs(weight)) if isfinite(weight) else 0
        is_wrong = is_other(weight, right, place) and (not leaks or abs(weight) <= ROUNDING)
        look = {"edgecolor": style.WRONG, "linewidth": 2, "zorder": 2} if is_wrong else {}
        color = style.lighter(style.LOGITS, pale)
        box(axes, x, y, 0.96, 0.96, color, in_two_digits(weight), LARGE, **look)


def in_two_digits(weight: float) -> str:
    """.25, 1, or · for a small one."""
    if not isfinite(weight):
        return "inf" if weight > 0 else "-inf"
    if abs(weight) < 0.005:
        return "·"
    if abs(weight) >= 9.95:
        return "-…" if weight < 0 else "…"
    digits = f"{weight:.2f}" if abs(weight) < 0.995 else f"{weight:.1f}"
    return digits.replace("0.", ".").removesuffix(".0")
