"""The slot write: new tokens, their slots, and where K and V are found in the cache afterwards.

K and V hold numbers that say where they come from: dimension d of the K of a token is
token + d/64, and of its V 64 more. So the picture is read back from the cache, not computed.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isnan, nan

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from torch import Tensor

from pa_tutorial.paging.layouts import PAD_SLOT, VllmLayout, reshape_and_cache, slot_mapping
from pa_tutorial.viz import style

PARTS = 64


def key_and_value(tokens: Sequence[int], layout: VllmLayout) -> tuple[Tensor, Tensor]:
    """K and V that name their token and dimension; [num_tokens, num_kv_heads, head_size]."""
    dims = torch.arange(layout.head_size, dtype=layout.dtype) / PARTS
    key = (torch.tensor(tokens)[:, None, None] + dims).repeat(1, layout.num_kv_heads, 1)
    return key, key + PARTS


def found(number: float) -> tuple[str, int, int] | None:
    """K or V, of which token, which dimension; None for NaN: nothing was written here."""
    if isnan(number):
        return None
    side, token = divmod(int(number), PARTS)
    return "KV"[side], token, round(number % 1 * PARTS)


@dataclass(frozen=True)
class SlotWrite:
    """The cache after a chunk of new tokens was written.

    rows        the token of each row of the batch; None: padding
    slots       the slot of each row
    key, value  [rows, num_kv_heads, head_size]
    """

    layout: VllmLayout
    rows: tuple[int | None, ...]
    slots: tuple[int, ...]
    key: Tensor
    value: Tensor
    k_cache: Tensor
    v_cache: Tensor

    @property
    def blocks(self) -> tuple[int, ...]:
        """The blocks that were written, in the order of the tokens."""
        size = self.layout.block_size
        return tuple(dict.fromkeys(slot // size for slot in self.slots if slot != PAD_SLOT))


def write_chunk(
    table: Sequence[int],
    first: int,
    last: int,
    layout: VllmLayout,
    write: Callable[..., None] = reshape_and_cache,
) -> SlotWrite:
    """Tokens 0 to first - 1 are in the cache; first to last - 1 come, with a row of padding."""
    k_cache, v_cache = layout.empty()
    old, new = [*range(first)], [*range(first, last), last - 1]  # padding may hold anything
    old_slots, slots = (slot_mapping(table, tokens, layout.block_size) for tokens in (old, new))
    slots[-1] = PAD_SLOT
    write(*key_and_value(old, layout), k_cache, v_cache, old_slots)
    key, value = key_and_value(new, layout)
    write(key, value, k_cache, v_cache, slots)
    rows = (*range(first, last), None)
    return SlotWrite(layout, rows, tuple(slots.tolist()), key, value, k_cache, v_cache)


# The columns of the drawing, in cells
SLOT, NEW_K = 3.0, 11.8


@style.styled
def draw_slot_write(write: SlotWrite, followed: int) -> Figure:
    """The new tokens with their slots; below, what stands in the memory of their blocks.

    A row of K is a piece of every token, a row of V one dimension of every token, as they lie in
    memory. `followed` is the token with the outline.
    """
    layout, size = write.layout, write.layout.block_size
    pieces, num_rows = layout.head_size // layout.x, len(write.rows)
    slot = write.slots[write.rows.index(followed)]
    figure, axes = style.new_figure(
        f"Slot {slot} is offset {slot % size} of block {slot // size}: there K of token {followed} "
        f"lies in {pieces} pieces, its V in {layout.head_size}",
        4.3,
    )
    v_x = size * layout.x + 3
    style.bare(axes, v_x + len(write.blocks) * (size + 1), num_rows + layout.head_size + 4.2)
    _draw_new_tokens(axes, write, followed)
    y = num_rows + 3.9
    for x, words in (
        (0, f"k_cache {list(layout.k_shape)}: rows are pieces"),
        (v_x, f"v_cache {list(layout.v_shape)}: rows are elements"),
    ):
        axes.text(x, y - 1.6, words, va="center", color=style.QUIET)
    for index, block in enumerate(write.blocks):
        k_place = (0, y + index * (pieces + 1.6))
        v_place = (v_x + index * (size + 1), y)
        for place, cache, columns in (
            (k_place, write.k_cache, size * layout.x),
            (v_place, write.v_cache, size),
        ):
            axes.text(place[0], place[1] - 0.5, f"block {block}", va="center", fontsize=8)
            memory = cache[block].flatten().reshape(-1, columns).tolist()
            _draw_numbers(axes, place, memory, write.rows, followed)
    k_end = y + len(write.blocks) * (pieces + 1.6)
    note = f"{followed}.1: token {followed}, element 1 · light: was there before"
    axes.text(0, k_end - 0.6, note, va="center", color=style.QUIET)
    return figure


def _draw_new_tokens(axes: Axes, write: SlotWrite, followed: int) -> None:
    """One row of the batch under the other: token, slot, K, V."""
    layout = write.layout
    new_v = NEW_K + layout.head_size + 1
    for x, words in ((SLOT, "slot_mapping"), (NEW_K, "key"), (new_v, "value")):
        axes.text(x, 0.4, words, va="center", color=style.QUIET)
    for row, (token, slot) in enumerate(zip(write.rows, write.slots, strict=True)):
        y, size = row + 1, layout.block_size
        sum_of = f"{slot} = {slot // size} × {size} + {slot % size}"
        words = ("padding", "-1: not written") if token is None else (f"token {token}", sum_of)
        axes.text(0, y + 0.5, words[0], va="center")
        axes.text(SLOT, y + 0.5, words[1], va="center")
        for x, numbers in ((NEW_K, write.key), (new_v, write.value)):
            line = numbers[row, 0] if token is not None else torch.full_like(numbers[row, 0], nan)
            _draw_numbers(axes, (x, y), [line.tolist()], write.rows, followed)


def _draw_numbers(
    axes: Axes,
    corner: tuple[float, float],
    rows: Sequence[Sequence[float]],
    new: Sequence[int | None],
    followed: int,
) -> None:
    """A piece of memory, row by row; each cell says what was found in it."""
    for row, numbers in enumerate(rows):
        for column, number in enumerate(numbers):
            place = (corner[0] + column, corner[1] + row)
            name = found(number)
            if name is None:
                style.cell(axes, *place, style.EMPTY, unused=True)
                continue
            side, token, dim = name
            color = style.K if side == "K" else style.V
            paleness = 0.4 if token in new else 0.8
            face = color if token == followed else style.lighter(color, paleness)
            style.cell(axes, *place, face)
            middle = (place[0] + 0.5, place[1] + 0.53)
            ink = style.ink_on(face)
            axes.text(*middle, f"{token}.{dim}", ha="center", va="center", color=ink, fontsize=7)
            if token == followed:
                style.add(axes, Rectangle(place, 1, 1, fill=False, edgecolor=style.INK, zorder=3))
