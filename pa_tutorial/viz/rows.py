"""The figures of *Values*: the rows of V, and the whole computation on one page."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pa_tutorial.kernels.cuda_backends import PagedBackend, v1_backend
from pa_tutorial.kernels.intermediates import ROWS_DONE, SCORES_DONE, SUM_DONE, WEIGHTS_DONE
from pa_tutorial.kernels.vectors import as_float
from pa_tutorial.viz import style
from pa_tutorial.viz.drawing import SMALL, board, box, cell, cells, note, plural, span, write
from pa_tutorial.viz.kernel_runs import (
    REFERENCE,
    Run,
    between,
    of_block,
    places,
    run_v1,
    softmax_lines,
)
from simt.gpus import WARP_SIZE
from simt.traffic import units

ROWS = 4  # of V and out that are shown of the whole kernel
GAP = 0.4  # cells between the rows of V of two iterations


def weights_read(run: Run, block: int, lane: int) -> list[int]:
    """The tokens of a block, by their offset in it, whose weights a lane reads."""
    reads = run.trace.only(array="logits", kind="read")
    reads = between(reads, WEIGHTS_DONE, ROWS_DONE)
    array, size = reads.the_array(), run.geometry.BLOCK_SIZE
    first = run["block_tables"][0].tolist().index(block) * size
    _, items = units(reads.records[reads.records.lane == lane], array.dtype.itemsize)
    tokens = np.unique(items) - array.address // array.dtype.itemsize
    return (tokens[(first <= tokens) & (tokens < first + size)] - first).tolist()


def lanes_of_rows(run: Run, block: int) -> dict[tuple[int, int], list[int]]:
    """(row, vec of the row) -> the lanes that read it, in one block of V."""
    reads = of_block(run, "v_cache", block)
    *_, rows, offsets = places(reads)
    found: dict[tuple[int, int], set[int]] = {}
    vecs = offsets // run.geometry.V_VEC_SIZE
    for row, vec, lane in zip(rows.tolist(), vecs.tolist(), reads.records.lane, strict=True):
        found.setdefault((row, vec), set()).add(int(lane))
    return {place: sorted(lanes) for place, lanes in found.items()}


@style.styled
def draw_value_rows(run: Run, block: int, lane: int) -> Figure:
    """One block: above, the weights that a lane reads; below, its first two rows of V and its last,
    each with the row after it."""
    g, lanes = run.geometry, lanes_of_rows(run, block)
    mine = sorted({row for (row, _), readers in lanes.items() if lane in readers})
    tokens = weights_read(run, block, lane)
    steps = {*np.diff(mine).tolist()}
    which = f"every {steps.pop()}th row" if len(steps) == 1 else plural(len(mine), "row")
    title = f"Lane {lane} takes tokens {tokens[0]} to {tokens[-1]} of {which} of V, "
    title += f"and has {plural(len(mine), 'sum')} in its accs"
    figure, axes = style.new_figure(title, 3.4)
    for token in range(g.BLOCK_SIZE):
        shade = style.LOGITS if token in tokens else style.lighter(style.LOGITS, 0.75)
        cell(axes, token, 0, shade, token)
    note(axes, -0.2, 0.5, "weight of token", "right")
    y = 1.5
    for turn in sorted({0, min(1, len(mine) - 1), len(mine) - 1}):
        if turn == len(mine) - 1 > 1:
            note(axes, g.BLOCK_SIZE / 2, y - 0.15, "…", weight="bold")
            y += 0.3
        write(axes, g.BLOCK_SIZE + 0.3, y + 0.5, f"accs[{turn}]", "left")
        for row in range(mine[turn], min(mine[turn] + 2, g.HEAD_SIZE)):
            note(axes, -0.2, y + 0.5, f"row {row}", "right")
            for vec in range(g.NUM_V_VECS_PER_ROW):
                readers, wide = lanes.get((row, vec), []), g.V_VEC_SIZE
                shade = style.V if lane in readers else style.lighter(style.V, 0.75)
                words = f"lane {', '.join(map(str, readers))}"
                box(axes, vec * wide, y, wide, 1, shade, words, linewidth=1.2)
            y += 1
        y += 0.5
    board(axes, g.BLOCK_SIZE + 2, y)
    return figure


def draw_reference_value_rows(backend: PagedBackend = v1_backend) -> Figure:
    (table,), _ = REFERENCE.block_tables()
    return draw_value_rows(run_v1(REFERENCE, backend=backend), table[0], lane=0)


def writers(run: Run) -> dict[int, int]:
    """token -> the thread that writes its score, from the trace."""
    writes = between(run.trace, before=SCORES_DONE).only(array="logits", kind="write")
    (tokens,) = places(writes)
    return dict(zip(tokens.tolist(), writes.threads.tolist(), strict=True))


def threads_of_scores(run: Run) -> dict[int, list[int]]:
    """token -> the threads that read its K or write its score, from the trace."""
    table, size = run["block_tables"][0].tolist(), run.geometry.BLOCK_SIZE
    threads = {}
    for token, writer in writers(run).items():
        keys = of_block(run, "k_cache", table[token // size])
        _, _, _, offset, _ = places(keys)
        threads[token] = sorted({writer, *keys.threads[offset == token % size].tolist()})
    return threads


@style.styled
def draw_whole_kernel(run: Run) -> Figure:
    """The whole computation for one head of a short sequence, with its numbers."""
    seq_len = int(run["seq_lens"][0])
    qk_max = float(run.snapshot(SCORES_DONE)["qk_max"][0])
    exp_sum = float(run.snapshot(SUM_DONE)["exp_sum"][0])
    accs = run.snapshot(ROWS_DONE)["accs"]
    title = f"The maximum {qk_max:.3f} and the sum {exp_sum:.3f} "
    title += f"turn {seq_len} scores into weights, and these into an output"
    figure, axes = style.new_figure(title, 3.9)
    _blocks_and_warps(axes, run, seq_len)
    threads = threads_of_scores(run)
    ranges = [span(threads[token]) for token in range(seq_len)]
    for y, name, texts in ((1.1, "token", range(seq_len)), (2.1, "threads for qk", ranges)):
        note(axes, -0.15, y + 0.5, name, "right")
        for column, text in enumerate(texts):
            lower = 0.5 * (column % 2) if name != "token" else 0.25
            note(axes, column + 0.5, y + 0.25 + lower, text, size=SMALL)
    lines = softmax_lines(run.snapshot(SCORES_DONE), run.snapshot(WEIGHTS_DONE), seq_len)
    for number, (name, values) in enumerate(lines.items()):
        shade = style.lighter(style.LOGITS, 0.75 - 0.25 * number) if number < 2 else style.LOGITS
        _line(axes, number + 3.1, name, [f"{value:.2f}" for value in values], shade)
    right = _values_and_output(axes, run, accs, seq_len, len(lines) + 4.2)
    board(axes, right, len(lines) + 4.3 + ROWS, top=-0.1)
    return figure


def _blocks_and_warps(axes: Axes, run: Run, seq_len: int) -> None:
    """Above the tokens: their block, and the warps that write its scores."""
    size, table = run.geometry.BLOCK_SIZE, run["block_tables"][0].tolist()
    written = writers(run)
    for first in range(0, seq_len, size):
        end = min(seq_len, first + size)
        warps = sorted({written[token] // WARP_SIZE for token in range(first, end)})
        words = f"block {table[first // size]}: warp {', '.join(map(str, warps))}"
        axes.plot((first + 0.05, end - 0.05), (0.95, 0.95), color=style.INK, lw=1)
        write(axes, (first + end) / 2, 0.45, words)


def _line(axes: Axes, y: float, name: str, texts: list[str], color: str) -> None:
    note(axes, -0.15, y + 0.5, name, "right")
    cells(axes, 0, y, texts, color, SMALL)


def value_of(run: Run, token: int, row: int) -> float:
    """V of a token of sequence 0, read from the cache."""
    block_idx, offset = divmod(token, run.geometry.BLOCK_SIZE)
    block = run["block_tables"][0, block_idx]
    return as_float(run["v_cache"][block, run.kv_head, row, offset].numpy()).item()


def _values_and_output(axes: Axes, run: Run, accs: np.ndarray, seq_len: int, y: float) -> float:
    """V of the tokens, the sums of the warps that read V, and the output. Returns its right end."""
    g, warps = run.geometry, np.unique(run.trace.only(array="v_cache").records.warp).tolist()
    for number, name in enumerate([*(f"warp {warp}" for warp in warps), "out"]):
        note(axes, seq_len + 0.6 + 1.7 * number + 0.75, y - 0.45, name)
    for line in range(ROWS):
        texts = [f"{value_of(run, token, line) + 0.0:.2f}" for token in range(seq_len)]
        _line(axes, y + line, f"V, row {line}", texts, style.lighter(style.V, 0.5))
        lane = next(one for one in range(WARP_SIZE) if line in g.value_rows(one))
        place = g.value_rows(lane).index(line)
        sums = [float(accs[warp * WARP_SIZE + lane, place]) for warp in warps]
        out = run.prepared.out[0, run.head, line].item()
        colors = [*(style.lighter(style.OUT, 0.6) for _ in warps), style.OUT]
        for number, (value, color) in enumerate(zip([*sums, out], colors, strict=True)):
            x = seq_len + 0.6 + 1.7 * number
            box(axes, x, y + line, 1.5, 1, color, f"{value:.3f}", SMALL)
    return seq_len + 0.5 + 1.7 * (len(warps) + 1)
