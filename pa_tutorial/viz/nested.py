"""The figure of notebooks 07 to 14: who works on what, from the grid down to the lane."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pa_tutorial.checks.cases import WORKED_EXAMPLE
from pa_tutorial.checks.problem import DecodeProblem
from pa_tutorial.kernels.geometry import Geometry, divide_round_up
from pa_tutorial.viz import style
from pa_tutorial.viz.drawing import SMALL, arrow, board, box, note, plural, span, write
from simt.gpus import WARP_SIZE

ABOUT = {  # notebook -> the rungs that it is about; where threads have no lanes, each has a token
    "07": ("grid", "thread block", "thread"),
    "08": ("thread block", "thread"),
    "09": ("warp", "thread group"),
    "10": ("thread group", "lane"),
    "11": ("thread block", "warp"),
    "12": ("warp", "lane", "row"),
    "13": ("lane",),
    "14": ("grid", "thread block"),
}
# What comes later: in which notebook, and its title.
WARPS = "09", "in Warps"
COMES_IN = {"warp": WARPS, "lane": WARPS, "vec": ("10", "in Query and key")}
LEFT, RIGHT, WIDTH, BAR, STEP = 0.12, 3.92, 3.15, 0.24, 0.64  # inches


@dataclass(frozen=True)
class Side:
    """One side of a rung: a thing, its size in words, and its parts in order.

    parts   "" is a part that isn't there, or has no work
    chosen  the parts that the next rung shows, or that its thread takes
    """

    name: str
    size: str = ""
    parts: Sequence[object] = ("",)
    chosen: Collection[int] = (0,)


@style.styled
def draw_ladder(
    notebook: str, problem: DecodeProblem = WORKED_EXAMPLE, partition_size: int = 0
) -> Figure:
    """Each rung splits the dark part of the rung above, beginning with head 0 of sequence 0.

    Rungs that the notebook is about have full colour; what comes in a later notebook is grey.
    """
    given = problem.head_size, problem.block_size, problem.dtype
    g, seq_len = Geometry(*given, partition_size=partition_size), problem.seq_lens[0]
    tokens = min(partition_size or seq_len, seq_len)
    blocks = problem.block_tables()[0][0][: divide_round_up(tokens, g.BLOCK_SIZE)]
    below = {"07": naive_rungs, "08": naive_rungs, "12": value_rungs}.get(notebook, rungs)
    ladder = [grid(problem, partition_size), *below(g, tokens, blocks)]
    of_cache = style.V if notebook == "12" else style.K
    title = titles(g, tokens, len(blocks), seq_len)[notebook]
    figure, axes = style.new_figure(title, 0.3 + STEP * len(ladder))
    board(axes, style.WIDTH, STEP * len(ladder), 0, 0)
    note(axes, (LEFT + WIDTH + RIGHT) / 2, 0.13, "works on", size=SMALL)
    for rung, (who, what) in enumerate(ladder):
        y, about = STEP * rung + 0.25, who.name.startswith(ABOUT[notebook])
        arrow(axes, (LEFT + WIDTH + 0.1, y + BAR / 2), (RIGHT - 0.1, y + BAR / 2))
        for x, side, color in ((LEFT, who, style.INK), (RIGHT, what, of_cache)):
            _draw_side(axes, x, y, side, color, notebook, about)
            if rung < len(ladder) - 1:
                _draw_zoom(axes, x, y + BAR, side)
    return figure


def grid(problem: DecodeProblem, partition_size: int) -> tuple[Side, Side]:
    heads, seqs, parts = problem.num_heads, len(problem.seq_lens), 1
    batch = f"{plural(heads, 'head')} × {plural(seqs, 'sequence')}"
    if partition_size:
        parts = divide_round_up(max(problem.seq_lens), partition_size)
        batch += f" × {plural(parts, 'partition')}"
    axes = 3 if partition_size else 2
    indices = [",".join(map(str, place[::-1][:axes])) for place in np.ndindex(parts, seqs, heads)]
    left = Side("grid", plural(len(indices), "thread block"), indices)
    of_batch = named("head", [*range(heads)] * seqs * parts)
    if partition_size and len(of_batch) <= 8:  # there is room
        of_batch = [f"h{head} p{part}" for part, _, head in np.ndindex(parts, seqs, heads)]
    return left, Side("batch", batch, of_batch)


def rungs(g: Geometry, tokens: int, blocks: Sequence[int]) -> list[tuple[Side, Side]]:
    """The rungs below the grid, in vLLM's v1 and v2."""
    group, vecs = g.THREAD_GROUP_SIZE, g.HEAD_SIZE // g.VEC_SIZE
    lane = min(1, group - 1)  # its number in the group
    mine, groups, lanes = range(lane, vecs, group), WARP_SIZE // group, range(group, 2 * group)
    threads = f"{g.NUM_THREADS} threads, {g.NUM_WARPS} warps"
    own = f"{g.NUM_ELEMS_PER_THREAD} of the token's elements"
    who = [
        Side("thread block", threads, named("warp", range(g.NUM_WARPS))),
        Side("warp", plural(groups, "thread group"), range(groups), (1,)),
        Side("thread group", plural(group, "lane"), named("lane", lanes), (lane,)),
        Side(f"lane {group + lane}", own, named("vec", mine)),
    ]
    part = "partition of a head" if g.PARTITION_SIZE else "head of one sequence"
    sizes = f"{plural(tokens, 'token')}, {plural(len(blocks), 'KV block')}"
    of_block = [token if token < tokens else "" for token in range(g.BLOCK_SIZE)]
    num_bytes = f"{plural(g.VEC_SIZE, 'element')}, {g.VEC_SIZE * g.ITEMSIZE} bytes"
    elements = named("element", range(lane * g.VEC_SIZE, (lane + 1) * g.VEC_SIZE))
    what = [
        Side(part, sizes, named("block", blocks) + [""] * (g.NUM_WARPS - len(blocks))),
        Side("KV block", plural(g.BLOCK_SIZE, "token"), of_block, (1,)),
        Side("token", f"{g.HEAD_SIZE} elements", range(vecs), mine),
        Side("vec", num_bytes, elements, range(g.VEC_SIZE)),
    ]
    return [*zip(who, what, strict=True)]


