"""The figure of notebook 06: blocks that stream through the softmax."""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from pa_tutorial.attention.step import DecodeStep
from pa_tutorial.paging.layouts import by_token
from pa_tutorial.viz import style
from pa_tutorial.viz.drawing import board, box, cell, frame, note, plate, write


@style.styled
def draw_stream(inputs: DecodeStep) -> Figure:
    """One line per sequence, one column per logical block index: what is read."""
    v_tokens = by_token(inputs.k_cache, inputs.v_cache)[1]
    block_size, seq_lens = v_tokens.shape[1], inputs.seq_lens.tolist()
    tables = [
        row[: -(-seq_len // block_size)]
        for row, seq_len in zip(inputs.block_tables.tolist(), seq_lens, strict=True)
    ]
    num_columns = max(map(len, tables))
    gap, row_height = 1.4, 2.4
    width = 1.6 + num_columns * (block_size + gap)
    height = 1.0 + len(tables) * row_height
    title = "Each round reads one block of every sequence, through its table"
    figure, axes = style.new_figure(title, 0.4 + height * (style.WIDTH - 0.2) / width)
    board(axes, width, height, square=True)
    for block_idx in range(num_columns):
        x = 1.6 + block_idx * (block_size + gap)
        note(axes, x + block_size / 2, 0.4, f"logical block {block_idx}")
        for sequence, seq_len in enumerate(seq_lens):
            y = 1.0 + sequence * row_height
            here = min(block_size, max(0, seq_len - block_idx * block_size))
            number = int(inputs.block_tables[sequence, block_idx]) if here else 0
            owners = [row for row, table in enumerate(tables) if number in table]
            _draw_read(axes, x, y, owners, here, v_tokens[number])
            words = f"block {number}" if here else "no block: 0 in the table"
            axes.text(x, y + 1.5, words, va="top")
    for sequence in range(len(tables)):
        write(axes, 0.5, 1.5 + sequence * row_height, "ab"[sequence], weight="bold")
    return figure


def _draw_read(
    axes: Axes, x: float, y: float, owners: Sequence[int], num_tokens: int, values: Tensor
) -> None:
    """The slots of a block: tokens in the hues of its sequences, other slots with their content."""
    for offset, value in enumerate(values):  # [num_kv_heads, head_size] each
        if offset < num_tokens:
            for stripe, sequence in enumerate(owners):
                place, height = y + stripe / len(owners), 1 / len(owners)
                hue = style.SEQUENCES[sequence]
                box(axes, x + offset, place, 0.95, height, hue, edgecolor="none")
        else:
            cell(axes, x + offset, y, style.EMPTY, unused=True)
            words, color = ("NaN", style.NAN) if value.isnan().any() else ("old", style.INK)
            place = x + offset + 0.5, y + 0.5
            write(axes, *place, words, size=8.5, color=color, bbox=plate(0.3))
    frame(axes, x, y, len(values), 1, linewidth=0.8)
