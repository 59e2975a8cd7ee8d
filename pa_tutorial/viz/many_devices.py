"""The cache of one device, and of ranks that split it by heads or by blocks (notebook 27)."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from pa_tutorial.checks.cases import WORKED_EXAMPLE
from pa_tutorial.checks.problem import DecodeProblem
from pa_tutorial.distributed.context import deal_out
from pa_tutorial.distributed.heads import heads_of
from pa_tutorial.viz import style
from pa_tutorial.viz.drawing import board, cell, note, write

SEQUENCE = style.SEQUENCES[0]
# The worked example, grown to four blocks, the last one not full.
FOUR_BLOCKS = replace(WORKED_EXAMPLE, seq_lens=(29,), tables=((5, 2, 6, 1),))


@dataclass(frozen=True)
class Pool:
    """One device's cache. names: physical block number -> logical block index, printed in it."""

    title: str
    v_cache: Tensor
    table: Sequence[int]
    names: dict[int, int]
    heads: Sequence[int]


def whole_pool(problem: DecodeProblem) -> Pool:
    table = problem.tables[0]
    names = {block: index for index, block in enumerate(table)}
    heads = range(problem.num_kv_heads)
    return Pool("one device", problem.paged("plain").v_cache, table, names, heads)


def pools_by_heads(problem: DecodeProblem, num_ranks: int) -> list[Pool]:
    whole, pools = whole_pool(problem), []
    for rank in range(num_ranks):
        _, heads = heads_of(rank, num_ranks, problem.num_heads, problem.num_kv_heads)
        own = whole.v_cache[:, heads.start : heads.stop]
        pools.append(replace(whole, title=f"rank {rank}", v_cache=own, heads=heads))
    return pools


def pools_by_blocks(problem: DecodeProblem, num_ranks: int) -> list[Pool]:
    step, pools = problem.paged("plain"), []
    for rank in range(num_ranks):
        share = deal_out(step, rank, num_ranks)
        # Without the table's padding.
        indices = [i for i in share.block_indices.tolist() if i < len(problem.tables[0])]
        table = share.block_tables[0, : len(indices)].tolist()
        names = dict(zip(table, indices, strict=True))
        pools.append(Pool(f"rank {rank}", share.v_cache, table, names, range(problem.num_kv_heads)))
    return pools


def _draw_pool(axes: Axes, y: int, pool: Pool) -> None:
    """Blocks are columns, and KV heads go from top to bottom. The title shows the table."""
    title = f"{pool.title}   block table {[*pool.table]}"
    write(axes, 0, y - 1.25, title, "left", weight="bold")
    written = ~pool.v_cache.isnan().all(dim=3).all(dim=2)  # NaN: no token is there
    for block in range(len(written)):
        note(axes, block + 0.5, y - 0.4, block)
    for row, head in enumerate(pool.heads):
        note(axes, -0.25, y + row + 0.5, f"head {head}", "right")
        for block, here in enumerate(written[:, row]):
            cell(axes, block, y + row, SEQUENCE, pool.names[block] if here else "", not here)


def _draw_cut(title: str, whole: Pool, pools: Sequence[Pool]) -> Figure:
    """One device on the left, the ranks below each other on the right."""
    rows = max(2 + len(whole.heads), sum(2 + len(pool.heads) for pool in pools))
    figure, boards = style.new_figure(title, 0.6 + 0.27 * rows, ncols=2)
    for axes, drawn in zip(boards, ([whole], pools), strict=True):
        board(axes, len(whole.v_cache), rows, -1.6, square=True)
        y = 2
        for pool in drawn:
            _draw_pool(axes, y, pool)
            y += len(pool.heads) + 2
    return figure


@style.styled
def draw_heads(problem: DecodeProblem = FOUR_BLOCKS, num_ranks: int = 2) -> Figure:
    """The cache of one device, and the caches of ranks with some heads of every block."""
    title = f"Split by heads: {num_ranks} ranks use the same block table, each for its own heads"
    return _draw_cut(title, whole_pool(problem), pools_by_heads(problem, num_ranks))


@style.styled
def draw_blocks(problem: DecodeProblem = FOUR_BLOCKS, num_ranks: int = 2) -> Figure:
    """The cache of one device, and the caches of ranks with some blocks and all heads."""
    title = f"Split by blocks: {num_ranks} ranks have all heads, each with its own block table"
    return _draw_cut(title, whole_pool(problem), pools_by_blocks(problem, num_ranks))
