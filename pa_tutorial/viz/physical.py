"""The physical cache of a model: the tensors of all layers, cut into the same blocks.

K of a token holds its position and 16 for each layer before; V holds 128 more. What a block
holds is read back from the tensors.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from torch import Tensor

from pa_tutorial.arguments import require
from pa_tutorial.paging.layouts import (
    VllmLayout,
    reshape_and_cache,
    slot_mapping,
    split_kv_cache,
)
from pa_tutorial.viz import style

LAYER, V_SIDE = 16, 128  # how far apart the numbers of the layers are, and those of K and V


@dataclass(frozen=True)
class PhysicalCache:
    """One tensor a layer, as in vLLM's CPU backend, NaN where no token lives.

    layers  [2, num_blocks, numbers in a block] each
    """

    layout: VllmLayout
    layers: tuple[Tensor, ...]

    def tokens(self, layer: int, side: int, block: int) -> list[int]:
        """The tokens whose numbers are found in a block of K (side 0) or V (side 1)."""
        return tokens_in(self.layers[layer][side, block], layer, side)

    def first_byte(self, layer: int, side: int, block: int) -> int:
        """Where the block begins in the tensor of its layer."""
        return self.layers[layer][side, block].storage_offset() * self.layout.dtype.itemsize


def tokens_in(memory: Tensor, layer: int, side: int) -> list[int]:
    """The tokens whose K (side 0) or V (side 1) of this layer is found in a piece of memory.

    Raises ValueError if a number is of another layer, or of the other of K and V.
    """
    numbers = memory[~memory.isnan()] - side * V_SIDE - layer * LAYER
    inside = bool(((numbers >= 0) & (numbers < LAYER)).all())
    require(inside, "memory", numbers.tolist(), "numbers of this layer and side")
    return [int(token) for token in numbers.unique()]


def fill_layers(
    layout: VllmLayout, num_layers: int, table: Sequence[int], seq_len: int
) -> PhysicalCache:
    """The cache of all layers with one sequence in it; one slot mapping serves every layer.

    Raises ValueError if there are too many tokens or layers to tell their numbers apart.
    """
    require(seq_len <= LAYER, "seq_len", seq_len, f"at most {LAYER}")
    require(num_layers <= V_SIDE // LAYER, "num_layers", num_layers, f"at most {V_SIDE // LAYER}")
    positions = torch.arange(seq_len)
    slots = slot_mapping(table, positions, layout.block_size)
    shape = (2, layout.num_blocks, layout.bytes_per_block // 2 // layout.dtype.itemsize)
    layers = []
    for layer in range(num_layers):
        kv_cache = torch.full(shape, float("nan"), dtype=layout.dtype)
        k_cache, v_cache = split_kv_cache(kv_cache, layout.num_kv_heads, layout.head_size)
        key = (positions + layer * LAYER).to(layout.dtype)[:, None, None]
        key = key.repeat(1, layout.num_kv_heads, layout.head_size)
        reshape_and_cache(key, key + V_SIDE, k_cache, v_cache, slots)
        layers.append(kv_cache)
    return PhysicalCache(layout, tuple(layers))


# In units of one block's width
SIDES = 0.5  # between K and V
ROW = 1.25  # from layer to layer


@style.styled
def draw_physical(cache: PhysicalCache, block: int) -> Figure:
    """A row a layer: its tensor in the order of the memory; below, one block of K in full.

    block  the block that is shown in full, in the last layer
    """
    num_layers, num_blocks = len(cache.layers), cache.layout.num_blocks
    figure, axes = style.new_figure(
        f"Block number {block} names one place in K and one in V of every layer, for all heads",
        2.1 + 0.5 * num_layers,
    )
    width = 2 * num_blocks + SIDES
    axes.set_xlim(-1.3, width)
    axes.set_ylim(ROW * num_layers + 4.1, -1.4)
    axes.axis("off")
    for side, name in enumerate("KV"):
        x = side * (num_blocks + SIDES)
        axes.text(x, -1, f"{name}: kv_cache[{side}]", va="center")
    axes.text(-0.15, -0.3, "byte", ha="right", va="center", color=style.QUIET)
    for layer in range(num_layers):
        y = layer * ROW
        axes.text(-0.15, y + 0.5, f"layer {layer}", ha="right", va="center", color=style.QUIET)
        for side in range(2):
            for number in range(num_blocks):
                _draw_block(axes, (_x(cache, side, number), y), cache, layer, side, number)
    for side in range(2):
        for number in range(num_blocks):
            x = _x(cache, side, number) + 0.5
            byte = str(cache.first_byte(0, side, number))
            axes.text(x, -0.3, byte, ha="center", va="center", color=style.QUIET, fontsize=7)
    _draw_inside(axes, cache, num_layers - 1, block, ROW * num_layers + 0.9)
    return figure


def _x(cache: PhysicalCache, side: int, block: int) -> float:
    return side * (cache.layout.num_blocks + SIDES) + block


def _draw_block(
    axes: Axes, place: tuple[float, float], cache: PhysicalCache, layer: int, side: int, block: int
) -> None:
    """Its number, and the tokens that were found in it."""
    tokens = cache.tokens(layer, side, block)
    face = (style.K, style.V)[side] if tokens else style.EMPTY
    style.add(axes, Rectangle(place, 1, 1, facecolor=face, edgecolor=style.PAPER, linewidth=1.2))
    x, y = place[0] + 0.5, place[1]
    ink = style.ink_on(face) if tokens else style.QUIET
    axes.text(x, y + (0.3 if tokens else 0.5), str(block), ha="center", va="center", color=ink)
    if tokens:
        words = f"{tokens[0]}–{tokens[-1]}"
        axes.text(x, y + 0.72, words, ha="center", va="center", color=ink, fontsize=7)


def _draw_inside(axes: Axes, cache: PhysicalCache, layer: int, block: int, y: float) -> None:
    """The memory of one block of K, 16 bytes a cell: heads, in them pieces, in them slots."""
    layout = cache.layout
    width, left = 2 * layout.num_blocks + SIDES, _x(cache, 0, block)
    for near, far in ((left, 0.0), (left + 1, width)):
        axes.plot([near, far], [y - 0.9 - ROW + 1, y], color=style.QUIET, linewidth=0.8)
    cells = cache.layers[layer][0, block].reshape(-1, layout.x)
    step = width / len(cells)
    for place, numbers in enumerate(cells):
        filled = bool(tokens_in(numbers, layer, side=0))
        look = (
            {"facecolor": style.K}
            if filled
            else {"facecolor": style.EMPTY, "hatch": style.UNUSED_HATCH}
        )
        corner = (place * step, y)
        style.add(axes, Rectangle(corner, step, 1, edgecolor=style.PAPER, linewidth=0.8, **look))
    per_head, pieces = width / layout.num_kv_heads, layout.head_size // layout.x
    for head in range(layout.num_kv_heads):
        x = head * per_head
        for piece in range(pieces):
            middle = x + (piece + 0.5) * per_head / pieces
            axes.text(middle, y + 1.3, f"piece {piece}", ha="center", va="center", fontsize=7)
        axes.plot([x + 0.1, x + per_head - 0.1], [y + 1.65] * 2, color=style.INK, linewidth=1)
        axes.text(x + per_head / 2, y + 2, f"KV head {head}", ha="center", va="center")
    tokens = cache.tokens(layer, 0, block)
    axes.text(
        0,
        y + 2.7,
        f"block {block} of K in layer {layer}: {layout.bytes_per_block // 2:,} bytes; a cell is "
        f"16 bytes of one slot, filled for the tokens {', '.join(map(str, tokens))}",
        va="center",
    )