def naive_rungs(g: Geometry, tokens: int, blocks: Sequence[int]) -> list[tuple[Side, Side]]:
    """The same with one thread per token: what it doesn't know has no size."""
    head, block, token, _ = (what for _, what in rungs(g, tokens, blocks))
    size = g.BLOCK_SIZE
    threads = [span(range(n, min(n + size, tokens))) for n in range(0, tokens, size)]
    threads += [""] * (len(head.parts) - len(threads))
    elements = range(g.HEAD_SIZE)
    who = [
        Side("thread block", f"{g.NUM_THREADS} threads", threads),
        Side("warp", parts=block.parts, chosen=(1,)),
        Side("thread", "takes a whole token", ["thread 1"]),
        Side("lane"),
    ]
    what = head, block, replace(token, parts=elements, chosen=elements), Side("vec")
    return [*zip(who, what, strict=True)]


def value_rungs(g: Geometry, tokens: int, blocks: Sequence[int]) -> list[tuple[Side, Side]]:
    """The same for V, where a warp has no groups: a lane takes 16 bytes of some rows."""
    (block, head), *_ = rungs(g, tokens, blocks)
    lane = 5
    rows = g.value_rows(lane)
    who = [
        block,
        Side("warp", plural(WARP_SIZE, "lane"), range(WARP_SIZE), (lane,)),
        Side(f"lane {lane}", plural(len(rows), "sum"), named("sum", range(len(rows)))),
    ]
    tokens_of_row = f"{plural(g.BLOCK_SIZE, 'token')}, {g.V_VEC_SIZE} at once"
    what = [
        head,
        Side("KV block", f"{g.HEAD_SIZE} rows of V", range(g.HEAD_SIZE), rows),
        Side("row", tokens_of_row, range(g.BLOCK_SIZE), g.value_tokens(lane)),
    ]
    return [*zip(who, what, strict=True)]


def named(noun: str, numbers: Sequence[object]) -> list[str]:
    """With the noun where there is room for it."""
    return [f"{noun} {number}" if len(numbers) < 5 else str(number) for number in numbers]


def titles(g: Geometry, tokens: int, blocks: int, seq_len: int) -> dict[str, str]:
    """What each notebook adds."""
    group, vec = plural(g.THREAD_GROUP_SIZE, "lane"), plural(g.VEC_SIZE, "element")
    vecs, warps = g.NUM_VECS_PER_THREAD, min(g.NUM_WARPS, blocks)
    rows = plural(g.NUM_ROWS_PER_THREAD, "row")
    return {
        "07": "Each head of each sequence gets a thread block, and each of its tokens a thread",
        "08": f"One thread per token: {tokens} of {g.NUM_THREADS} threads have work",
        "09": f"A warp takes a block of {g.BLOCK_SIZE} tokens: {group} for each of them",
        "10": f"A lane takes {vecs} of the {vecs * g.THREAD_GROUP_SIZE} vecs of a token",
        "11": f"{warps} of {g.NUM_WARPS} warps have scores, and the softmax needs them all",
        "12": f"A lane takes {rows} of V in each block, {g.V_VEC_SIZE} tokens at once",
        "13": f"A vec is {vec}, {g.VEC_SIZE * g.ITEMSIZE} bytes: a lane can load it at once",
        "14": f"In v2 a thread block takes one partition: {tokens} of {seq_len} tokens",
    }


def _draw_side(
    axes: Axes, x: float, y: float, side: Side, color: str, notebook: str, about: bool
) -> None:
    """A bar of equal parts, the chosen ones dark, under the name of the whole."""
    coming, where = COMES_IN.get(side.name.split()[0], ("", ""))
    later = coming > notebook
    about &= not later
    look = {"color": style.QUIET if later else style.INK, "weight": "bold" if about else "normal"}
    write(axes, x, y - 0.12, side.name, "left", **look)
    size = where if later else side.size
    note(axes, x + WIDTH, y - 0.12, size, "right", size=SMALL)
    width = WIDTH / len(side.parts)
    for number, part in enumerate(side.parts):
        paler = 0.65 * (number not in side.chosen) + 0.2 * (not about)
        idle = later or (part == "" and number not in side.chosen)
        shade = style.EMPTY if idle else style.lighter(color, paler)
        text = "" if later or len(side.parts) > 16 else part
        box(axes, x + number * width, y, width, BAR, shade, text, SMALL)


def _draw_zoom(axes: Axes, x: float, y: float, side: Side) -> None:
    """Lines from a chosen part to both ends of the next rung."""
    width, part = WIDTH / len(side.parts), min(side.chosen)
    for top, end in ((x + part * width, x), (x + (part + 1) * width, x + WIDTH)):
        axes.plot((top, end), (y, y + 0.14), color=style.QUIET, linewidth=0.7)
