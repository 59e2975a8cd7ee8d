"""The rows of V, the tree over the warps, and the whole computation on one page."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from pa_tutorial.cases import WORKED_EXAMPLE
from pa_tutorial.kernels.geometry import Geometry
from pa_tutorial.kernels.intermediates import ROWS_DONE, SCORES_DONE, SUM_DONE, WEIGHTS_DONE
from pa_tutorial.simt import Trace
from pa_tutorial.simt.races import WARP_SIZE
from pa_tutorial.viz import style
from pa_tutorial.viz.kernel_runs import REFERENCE, Run, run_v1, values_of_block

SMALL = 7.5  # points: numbers in cells


# The rows of V -------------------------------------------------------------------------------


def value_offsets(run: Run, block: int, lane: int) -> list[int]:
    """The first element of each vec that a lane reads of a block, in its order: the trace's."""
    reads, g = run.trace.only(array="v_cache"), run.geometry
    element = reads.the_array().indices(reads.records.address)[0]
    first = run.start_of_block(block)
    here = (element >= first) & (element < first + g.HEAD_SIZE * g.BLOCK_SIZE)
    return element[here & (reads.records.lane == lane)][:: g.V_VEC_SIZE].tolist()


@style.styled
def draw_value_rows(run: Run, block: int, lane: int) -> Figure:
    """V of one block: which lane reads which vec, and the rows of one lane."""
    g, reads = run.geometry, values_of_block(run, block)
    rows, vecs = reads.the_array().indices(reads.records.address)
    owner = {}
    for row, vec, one in zip(
        rows.tolist(), vecs.tolist(), reads.records.lane.tolist(), strict=True
    ):
        owner.setdefault((row, vec), one)
    mine = sorted(row for (row, vec), one in owner.items() if one == lane)
    tokens = g.value_tokens(lane)
    figure, axes = style.new_figure(
        f"Lane {lane} reads the rows {mine[0]}, {mine[1]}, …, {mine[-1]} of V, the tokens "
        f"{tokens[0]} to {tokens[-1]} of each: {len(mine)} accs",
        4.6,
    )
    wide, turns = g.NUM_V_VECS_PER_ROW, g.NUM_ROWS_PER_THREAD
    style.bare(axes, turns * (wide + 0.4), g.NUM_ROWS_PER_ITER)
    axes.set_aspect("auto")
    for (row, vec), one in owner.items():
        turn, within = divmod(row, g.NUM_ROWS_PER_ITER)
        shade = style.V if one == lane else style.lighter(style.V, 0.72 + 0.12 * (one % 2))
        style.cell(axes, turn * (wide + 0.4) + vec, within, shade, str(one))
    for turn in range(turns):
        middle = turn * (wide + 0.4) + wide / 2
        first = turn * g.NUM_ROWS_PER_ITER
        last = min(first + g.NUM_ROWS_PER_ITER, g.HEAD_SIZE) - 1
        axes.text(middle, -1.4, f"accs[{turn}]", ha="center", va="center")
        words = f"{first}–{last}"
        axes.text(middle, -0.5, words, ha="center", va="center", color=style.QUIET)
    for vec in range(wide if wide <= 2 else 0):
        first = vec * g.V_VEC_SIZE
        words = f"{first}–{first + g.V_VEC_SIZE - 1}"
        place = vec + 0.5, g.NUM_ROWS_PER_ITER + 0.6
        axes.text(*place, words, ha="center", va="center", color=style.QUIET)
    for x, words, side in ((-0.15, "tokens", "right"), (wide + 0.4, "a number is a lane", "left")):
        place = x, g.NUM_ROWS_PER_ITER + 0.6
        axes.text(*place, words, ha=side, va="center", color=style.QUIET)
    axes.text(-0.15, -0.5, "rows", ha="right", va="center", color=style.QUIET)
    for within in range(0, g.NUM_ROWS_PER_ITER, 5):
        axes.text(-0.15, within + 0.5, f"+{within}", ha="right", va="center", color=style.QUIET)
    axes.set_ylim(g.NUM_ROWS_PER_ITER + 1.1, -2)
    return figure


def draw_reference_value_rows() -> Figure:
    (table,), _ = REFERENCE.block_tables()
    return draw_value_rows(run_v1(REFERENCE), table[0], lane=0)


# The tree ------------------------------------------------------------------------------------


