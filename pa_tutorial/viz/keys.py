"""Who reads which bytes of K, and at which address, drawn from traces."""

from dataclasses import replace

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from pa_tutorial.kernels.geometry import Geometry
from pa_tutorial.kernels.loads import LoadsOf, element_loads
from pa_tutorial.kernels.paged_attention import paged_attention
from pa_tutorial.kernels.running import flat
from pa_tutorial.simt import Trace
from pa_tutorial.viz import style
from pa_tutorial.viz.kernel_runs import REFERENCE, Run, keys_of_block, run_v1
from pa_tutorial.walk.cases import WORKED_EXAMPLE

# K -------------------------------------------------------------------------------------------


@style.styled
def draw_blocks_of_warps(run: Run) -> Figure:
    """Which warp reads the K of which block, and which threads take which token of it."""
    (table,), geometry = run["block_tables"].tolist(), run.geometry
    reads = run.trace.only(array="k_cache")
    element = reads.the_array().indices(reads.records.address)[0]
    physical = element // run["kv_block_stride"]
    used = {*physical.tolist()}
    table = [number for number in table if number in used]
    readers = {b: np.unique(reads.records.warp[physical == b]).tolist() for b in used}
    figure, axes = style.new_figure(
        f"Warp w takes the blocks w, w + {geometry.NUM_WARPS}, …; "
        f"in a block, each group of {geometry.THREAD_GROUP_SIZE} threads takes a token",
        2.4,
    )
    style.bare(axes, len(table), geometry.NUM_WARPS + 3.6)
    axes.set_aspect("auto")
    axes.text(0, -0.45, "logical block index", color=style.QUIET, va="center")
    for block_idx, number in enumerate(table):
        axes.text(block_idx + 0.5, 0.35, str(block_idx), ha="center", va="center")
        for warp in range(geometry.NUM_WARPS):
            here = warp in readers[number]
            shade = style.lighter(style.K, 0.7 * warp / geometry.NUM_WARPS)
            color = shade if here else style.EMPTY
            text = f"block {number}" if here else ""
            style.cell(axes, block_idx, warp + 0.8, color, text)
    for warp in range(geometry.NUM_WARPS):
        axes.text(-0.1, warp + 1.3, f"warp {warp}", ha="right", va="center", color=style.QUIET)
    _tokens_of_block(axes, run, table[1], len(table), geometry.NUM_WARPS + 2.2)
    axes.set_ylim(geometry.NUM_WARPS + 3.4, -0.8)
    return figure


def _tokens_of_block(axes: Axes, run: Run, block: int, width: float, y: float) -> None:
    """The tokens of the block with logical index 1, with the threads that read their K."""
    keys = keys_of_block(run, block)
    _, token, _ = keys.the_array().indices(keys.records.address)
    size = run.geometry.BLOCK_SIZE
    words = f"block {block}: the threads that read the K of its {size} tokens"
    axes.text(0, y - 0.4, words, color=style.QUIET, va="center")
    for offset in range(size):
        threads = np.unique(keys.threads[token == offset])
        face = style.lighter(style.K, 0.3 + 0.35 * (offset % 2))
        corner, step = (offset * width / size, y), width / size
        style.add(axes, Rectangle(corner, step, 1, facecolor=face, edgecolor=style.PAPER))
        text = f"{threads[0]}–{threads[-1]}" if len(threads) > 1 else str(threads[0])
        axes.text(corner[0] + step / 2, y + 0.5, text, ha="center", va="center")


def draw_reference_blocks_of_warps() -> Figure:
    return draw_blocks_of_warps(run_v1(REFERENCE))


# The address ---------------------------------------------------------------------------------


def key_terms(run: Run, thread: int, block: int, j: int) -> dict[str, int]:
    """The terms of the offset of vec j of a thread, in elements, by their names in the kernel."""
    g = run.geometry
    physical_block_offset = thread // g.THREAD_GROUP_SIZE % g.BLOCK_SIZE
    vec = (thread % g.THREAD_GROUP_SIZE + j * g.THREAD_GROUP_SIZE) * g.VEC_SIZE
    return {
        "physical_block_number * kv_block_stride": block * run["kv_block_stride"],
        "kv_head_idx * kv_head_stride": run.kv_head * run["kv_head_stride"],
        "physical_block_offset * X": physical_block_offset * g.X,
        "offset1 * BLOCK_SIZE * X": vec // g.X * g.BLOCK_SIZE * g.X,
        "offset2": vec % g.X,
    }


def key_offsets(run: Run, thread: int, block: int) -> list[int]:
    """The first element of each vec that a thread reads of a block, in its order: the trace's."""
    reads, g = run.trace.only(array="k_cache"), run.geometry
    element = reads.the_array().indices(reads.records.address)[0]
    first = run.start_of_block(block)
    here = (element >= first) & (element < first + g.HEAD_SIZE * g.BLOCK_SIZE)
    return element[here & (reads.threads == thread)][:: g.VEC_SIZE].tolist()


