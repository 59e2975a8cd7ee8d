"""The figure of notebook 24: where each token of a tile is stored, and what is masked."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from pa_tutorial.viz import style
from pa_tutorial.viz.drawing import board, cell, frame, note, plate, plural, write

PIECE = 8  # elements that are drawn as one


@style.styled
def draw_tile(offset: Tensor, is_kv: Tensor, k_cache: Tensor) -> Figure:
    """What a kernel computed for one tile of keys of KV head 0.

    offset   [tile_size, padded head size]  offset of each element in the cache
    is_kv    [tile_size, padded head size]  false where masked; whole tokens, each with a whole head
    k_cache  [num_blocks, num_kv_heads, block_size, head_size]
    """
    tile_size, width = offset.shape
    num_tokens, used = int(is_kv[:, 0].sum()), int(is_kv[0].sum())
    figure, axes = style.new_figure(
        f"Only {is_kv.float().mean():.0%} of a {tile_size} × {width} tile is loaded: "
        f"{plural(num_tokens, 'token')} with heads of {used}",
        4.2,
    )
    board(axes, width / PIECE + 0.2, tile_size + 1.2)
    for element in range(0, width, 4 * PIECE):
        text = f"element {element}" if element == 0 else str(element)
        note(axes, element / PIECE + 0.05, 0.5, text, "left")
    for token in range(tile_size):
        text = f"token {token}   {place_of(offset, is_kv, k_cache, token)}"
        note(axes, -0.15, token + 1.5, text, "right")
        for element in range(0, width, PIECE):
            unused = not is_kv[token, element]
            cell(axes, element // PIECE, token + 1, style.K, unused=unused)
    columns = np.array((used, width - used, width)) / PIECE
    _outline(axes, columns[0], 1, columns[1], tile_size, "past the end\nof the head")
    _outline(axes, 0, num_tokens + 1, columns[2], tile_size - num_tokens, "no such token")
    return figure


def place_of(offset: Tensor, is_kv: Tensor, k_cache: Tensor, token: int) -> str:
    """Block and offset in it, from the offset of the token's first element."""
    if not is_kv[token].any():
        return "no token"
    block_number, inside = divmod(int(offset[token, 0]), k_cache.stride(0))
    return f"block {block_number}, offset {inside // k_cache.stride(2)}"


def _outline(axes: Axes, x: float, y: float, width: float, height: float, text: str) -> None:
    """A named frame around everything that a mask excludes."""
    frame(axes, x, y, width, height, style.NAN, linewidth=1.2)
    write(axes, x + width / 2, y + height / 2, text, color=style.NAN, bbox=plate(1.5))
