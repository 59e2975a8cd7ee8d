"""How a unified kernel fills its tiles: rows are query tokens times the query heads of a group."""

from collections.abc import Sequence

from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from pa_tutorial.arguments import require
from pa_tutorial.viz import style

ROWS = 16  # BLOCK_M: the fewest rows for which tensor cores have an instruction
BATCH = (6, 1, 1)  # new tokens: a chunk of a prompt and two sequences that decode
GROUP = 4  # query heads of a KV head


def tiles(query_lens: Sequence[int], group: int, rows: int = ROWS) -> list[tuple[int, range]]:
    """The tiles of a batch, for one KV head: (sequence, its new tokens that are in the tile).

    Every tile reads the K and V of its sequence once. Raises ValueError for a group that does not
    fit into a tile.

    Source: vLLM, unified_attention in vllm/v1/attention/ops/triton_unified_attention.py, commit
    00139433: BLOCK_Q = BLOCK_M // num_queries_per_kv.
    """
    require(1 <= group <= rows, "group", group, f"1 to {rows}, the rows of a tile")
    per_tile = rows // group  # BLOCK_Q: query tokens in a tile
    return [
        (sequence, range(first, min(first + per_tile, new)))
        for sequence, new in enumerate(query_lens)
        for first in range(0, new, per_tile)
    ]


@style.styled
def draw_tiles(query_lens: Sequence[int] = BATCH, group: int = GROUP) -> Figure:
    """The tiles of one KV head side by side, row by row."""
    found = tiles(query_lens, group)
    used = sum(len(tokens) * group for _, tokens in found)
    passes = sum(query_lens) * group
    figure, axes = style.new_figure(
        f"One launch for prefill and decode: {len(found)} tiles read K and V, where one query "
        f"at a time\nreads them {passes} times ({used} of {len(found) * ROWS} rows are used)",
        3.6,
    )
    wide, gap = 4.0, 1.2
    axes.set_xlim(-0.1, len(found) * (wide + gap))
    axes.set_ylim(ROWS + 0.1, -2.4)
    axes.axis("off")
    for number, (sequence, tokens) in enumerate(found):
        x, color = number * (wide + gap), style.SEQUENCES[sequence]
        does = "decodes" if query_lens[sequence] == 1 else "a chunk of its prompt"
        axes.text(x, -1.7, f"tile {number}: sequence {sequence}", va="center", weight="bold")
        axes.text(x, -0.7, does, va="center", color=style.QUIET)
        for row in range(ROWS):
            token, head = divmod(row, group)
            real = token < len(tokens)
            shade = style.lighter(color, 0.25 * (token % 2)) if real else style.EMPTY
            style.add(axes,
                Rectangle(
                    (x, row), wide, 1, facecolor=shade, edgecolor=style.PAPER, linewidth=1,
                    hatch=None if real else style.UNUSED_HATCH,
                )
            )  # fmt: skip
            if real:
                words = f"token {tokens[token]}, head {head}"
                place = x + wide / 2, row + 0.53
                ink = style.ink_on(shade)
                axes.text(*place, words, ha="center", va="center", size=7, color=ink)
    return figure
