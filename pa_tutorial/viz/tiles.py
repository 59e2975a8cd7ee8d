"""Tiles of a Triton kernel: what is masked in one, and how it is spread over the threads."""

from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from pa_tutorial.kernels.triton_inputs import padded
from pa_tutorial.simt.races import WARP_SIZE
from pa_tutorial.viz import style
from pa_tutorial.viz.kernel_runs import REFERENCE, Run, keys_of_block, run_v1
from pa_tutorial.walk.cases import WORKED_EXAMPLE

PIECE = 8  # elements that are drawn as one: 16 bytes of float16
TOKENS = 8  # that are drawn of a block


@dataclass(frozen=True)
class Blocked:
    """Triton's layout of a tile of two dimensions: `#ttg.blocked` in its TTGIR.

    A thread has size_per_thread neighbouring elements, a warp threads_per_warp such pieces, a
    program warps_per_program such warps. If the tile is larger, it begins again.
    """

    size_per_thread: tuple[int, int]
    threads_per_warp: tuple[int, int]
    warps_per_program: tuple[int, int]

    def thread_of(self, row: int, column: int) -> int:
        """The thread that has this element; the last dimension counts fastest."""
        lane = warp = 0
        sizes = self.size_per_thread, self.threads_per_warp, self.warps_per_program
        for index, size, lanes, warps in zip((row, column), *sizes, strict=True):
            piece = index // size
            lane = lane * lanes + piece % lanes
            warp = warp * warps + piece // lanes % warps
        return WARP_SIZE * warp + lane

    def __str__(self) -> str:
        return (
            f"blocked<{{sizePerThread = {list(self.size_per_thread)}, "
            f"threadsPerWarp = {list(self.threads_per_warp)}, "
            f"warpsPerCTA = {list(self.warps_per_program)}, order = [1, 0]}}>"
        )


# What Triton chooses for the keys of the reference: float16, head_size 128, 4 warps.
OF_KEYS = Blocked((1, 8), (2, 16), (4, 1))


@style.styled
def draw_threads(run: Run, layout: Blocked) -> Figure:
    """Who brings which 16 bytes of the first keys of a block: in v1, and in Triton."""
    figure, axes = style.new_figure(
        "The threads that bring the first keys of a block, 16 bytes a cell", 5.0, nrows=2
    )
    num_pieces = run.geometry.HEAD_SIZE // PIECE
    in_triton = [
        [str(layout.thread_of(token, PIECE * piece)) for piece in range(num_pieces)]
        for token in range(TOKENS)
    ]
    words = (
        "v1: warp 0 has the block, two threads a token, each 8 bytes of a cell (memory: downwards)"
    )
    _draw_owners(axes[0], words, owners_in_v1(run), warps=np.zeros((TOKENS, num_pieces), int))
    warps = np.array(in_triton, int) // WARP_SIZE
    words = "Triton: 16 threads a token, a cell each; a shade is a warp (memory: to the right)"
    _draw_owners(axes[1], words, in_triton, warps)
    return figure


def owners_in_v1(run: Run) -> list[list[str]]:
    """[TOKENS][head_size / 8]: the threads that read these 16 bytes in a trace of v1."""
    keys = keys_of_block(run, run["block_tables"].tolist()[0][0])
    piece, token, _ = keys.the_array().indices(keys.records.address)
    found = []
    for row in range(TOKENS):
        here = [
            sorted({*keys.threads[(token == row) & (piece == p)].tolist()})
            for p in range(run.geometry.HEAD_SIZE // PIECE)
        ]
        found.append([" ".join(map(str, threads)) for threads in here])
    return found


def _draw_owners(axes: Axes, words: str, owners: list[list[str]], warps: np.ndarray) -> None:
    num_pieces = len(owners[0])
    style.bare(axes, num_pieces, TOKENS + 0.9)
    axes.set_aspect("auto")
    axes.set_title(words, fontweight="normal", color=style.QUIET)
    for piece in range(0, num_pieces, 4):
        axes.text(piece + 0.02, 0.4, f"element {PIECE * piece}", va="center", color=style.QUIET)
    for token, row in enumerate(owners):
        y = token + 0.8
        axes.text(-0.1, y + 0.5, f"token {token}", ha="right", va="center", color=style.QUIET)
        for piece, text in enumerate(row):
            color = style.lighter(style.K, 0.2 * warps[token, piece])
            style.cell(axes, piece, y, color, text)


def draw_reference_threads() -> Figure:
    return draw_threads(run_v1(REFERENCE), OF_KEYS)


@style.styled
def draw_masks(
    table: list[int], block_size: int, num_tokens: int, head_size: int, tile_size: int
) -> Figure:
    """One tile of keys: where each token lies, and what is masked."""
    width = padded(head_size) // PIECE
    figure, axes = style.new_figure(
        f"A tile of {tile_size} × {padded(head_size)} for {num_tokens} tokens "
        f"and head_size {head_size}; a cell is {PIECE} elements",
        4.2,
    )
    style.bare(axes, width + 0.2, tile_size + 1.2)
    axes.set_aspect("auto")
    for piece in range(width):
        if piece % 4 == 0:
            text = f"element {PIECE * piece}" if piece == 0 else str(PIECE * piece)
            axes.text(piece + 0.05, 0.5, text, va="center", color=style.QUIET)
        for token in range(tile_size):
            is_kv = token < num_tokens and piece * PIECE < head_size
            style.cell(axes, piece, token + 1, style.K, unused=not is_kv)
    for token in range(tile_size):
        where = "no token"
        if token < num_tokens:
            where = f"block {table[token // block_size]}, offset {token % block_size}"
        text = f"token {token}   {where}"
        axes.text(-0.15, token + 1.5, text, ha="right", va="center", color=style.QUIET)
    used = head_size / PIECE
    _outline(axes, used, 1, width - used, tile_size, "element < HEAD_SIZE\nis false")
    _outline(axes, 0, num_tokens + 1, width, tile_size - num_tokens, "token_idx < last is false")
    return figure


def _outline(axes: Axes, x: float, y: float, width: float, height: float, text: str) -> None:
    """A frame around what a mask keeps out, with its name on it."""
    style.add(
        axes, Rectangle((x, y), width, height, fill=False, edgecolor=style.NAN, linewidth=1.2)
    )
    behind = {"facecolor": style.PAPER, "edgecolor": "none", "pad": 1.5}
    place = x + width / 2, y + height / 2
    axes.text(*place, text, ha="center", va="center", bbox=behind, color=style.NAN)


def draw_masks_of_worked_example() -> Figure:
    """Its two blocks and 11 tokens, but heads of 80."""
    (table,) = WORKED_EXAMPLE.tables
    seq_len, block_size = WORKED_EXAMPLE.seq_lens[0], WORKED_EXAMPLE.block_size
    return draw_masks(list(table), block_size, seq_len, head_size=80, tile_size=16)