def tree_levels(trace: Trace, head_size: int) -> list[tuple[dict[int, int], dict[int, int]]]:
    """For each level: warp -> place in out_smem that it writes; warp -> place that it reads."""
    levels: list[tuple[dict[int, int], dict[int, int]]] = []
    touched = {
        "write": trace.only("out_smem[dst + row_idx]", kind="write"),
        "read": trace.only("out_smem[src + row_idx]", kind="read"),
    }
    start = int(touched["write"].records.address.min())
    events = []
    for kind, part in touched.items():
        for r in part.records:
            events.append((int(r.instruction), kind, int(r.warp), int(r.address) - start))
    before = "read"
    for _, kind, warp, byte in sorted(events):
        if kind == "write" and before == "read":
            levels.append(({}, {}))
        levels[-1][kind == "read"].setdefault(warp, byte // (4 * head_size))
        before = kind
    return levels


@style.styled
def draw_warp_tree(run: Run) -> Figure:
    """The sum over the warps: who leaves its rows where in shared memory, and who adds them."""
    levels, warps = tree_levels(run.trace, run.geometry.HEAD_SIZE), run.geometry.NUM_WARPS
    places = 1 + max(place for written, _ in levels for place in written.values())
    figure, axes = style.new_figure(
        f"{len(levels)} levels sum the rows of {warps} warps, with room for {places} of them in "
        "shared memory",
        0.7 + 1.25 * len(levels),
    )
    step, room = 3.0, 1.6
    style.bare(axes, warps * room, step * len(levels) + 1)
    axes.set_aspect("auto")
    held = {warp: {warp} for warp in range(warps)}
    _warps_of_level(axes, 0, held, room)
    for number, (written, read) in enumerate(levels):
        y, left = number * step, {}
        for warp, place in written.items():
            left[place] = held.pop(warp)
            corner = place * room + room / 2 - 0.55
            box = Rectangle((corner, y + 1.6), 1.1, 0.7, facecolor=style.lighter(style.OUT, 0.75))
            axes.add_patch(box)
            axes.text(corner + 0.55, y + 1.95, f"out_smem {place}", ha="center", va="center")
            head = corner + 0.9, y + 1.6
            axes.add_patch(style.arrow((warp * room + 0.5, y + 0.9), head))
        for warp, place in read.items():
            held[warp] = held[warp] | left[place]
            tail = place * room + room / 2 - 0.2, y + 2.3
            axes.add_patch(style.arrow(tail, (warp * room + 0.5, y + step)))
            axes.plot([warp * room + 0.2] * 2, [y + 0.9, y + step], color=style.QUIET, lw=0.8)
        _warps_of_level(axes, y + step, held, room)
    return figure


def _warps_of_level(axes: Axes, y: float, held: dict[int, set[int]], room: float) -> None:
    for warp, summed in held.items():
        face = style.lighter(style.OUT, 0.5 - 0.5 * len(summed) / 4)
        axes.add_patch(Rectangle((warp * room, y), 1, 0.9, facecolor=face))
        words = f"warp {warp}: rows of\n" + " + ".join(str(one) for one in sorted(summed))
        axes.text(warp * room + 0.5, y + 0.45, words, ha="center", va="center")


def draw_reference_warp_tree() -> Figure:
    return draw_warp_tree(run_v1(REFERENCE))


# All of it -----------------------------------------------------------------------------------


@style.styled
def draw_whole_kernel(run: Run, rows: int = 4) -> Figure:
    """The whole computation for one head of a short sequence, with its numbers.

    rows  of V and out that are shown
    """
    g = run.geometry
    seq_len = int(run["seq_lens"][0])
    scores = np.ma.filled(run.snapshot(SCORES_DONE)["logits"], np.nan)[:seq_len]
    weights = np.ma.filled(run.snapshot(WEIGHTS_DONE)["logits"], np.nan)[:seq_len]
    qk_max = float(run.snapshot(SCORES_DONE)["qk_max"][0])
    exp_sum = float(run.snapshot(SUM_DONE)["exp_sum"][0])
    accs = run.snapshot(ROWS_DONE)["accs"]
    title = f"One head from its scores to its output: qk_max {qk_max:.3f}, exp_sum {exp_sum:.3f}"
    figure, axes = style.new_figure(title, 3.9)
    style.bare(axes, seq_len + 6.2, 9 + rows)
    axes.set_aspect("auto")
    table = run["block_tables"][0].tolist()
    for block_idx in range(-(-seq_len // g.BLOCK_SIZE)):
        first = block_idx * g.BLOCK_SIZE
        wide = min(seq_len, first + g.BLOCK_SIZE) - first
        words = f"block {table[block_idx]}: warp {block_idx % g.NUM_WARPS}"
        axes.plot((first + 0.05, first + wide - 0.05), (0.95, 0.95), color=style.INK, lw=1)
        axes.text(first + wide / 2, 0.45, words, ha="center", va="center")
    lines = [
        ("token", [str(token) for token in range(seq_len)], None),
        ("threads for qk", [_threads_of(g, token) for token in range(seq_len)], None),
        ("qk", [f"{score:.2f}" for score in scores], style.lighter(style.LOGITS, 0.75)),
        (
            "exp(qk - qk_max)",
            [f"{np.exp(s - qk_max):.2f}" for s in scores],
            style.lighter(style.LOGITS, 0.5),
        ),
        ("weight", [f"{weight:.2f}" for weight in weights], style.LOGITS),
    ]
    for number, (name, texts, color) in enumerate(lines):
        _line(axes, number + 1.1, name, texts, color)
    _values_and_output(axes, run, accs, seq_len, rows, len(lines) + 2.2)
    axes.set_ylim(len(lines) + 2.3 + rows, -0.1)
    return figure


def _threads_of(g: Geometry, token: int) -> str:
    """The thread group that takes the token, as the numbers of its threads."""
    block_idx, offset = divmod(token, g.BLOCK_SIZE)
    first = block_idx % g.NUM_WARPS * WARP_SIZE + offset * g.THREAD_GROUP_SIZE
    last = first + g.THREAD_GROUP_SIZE - 1
    return f"{first}–{last}" if last > first else str(first)


def _line(axes: Axes, y: float, name: str, texts: list[str], color: str | None) -> None:
    axes.text(-0.15, y + 0.5, name, ha="right", va="center", color=style.QUIET)
    for column, text in enumerate(texts):
        if color:
            box = Rectangle((column, y), 1, 1, facecolor=color, edgecolor=style.PAPER)
            axes.add_patch(box)
        ink = style.ink_on(color) if color else style.QUIET
        axes.text(column + 0.5, y + 0.5, text, ha="center", va="center", size=SMALL, color=ink)


def value_of(run: Run, token: int, row: int) -> float:
    """V of a token of sequence 0, read from the cache."""
    block_idx, offset = divmod(token, run.geometry.BLOCK_SIZE)
    start = run.start_of_block(int(run["block_tables"][0, block_idx]))
    return run["v_cache"][start + row * run.geometry.BLOCK_SIZE + offset].item()


def _values_and_output(
    axes: Axes, run: Run, accs: np.ma.MaskedArray, seq_len: int, rows: int, y: float
) -> None:
    """V of the tokens, the sums of the two warps that have tokens, and the output."""
    g = run.geometry
    warps = range(min(g.NUM_WARPS, -(-seq_len // g.BLOCK_SIZE)))
    heads = [*(f"warp {warp}" for warp in warps), "out"]
    for number, name in enumerate(heads):
        x = seq_len + 0.6 + 1.7 * number
        axes.text(x + 0.75, y - 0.45, name, ha="center", va="center", color=style.QUIET)
    axes.text(-0.15, y - 0.45, "V", ha="right", va="center", color=style.QUIET)
    for row in range(rows):
        texts = [f"{value_of(run, token, row) + 0.0:.2f}" for token in range(seq_len)]
        _line(axes, y + row, f"row {row}", texts, style.lighter(style.V, 0.5))
        lane = next(one for one in range(WARP_SIZE) if row in g.value_rows(one))
        place = g.value_rows(lane).index(row)
        sums = [float(accs[warp * WARP_SIZE + lane, place]) for warp in warps]
        out = run.ready.out[0, run.head, row].item()
        colors = [*(style.lighter(style.OUT, 0.6) for _ in warps), style.OUT]
        for number, (value, color) in enumerate(zip([*sums, out], colors, strict=True)):
            x = seq_len + 0.6 + 1.7 * number
            box = Rectangle((x, y + row), 1.5, 1, facecolor=color, edgecolor=style.PAPER)
            axes.add_patch(box)
            axes.text(x + 0.75, y + row + 0.5, f"{value:.3f}", ha="center", va="center", size=SMALL)


def draw_worked_kernel() -> Figure:
    return draw_whole_kernel(run_v1(WORKED_EXAMPLE))
