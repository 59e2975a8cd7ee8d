"""The figure of notebook 06: blocks that stream through the softmax."""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from torch import Tensor

from pa_tutorial.attention.paged import attend_blocks
from pa_tutorial.attention.step import DecodeStep
from pa_tutorial.paging.layouts import by_token
from pa_tutorial.viz import style
from pa_tutorial.walk.problem import DecodeProblem


@style.styled
def draw_stream(inputs: DecodeStep, trail: Sequence[tuple[Tensor, Tensor]]) -> Figure:
    """One row a sequence, one column a logical block index: what is read, and m and l after it.

    trail  for each logical block index m and l of one head after it, [num_seqs] each
    """
    v_tokens = by_token(inputs.k_cache, inputs.v_cache)[1]
    block_size = v_tokens.shape[1]
    tables = [
        row[: -(-seq_len // block_size)]
        for row, seq_len in zip(inputs.block_tables.tolist(), inputs.seq_lens.tolist(), strict=True)
    ]
    num_blocks = len(trail)
    gap, row_height = 1.4, 3.4
    width = 1.6 + num_blocks * (block_size + gap)
    height = 1.0 + len(tables) * row_height
    figure, axes = style.new_figure(
        "Each sequence reads each of its blocks once; m and l after each block",
        0.4 + height * (style.WIDTH - 0.2) / width,
    )
    style.bare(axes, width, height)
    for block_idx in range(num_blocks):
        x = 1.6 + block_idx * (block_size + gap)
        axes.text(
            x + block_size / 2,
            0.4,
            f"logical block {block_idx}",
            ha="center",
            va="center",
            color=style.QUIET,
        )
        for sequence, seq_len in enumerate(inputs.seq_lens.tolist()):
            y = 1.0 + sequence * row_height
            here = min(block_size, max(0, seq_len - block_idx * block_size))
            number = int(inputs.block_tables[sequence, block_idx]) if here else 0
            owners = [row for row, table in enumerate(tables) if number in table]
            _draw_read(axes, x, y, owners, here, v_tokens[number])
            note = f"block {number}" if here else "pad: block 0, masked"
            m, l = (tensor[sequence] for tensor in trail[block_idx])
            axes.text(x, y + 1.5, f"{note}\nm {m:.2f}  l {l:.2f}", va="top", fontsize=8)
    for sequence in range(len(tables)):
        y = 1.0 + sequence * row_height
        axes.text(0.5, y + 0.5, "ab"[sequence], ha="center", va="center", weight="bold")
    return figure


def _draw_read(
    axes: Axes, x: float, y: float, owners: Sequence[int], num_tokens: int, values: Tensor
) -> None:
    """The slots of a block: tokens in the hues of its sequences, the rest with what lies there."""
    for offset, value in enumerate(values):  # [num_kv_heads, head_size] each
        known = offset < num_tokens
        if known:
            for stripe, sequence in enumerate(owners):
                place, height = y + stripe / len(owners), 1 / len(owners)
                color = style.SEQUENCES[sequence]
                style.add(axes, Rectangle((x + offset, place), 0.95, height, facecolor=color))
        else:
            style.cell(axes, x + offset, y, style.EMPTY, unused=True)
            is_nan = bool(value.isnan().any())
            axes.text(
                x + offset + 0.5,
                y + 0.5,
                "NaN" if is_nan else "old",
                ha="center",
                va="center",
                fontsize=6,
                color=style.NAN if is_nan else style.INK,
                bbox={"facecolor": style.PAPER, "edgecolor": "none", "pad": 0.3},
            )
    frame = Rectangle((x, y), len(values), 1, fill=False, edgecolor=style.INK, linewidth=0.8)
    style.add(axes, frame)


def draw_stream_of_two() -> Figure:
    """Two sequences that share their first two blocks, as in notebook 06, with other numbers."""
    problem = DecodeProblem(
        "two",
        "",
        "",
        seq_lens=(15, 11),
        num_kv_heads=2,
        head_size=32,
        block_size=4,
        tables=((4, 5, 1, 2), (4, 5, 6)),
        shared_blocks=2,
    )
    inputs = problem.paged("plain")
    trail = []
    for block_idx in range(4):  # as if the sequences ended here
        num_cached = inputs.seq_lens.clamp(max=4 * (block_idx + 1))
        given = inputs.q, inputs.k_cache, inputs.v_cache, inputs.block_tables, num_cached
        part = attend_blocks(*given, inputs.seq_lens - 1, inputs.scale, None, None)
        trail.append((part.m[:, 0], part.l[:, 0]))
    return draw_stream(inputs, trail)
