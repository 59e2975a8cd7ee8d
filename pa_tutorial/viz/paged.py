"""The figures of notebook 06: blocks that stream through the softmax, the flattened view, bytes."""

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from torch import Tensor

from pa_tutorial.attention.paged import attend_blocks, paged_gather, paged_online
from pa_tutorial.attention.step import DecodeStep
from pa_tutorial.attention.work import TensorsMade
from pa_tutorial.paging.layouts import by_token
from pa_tutorial.viz import style
from pa_tutorial.walk.problem import DecodeProblem


def parts_after_each_block(inputs: DecodeStep, head: int) -> list[list[tuple[float, float]]]:
    """(m, l) of each sequence after each logical block index, for one head.

    returns  [num_seqs][number of blocks of the longest sequence]
    """
    block_size = by_token(inputs.k_cache, inputs.v_cache)[1].shape[1]
    longest = int(inputs.seq_lens.max())
    trail: list[list[tuple[float, float]]] = [[] for _ in inputs.seq_lens]
    for end in range(block_size, longest + block_size, block_size):
        part = attend_blocks(
            inputs.q,
            inputs.k_cache,
            inputs.v_cache,
            inputs.block_tables,
            inputs.seq_lens.clamp(max=end),
            inputs.seq_lens - 1,
            inputs.scale,
            inputs.alibi_slopes,
            None,
        )
        for sequence, states in enumerate(trail):
            states.append((part.m[sequence, head].item(), part.l[sequence, head].item()))
    return trail


@style.styled
def draw_stream(inputs: DecodeStep, head: int = 0) -> Figure:
    """One row a sequence, one column a logical block index: what is read, and m and l after it."""
    v_tokens = by_token(inputs.k_cache, inputs.v_cache)[1]
    block_size = v_tokens.shape[1]
    trail = parts_after_each_block(inputs, head)
    tables = [
        row[: -(-seq_len // block_size)]
        for row, seq_len in zip(inputs.block_tables.tolist(), inputs.seq_lens.tolist(), strict=True)
    ]
    num_blocks = len(trail[0])
    gap, row_height = 1.4, 3.4
    width = 1.6 + num_blocks * (block_size + gap)
    height = 1.0 + len(trail) * row_height
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
            m, l = trail[sequence][block_idx]
            axes.text(x, y + 1.5, f"{note}\nm {m:.2f}  l {l:.2f}", va="top", fontsize=8)
    for sequence in range(len(trail)):
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


@style.styled
def draw_flattened(num_cached: int = 3, num_new: int = 4) -> Figure:
    """New tokens of one sequence under the causal mask, and the same as sequences of one query."""
    figure, (left, right) = style.new_figure(
        f"{num_new} new tokens of one sequence are {num_new} sequences of one query each",
        0.55 + 0.3 * (num_new + 1),
        ncols=2,
    )
    seq_len = num_cached + num_new
    for axes, flat in ((left, False), (right, True)):
        style.bare(axes, seq_len + 4.6, num_new + 1.4)
        heading = "sequences of one query" if flat else "new tokens, with the causal mask"
        axes.set_title(heading, loc="center", weight="normal")
        for j in range(seq_len):
            axes.text(1.7 + j, 0.1, f"$k_{j}$", ha="center", va="top", color=style.QUIET)
        for row in range(num_new):
            position, y = num_cached + row, row + 0.9
            style.cell(axes, 0, y, style.Q, f"$q_{position}$")
            for j in range(seq_len):
                if j <= position:
                    style.cell(axes, 1.2 + j, y, style.LOGITS)
                elif not flat:
                    style.cell(axes, 1.2 + j, y, style.LOGITS, unused=True)
            if flat:
                axes.text(1.4 + seq_len, y + 0.5, f"seq_len {position + 1}", va="center")
    return figure


def bytes_moved(made: TensorsMade, useful: int) -> list[tuple[str, float]]:
    """For draw_bytes_moved: what was read and copied, in units of `useful` bytes of K and V.

    A new tensor of more than 1 MiB goes to main memory and comes back (see TensorsMade).
    """
    copies = (made.bytes_moved(fast_memory=2**20) - made.bytes_read) / useful / 2
    parts = [("cache", made.bytes_read / useful), ("copies out", copies), ("and back", copies)]
    return [(what, round(size, 2)) for what, size in parts if size]


def count_tensors(inputs: DecodeStep) -> tuple[dict[str, TensorsMade], int]:
    """Both paged stages run under TensorsMade, and the bytes of K and V that a step must read."""
    made = {}
    for stage in (paged_gather, paged_online):
        with TensorsMade(inputs.k_cache, inputs.v_cache) as made[stage.__name__]:
            stage(**vars(inputs))
    _, _, num_kv_heads, head_size = by_token(inputs.k_cache, inputs.v_cache)[1].shape
    num_tokens = int(inputs.seq_lens.sum())
    return made, 2 * num_tokens * num_kv_heads * head_size * inputs.k_cache.itemsize


# The least that any gathering can do: read, write to the copy, read the copy.
GATHER_AT_LEAST = [("cache", 1.0), ("copies out", 1.0), ("and back", 1.0)]


@style.styled
def draw_bytes_moved(bars: Mapping[str, Sequence[tuple[str, float]]]) -> Figure:
    """Stacked bars: name -> (what, bytes in units of the K and V of the sequences)."""
    total = {name: sum(size for _, size in parts) for name, parts in bars.items()}
    names = list(bars)
    figure, axes = style.new_figure(
        f"Gathering moves at least {total[names[1]] / total[names[2]]:.1f} times the bytes of "
        "going block by block",
        0.75 + 0.55 * len(bars),
    )
    shades = (style.K, style.lighter(style.QUIET, 0.2), style.lighter(style.QUIET, 0.6))
    for row, parts in enumerate(bars.values()):
        x = 0.0
        for (what, size), color in zip(parts, shades, strict=False):
            axes.barh(row, size, left=x, height=0.6, color=color)
            axes.text(
                x + size / 2, row, f"{what}\n{size:.2f}", ha="center", va="center", fontsize=7.5
            )
            x += size
        axes.text(x + 0.05, row, f"{x:.2f}", va="center", weight="bold")
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.set_xlabel("bytes moved, in units of K and V of the sequences")
    return figure


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
    return draw_stream(problem.paged("plain"), head=3)


def long_batch() -> DecodeStep:
    """4,000 and 3,000 tokens, 8 heads of size 128, float32."""
    sizes = {"seq_lens": (4000, 3000), "num_heads": 8, "num_kv_heads": 8, "head_size": 128}
    return DecodeProblem("long", "", "", **sizes).paged("plain")


def draw_bytes_of_long_batch() -> Figure:
    made, useful = count_tensors(long_batch())
    bars = {name: bytes_moved(made[name], useful) for name in made}
    return draw_bytes_moved(
        {
            "paged_gather": bars["paged_gather"],
            "gather, at least": GATHER_AT_LEAST,
            "paged_online": bars["paged_online"],
        }
    )
