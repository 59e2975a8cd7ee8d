"""The figures of notebook 04: a slot write, and two reads of both layouts.

In the slot write, the numbers in K and V say where they come from: dimension d of a token's K is
token + d/64, and V has 64 more. So the picture is read from the cache, not computed.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import isnan, nan

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from pa_tutorial.paging.layouts import (
    PAD_SLOT,
    PlainLayout,
    VllmLayout,
    reshape_and_cache,
    slot_mapping,
)
from pa_tutorial.viz import style
from pa_tutorial.viz.drawing import board, box, cell, frame, note, plural, write
from simt.traffic import SECTOR

PARTS = 64


def key_and_value(tokens: Sequence[int], layout: VllmLayout) -> tuple[Tensor, Tensor]:
    """K and V whose values name token and dimension; [num_tokens, num_kv_heads, head_size]."""
    dims = torch.arange(layout.head_size, dtype=layout.dtype) / PARTS
    key = (torch.tensor(tokens)[:, None, None] + dims).repeat(1, layout.num_kv_heads, 1)
    return key, key + PARTS


def found(number: float) -> tuple[str, int, int] | None:
    """Whether it is K or V, its token, its dimension; None for NaN, where nothing was written."""
    if isnan(number):
        return None
    side, token = divmod(int(number), PARTS)
    return "KV"[side], token, round(number % 1 * PARTS)


@dataclass(frozen=True)
class SlotWrite:
    """The cache after a chunk of new tokens was written.

    rows        the token at each place in the batch; None: padding
    slots       the slot of each place
    key, value  [rows, num_kv_heads, head_size]
    """

    layout: VllmLayout
    rows: tuple[int | None, ...]
    slots: tuple[int, ...]
    key: Tensor
    value: Tensor
    k_cache: Tensor
    v_cache: Tensor


def write_chunk(
    table: Sequence[int],
    first: int,
    last: int,
    layout: VllmLayout,
    write: Callable[..., None] = reshape_and_cache,
) -> SlotWrite:
    """Tokens 0 to first - 1 are cached; first to last - 1 are new, followed by padding."""
    k_cache, v_cache = layout.empty()
    old, new = [*range(first)], [*range(first, last), last - 1]  # padding may hold anything
    old_slots, slots = (slot_mapping(table, tokens, layout.block_size) for tokens in (old, new))
    slots[-1] = PAD_SLOT
    write(*key_and_value(old, layout), k_cache, v_cache, old_slots)
    key, value = key_and_value(new, layout)
    write(key, value, k_cache, v_cache, slots)
    rows = (*range(first, last), None)
    return SlotWrite(layout, rows, tuple(slots.tolist()), key, value, k_cache, v_cache)


def num_pieces(memory: Tensor, token: int) -> int:
    """The number of pieces in which K or V of a token is stored in a block's memory."""
    owners = [name and name[1] for name in map(found, memory.flatten().tolist())]
    return sum(token == now != before for before, now in pairwise([None, *owners]))


# The columns of the drawing, in cells
SLOT, NEW_K = 3.0, 11.8


