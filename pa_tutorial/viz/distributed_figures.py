"""The cache on many devices: cut by heads, dealt out by blocks, and how the parts are merged."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from torch import Tensor

from pa_tutorial.distributed.context import deal_out, own_part
from pa_tutorial.distributed.heads import heads_of
from pa_tutorial.viz import style
from pa_tutorial.viz.kernel_runs import run_v2
from pa_tutorial.walk.cases import WORKED_EXAMPLE
from pa_tutorial.walk.problem import DecodeProblem

SMALL = 7.5  # points: numbers in cells
# One sequence of four blocks, the last one not full.
FOUR_BLOCKS = DecodeProblem(
    "four_blocks",
    "one sequence of four blocks",
    "",
    seq_lens=(29,),
    tables=((5, 2, 6, 1),),
    num_heads=4,
    num_kv_heads=4,
    head_size=32,
    block_size=8,
)
SEQUENCE = style.SEQUENCES[0]


# Cuts ----------------------------------------------------------------------------------------


def is_written(v_cache: Tensor) -> np.ndarray:
    """[num_blocks, num_kv_heads] which blocks hold a token; the rest is NaN. The plain layout."""
    return (~v_cache.isnan()).any(dim=3).any(dim=2).numpy()


def _pool(
    axes: Axes, y: int, title: str, v_cache: Tensor, table: Sequence[int], names: dict[int, int]
) -> None:
    """A pool: its blocks are columns, its KV heads rows. The table stands in the title.

    names  physical block number -> logical block index, printed in the block
    """
    written = is_written(v_cache)
    num_blocks, num_heads = written.shape
    numbers = ", ".join(map(str, table))
    axes.text(0, y - 1.25, f"{title}   block table [{numbers}]", va="center", weight="bold")
    for block in range(num_blocks):
        place = block + 0.5, y - 0.4
        axes.text(*place, str(block), ha="center", va="center", color=style.QUIET, size=SMALL)
        for head in range(num_heads):
            name = str(names[block]) if block in names else ""
            here = bool(written[block, head])
            style.cell(axes, block, y + head, SEQUENCE, name if here else "", unused=not here)


def _heads(axes: Axes, y: int, heads: Sequence[int]) -> None:
    for row, head in enumerate(heads):
        place = -0.25, y + row + 0.5
        axes.text(*place, f"head {head}", ha="right", va="center", color=style.QUIET, size=SMALL)


def _whole(axes: Axes, problem: DecodeProblem) -> None:
    inputs, table = problem.paged("plain"), problem.tables[0]
    names = {block: index for index, block in enumerate(table)}
    _pool(axes, 2, "one device", inputs.v_cache, table, names)
    _heads(axes, 2, range(problem.num_kv_heads))


def _boards(title: str, height: float, rows: int, width: int) -> tuple[Figure, Axes, Axes]:
    figure, (left, right) = style.new_figure(title, height, ncols=2)
    for axes in (left, right):
        style.bare(axes, width, rows)
        axes.set_xlim(-1.6, width)
    return figure, left, right


@style.styled
def draw_heads(problem: DecodeProblem, num_ranks: int) -> Figure:
    """The cache of one device, and those of ranks that have some heads of every block."""
    inputs, table = problem.paged("plain"), problem.tables[0]
    names = {block: index for index, block in enumerate(table)}
    num_blocks, num_kv_heads = inputs.v_cache.shape[:2]
    per_rank = len(heads_of(0, num_ranks, problem.num_heads, num_kv_heads)[1])
    rows = max(2 + num_kv_heads, num_ranks * (per_rank + 2))
    figure, left, right = _boards(
        f"Cut by heads: {num_ranks} ranks have the same blocks and the same block table, "
        "but other heads",
        0.6 + 0.27 * rows,
        rows,
        num_blocks,
    )
    _whole(left, problem)
    for rank in range(num_ranks):
        _, heads = heads_of(rank, num_ranks, problem.num_heads, num_kv_heads)
        y = 2 + rank * (per_rank + 2)
        own = inputs.v_cache[:, heads.start : heads.stop]
        _pool(right, y, f"rank {rank}", own, table, names)
        _heads(right, y, heads)
    return figure


@style.styled
def draw_blocks(problem: DecodeProblem, num_ranks: int) -> Figure:
    """The cache of one device, and those of ranks that have some blocks, with all heads."""
    inputs = problem.paged("plain")
    num_kv_heads = inputs.v_cache.shape[1]
    rows = num_ranks * (num_kv_heads + 2)
    figure, left, right = _boards(
        f"Dealt out by blocks: {num_ranks} ranks have all heads, but other blocks, "
        "numbered by each for itself",
        0.6 + 0.27 * rows,
        rows,
        len(inputs.v_cache),
    )
    _whole(left, problem)
    whole = inputs.k_cache, inputs.v_cache, inputs.block_tables, inputs.seq_lens
    for rank in range(num_ranks):
        share = deal_out(*whole, rank, num_ranks)
        # Without what only pads the table.
        indices = [i for i in share.block_indices.tolist() if i < len(problem.tables[0])]
        table = share.block_tables[0, : len(indices)].tolist()
        names = dict(zip(table, indices, strict=True))
        y = 2 + rank * (num_kv_heads + 2)
        _pool(right, y, f"rank {rank}", share.v_cache, table, names)
        _heads(right, y, range(num_kv_heads))
    return figure


def draw_four_blocks_by_heads() -> Figure:
    return draw_heads(FOUR_BLOCKS, 2)


def draw_four_blocks_dealt_out() -> Figure:
    return draw_blocks(FOUR_BLOCKS, 2)


# Merge ---------------------------------------------------------------------------------------


def parts_of_thread_blocks(problem: DecodeProblem, partition_size: int, head: int) -> list[tuple]:
    """Of each partition of v2: maximum, sum, output of the partition alone."""
    left = run_v2(problem, partition_size).prepared
    return [
        (float(m), float(l), out.float().numpy())
        for m, l, out in zip(
            left.max_logits[0, head], left.exp_sums[0, head], left.tmp_out[0, head], strict=True
        )
    ]


def parts_of_ranks(problem: DecodeProblem, num_ranks: int, head: int) -> list[tuple]:
    """Of each rank: the same three."""
    inputs = problem.paged("plain")
    whole = inputs.k_cache, inputs.v_cache, inputs.block_tables, inputs.seq_lens
    found = []
    for rank in range(num_ranks):
        share = deal_out(*whole, rank, num_ranks)
        part = own_part(inputs.q, share, inputs.seq_lens, inputs.scale, inputs.alibi_slopes)
        m, l, acc = (tensor[0, head].numpy() for tensor in part)
        found.append((float(m), float(l), acc / l))
    return found


def merged(parts: list[tuple]) -> tuple[float, list[float], np.ndarray]:
    """The common maximum, what each sum counts below it, the output."""
    m = max(part[0] for part in parts)
    rescaled = [l * float(np.exp(own - m)) for own, l, _ in parts]
    out = sum(r * part[2] for r, part in zip(rescaled, parts, strict=True)) / sum(rescaled)
    return m, rescaled, out


@style.styled
def draw_merge(problem: DecodeProblem, head: int = 0, rows: int = 4) -> Figure:
    """One head of a sequence: partitions of one block each, beside ranks with one block each.

    rows  numbers of the outputs that are shown
    """
    num_parts = -(-problem.seq_lens[0] // problem.block_size)
    of_blocks = parts_of_thread_blocks(problem, problem.block_size, head)
    of_ranks = parts_of_ranks(problem, num_parts, head)
    figure, (left, right) = style.new_figure(
        "A rank leaves the numbers that a thread block of v2 leaves; the same rule merges both",
        3.5,
        ncols=2,
        width_ratios=(1.25, 1),
    )
    _column(left, "thread block", of_blocks, rows)
    _column(right, "rank", of_ranks, rows)
    names = ("", "maximum m", "sum l", "output", "", "M = max of m", "l × exp(m - M)", "output")
    for y, name in enumerate(names):
        left.text(-0.25, y + 0.5, name, ha="right", va="center", color=style.QUIET)
    words = (
        "one device: read from its memory\nby the reduce kernel",
        "over the network:\ntwo all-reduces",
    )
    for axes, text in zip((left, right), words, strict=True):
        style.bare(axes, num_parts * (rows + 0.5), len(names))
        axes.set_aspect("auto")
        middle = num_parts * (rows + 0.5) / 2
        axes.text(middle, 4.5, text, ha="center", va="center")
    left.set_xlim(-3.4, num_parts * (rows + 0.5))
    return figure


def _column(axes: Axes, kind: str, parts: list[tuple], rows: int) -> None:
    largest, rescaled, out = merged(parts)
    light, dark = style.lighter(style.LOGITS, 0.75), style.lighter(style.LOGITS, 0.375)
    for number, ((m, l, own), r) in enumerate(zip(parts, rescaled, strict=True)):
        x = number * (rows + 0.5)
        axes.text(x + rows / 2, 0.5, f"{kind} {number}", ha="center", va="center", weight="bold")
        _box(axes, x, 1, f"{m:.3f}", light, rows)
        _box(axes, x, 2, f"{l:.3f}", dark, rows)
        for row in range(rows):
            _box(axes, x + row, 3, f"{own[row]:.2f}", style.lighter(style.OUT))
        _box(axes, x, 6, f"{r:.3f}", dark, rows)
    width = len(parts) * (rows + 0.5) - 0.5
    _box(axes, 0, 5, f"{largest:.3f}", light, width)
    for row in range(rows):
        _box(axes, (width - rows) / 2 + row, 7, f"{out[row]:.2f}", style.OUT)


def _box(axes: Axes, x: float, y: float, text: str, color: str, width: float = 1) -> None:
    style.add(axes, Rectangle((x, y), width, 1, facecolor=color, edgecolor=style.PAPER))
    middle = x + width / 2, y + 0.5
    axes.text(*middle, text, ha="center", va="center", size=SMALL, color=style.ink_on(color))


def draw_worked_merge() -> Figure:
    return draw_merge(WORKED_EXAMPLE)