@style.styled
def draw_key_address(run: Run, thread: int, block: int) -> Figure:
    """From the pool to a vec: each term of the address is a step into the picture."""
    g, offsets = run.geometry, key_offsets(run, thread, block)
    last = len(offsets) - 1
    terms = key_terms(run, thread, block, last)
    figure, axes = style.new_figure(
        f"Thread {thread} reads its vec j = {last} at element {offsets[last]} of k_cache: "
        "a sum of five terms",
        4.1,
    )
    columns = g.BLOCK_SIZE * g.X // g.VEC_SIZE
    style.bare(axes, columns, 11.5)
    axes.set_aspect("auto")
    num_blocks = run["k_cache"].numel() // run["kv_block_stride"]
    num_kv_heads = run["kv_block_stride"] // run["kv_head_stride"]
    names, values = list(terms), list(terms.values())
    _level(axes, 0, num_blocks, block, columns, "block", f"{names[0]} = {values[0]}")
    _level(axes, 2.2, num_kv_heads, run.kv_head, columns, "KV head", f"{names[1]} = {values[1]}")
    keys = keys_of_block(run, block)
    mine = replace(keys, records=keys.records[keys.threads == thread])
    order = list(dict.fromkeys(zip(*mine.the_array().indices(mine.records.address), strict=True)))
    per_piece, top = g.X // g.VEC_SIZE, 6.4
    token = thread // g.THREAD_GROUP_SIZE % g.BLOCK_SIZE
    axes.text(0, top - 1.75, f"{names[2]} = {values[2]}: the column of the token", va="center")
    below = f"{names[3]} = {values[3]}: the row of the piece;   {names[4]} = {values[4]}: the vec"
    axes.text(0, top - 1.1, below, va="center")
    for piece in range(g.HEAD_SIZE // g.X):
        for column in range(columns):
            own = column // per_piece == token
            face = style.lighter(style.K, 0.6) if own else style.EMPTY
            place = (piece, column // per_piece, column % per_piece)
            text = f"j={order.index(place)}" if place in order else ""
            style.cell(axes, column, top + piece, style.K if text else face, text)
        axes.text(-0.2, top + piece + 0.5, f"piece {piece}", ha="right", va="center")
    bottom = top + g.HEAD_SIZE // g.X + 0.25
    ends = token * per_piece + 0.05, (token + 1) * per_piece - 0.05
    axes.plot(ends, (bottom, bottom), color=style.INK, linewidth=1.2)
    words = f"x = {g.X} elements, 16 bytes"
    axes.text(sum(ends) / 2, bottom + 0.5, words, ha="center", va="center")
    for offset in range(g.BLOCK_SIZE):
        middle = (offset + 0.5) * per_piece
        axes.text(
            middle, top - 0.35, f"token {offset}", ha="center", va="center", color=style.QUIET
        )
    axes.set_ylim(bottom + 0.9, -0.9)
    return figure


def _level(
    axes: Axes, y: float, count: int, chosen: int, columns: int, name: str, term: str
) -> None:
    """One step of the zoom: equal parts, one of them chosen."""
    # Where no line of the zoom passes: above the first level, between the lines of the second.
    place = {"x": 0, "ha": "left"} if y == 0 else {"x": 0.64 * columns, "ha": "center"}
    axes.text(**place, y=y - 0.4, s=term, va="center")
    step = columns / count
    for number in range(count):
        face = style.K if number == chosen else style.EMPTY
        style.add(
            axes, Rectangle((number * step, y), step, 1, facecolor=face, edgecolor=style.PAPER)
        )
        axes.text((number + 0.5) * step, y + 0.5, f"{name} {number}", ha="center", va="center")
    for corner, edge in ((chosen * step, 0), ((chosen + 1) * step, columns)):
        axes.plot((corner, edge), (y + 1, y + 1.75), color=style.QUIET, linewidth=0.8)


def draw_worked_key_address() -> Figure:
    return draw_key_address(run_v1(WORKED_EXAMPLE), thread=5, block=5)


# vLLM's layout and the plain one -------------------------------------------------------------


class PlainGeometry(Geometry):
    """X = HEAD_SIZE makes vLLM's layout of K the plain one: all elements of a token together."""

    @property
    def X(self) -> int:
        return self.head_size


def plain_key_trace(run: Run, loads: LoadsOf = element_loads) -> Trace:
    """The reads of K of the same kernel, over the same tokens in the plain layout.

    loads  those of `run`

    Raises AssertionError if the output is not that of `run`.
    """
    g, prepared = run.geometry, run.prepared
    x = g.X
    arguments = dict(prepared.arguments)
    k = arguments["k_cache"].reshape(-1, g.HEAD_SIZE // x, g.BLOCK_SIZE, x)
    arguments["k_cache"] = flat(k.transpose(1, 2).contiguous())  # [block and head, token, element]
    arguments["out"] = flat(out := prepared.out.clone().fill_(float("nan")))
    plain = PlainGeometry(
        g.head_size, g.block_size, g.dtype, num_queries_per_kv=g.num_queries_per_kv
    )
    again = replace(prepared, kernel=paged_attention(plain, loads), arguments=arguments)
    report = again.simulate(trace=0)
    assert (out == prepared.out).all(), "another layout of K must not change the output"
    return report.trace.only(array="k_cache")