@style.styled
def draw_slot_write(written: SlotWrite, followed: int) -> Figure:
    """The new tokens with their slots; below, the memory of their blocks.

    A line of K is a piece of every token, a line of V one dimension of every token, in memory
    order. `followed` is the token with the outline.
    """
    layout, size = written.layout, written.layout.block_size
    pieces, num_rows = layout.head_size // layout.x, len(written.rows)
    slot = written.slots[written.rows.index(followed)]
    figure, axes = style.new_figure(
        f"Slot {slot} is offset {slot % size} of block {slot // size}; there, token {followed}'s K "
        f"is stored in {num_pieces(written.k_cache[slot // size], followed)} pieces and its V in "
        f"{num_pieces(written.v_cache[slot // size], followed)} places",
        4.3,
    )
    v_x, y = size * layout.x + 3, num_rows + 3.9
    blocks = [*dict.fromkeys(one // size for one in written.slots if one != PAD_SLOT)]
    width = max(v_x + len(blocks) * (size + 1), NEW_K + 2 * layout.head_size + 1.3)
    board(axes, width, y + layout.head_size + 0.3, square=True)
    _draw_new_tokens(axes, written, followed)
    note(axes, 0, y - 1.6, f"k_cache {list(layout.k_shape)}: lines are pieces", "left")
    note(axes, v_x, y - 1.6, f"v_cache {list(layout.v_shape)}: lines are elements", "left")
    for index, block in enumerate(blocks):
        for x, down, cache, columns in (
            (0, index * (pieces + 1.6), written.k_cache, size * layout.x),
            (v_x + index * (size + 1), 0, written.v_cache, size),
        ):
            axes.text(x, y + down - 0.5, f"block {block}", va="center")
            memory = cache[block].flatten().reshape(-1, columns).tolist()
            _draw_numbers(axes, x, y + down, memory, written, followed)
    k_end = y + len(blocks) * (pieces + 1.6)
    words = f"{followed}.1: token {followed}, element 1 · faint: written earlier"
    note(axes, 0, k_end - 0.6, words, "left")
    return figure


def _draw_new_tokens(axes: Axes, written: SlotWrite, followed: int) -> None:
    """The tokens of the batch, one below the other: token, slot, K, V."""
    layout = written.layout
    new_v = NEW_K + layout.head_size + 1
    for x, words in ((SLOT, "slot_mapping"), (NEW_K, "key"), (new_v, "value")):
        note(axes, x, 0.4, words, "left")
    for row, (token, slot) in enumerate(zip(written.rows, written.slots, strict=True)):
        y, size = row + 1, layout.block_size
        sum_of = f"{slot} = {slot // size} × {size} + {slot % size}"
        words = ("padding", "-1: not written") if token is None else (f"token {token}", sum_of)
        axes.text(0, y + 0.5, words[0], va="center")
        axes.text(SLOT, y + 0.5, words[1], va="center")
        for x, numbers in ((NEW_K, written.key), (new_v, written.value)):
            line = numbers[row, 0] if token is not None else torch.full_like(numbers[row, 0], nan)
            _draw_numbers(axes, x, y, [line.tolist()], written, followed)


def _draw_numbers(
    axes: Axes, left: float, top: float, rows: list, written: SlotWrite, followed: int
) -> None:
    """A piece of memory, line by line; each cell shows its content."""
    for row, numbers in enumerate(rows):
        for column, number in enumerate(numbers):
            x, y, name = left + column, top + row, found(number)
            if name is None:
                cell(axes, x, y, style.EMPTY, unused=True)
                continue
            side, token, dim = name
            color = style.K if side == "K" else style.V
            pale = style.lighter(color, 0.4 if token in written.rows else 0.8)
            face = color if token == followed else pale
            cell(axes, x, y, face)
            write(axes, x + 0.5, y + 0.53, f"{token}.{dim}", color=style.ink_on(face), size=9)
            if token == followed:
                frame(axes, x, y, 1, 1, zorder=3)


def byte_runs(elements: Iterable[int], itemsize: int) -> list[tuple[int, int]]:
    """The bytes of some elements of a cache, as runs (first, one past the last)."""
    runs: list[list[int]] = []
    for first in sorted(element * itemsize for element in elements):
        if runs and runs[-1][1] == first:
            runs[-1][1] = first + itemsize
        else:
            runs.append([first, first + itemsize])
    return [tuple(run) for run in runs]


def sectors(runs: Sequence[tuple[int, int]]) -> int:
    """The number of 32-byte sectors that the runs touch."""
    return len({byte // SECTOR for first, end in runs for byte in range(first, end)})


@style.styled
def draw_neighbours(
    vllm: VllmLayout, plain: PlainLayout, k_address: Callable[..., int] | None = None
) -> Figure:
    """Two reads from both layouts: 16 bytes of K of every token of a block, by as many threads;
    and dimension 0 of V of every token, by one thread. The bytes of block 0, head 0.

    k_address  a reader's: (block, head, offset, dim, k_shape, itemsize) -> a byte of vLLM's K
    """
    itemsize, tokens = vllm.dtype.itemsize, range(vllm.block_size)
    vecs = [(0, 0, token, dim) for token in tokens for dim in range(vllm.x)]
    column = [(0, 0, token, 0) for token in tokens]
    k_runs, v_runs = (
        [byte_runs((element(*place) for place in places), itemsize) for element in elements]
        for places, elements in (
            (vecs, (vllm.k_element, plain.k_element)),
            (column, (vllm.v_element, plain.v_element)),
        )
    )
    if k_address is not None:
        theirs = (k_address(*place, vllm.k_shape, itemsize) // itemsize for place in vecs)
        k_runs[0] = byte_runs(theirs, itemsize)
    k_sectors, v_loads = [sectors(runs) for runs in k_runs], [len(runs) for runs in v_runs]
    figure, axes = style.new_figure(
        f"In vLLM's layout, {len(tokens)} threads touch {k_sectors[0]} sectors of K, not "
        f"{k_sectors[1]}; a thread needs {v_loads[0]} load for V, not {v_loads[1]}",
        2.7,
    )
    size = vllm.head_size * vllm.block_size * itemsize
    text = f"K: {len(tokens)} threads, each reading {vllm.x} elements of a different token"
    _draw_read(axes, 0, size, text, k_runs, [plural(n, "sector") for n in k_sectors], style.K)
    text = f"V: one thread, reading one element of {len(tokens)} tokens"
    loads = [plural(count, "load") for count in v_loads]
    _draw_read(axes, 3.3, size, text, v_runs, loads, style.V)
    axes.set_xlim(-2, size * 1.27)
    axes.set_ylim(6.8, -0.1)
    axes.set_yticks([])
    axes.spines[["left", "bottom"]].set_visible(False)
    axes.set_xticks(range(0, size + 1, 64))
    axes.set_xlabel("byte of head 0 in the block; a box is a sector of 32 bytes", loc="left")
    return figure


def _draw_read(
    axes: Axes, y: float, size: int, text: str, found: list, counts: list[str], color: str
) -> None:
    """The memory of a block and head in both layouts; a box is a sector, coloured if read."""
    write(axes, 0, y + 0.4, text, "left")
    for layout, runs, count in zip((VllmLayout, PlainLayout), found, counts, strict=True):
        y += 1
        for first, end in runs:
            box(axes, first, y, end - first, 0.7, color, edgecolor="none")
        for first in range(0, size, SECTOR):
            frame(axes, first, y, SECTOR, 0.7, style.QUIET, linewidth=0.7)
        write(axes, size + 8, y + 0.35, f"{layout.name}: {count}", "left")
