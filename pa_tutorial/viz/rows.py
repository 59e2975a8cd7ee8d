"""The figures of notebook 11: the rows of V, and the whole computation on one page."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pa_tutorial.kernels.intermediates import ROWS_DONE, SCORES_DONE, SUM_DONE, WEIGHTS_DONE
from pa_tutorial.kernels.vectors import as_float
from pa_tutorial.simt.gpus import WARP_SIZE
from pa_tutorial.viz import style
from pa_tutorial.viz.drawing import SMALL, board, box, cell, cells, note, span, write
from pa_tutorial.viz.kernel_runs import (
    REFERENCE,
    Run,
    between,
    keys_of_block,
    of_function,
    run_v1,
    values_of_block,
)

ROWS = 4  # of V and out that are shown of the whole kernel
GAP = 0.4  # cells between the rows of V of two iterations


def weights_read(run: Run, block: int, lane: int) -> list[int]:
    """The tokens of a block, by their offset in it, whose weights a lane reads: its logits_vec."""
    values = values_of_block(run, block).records
    warp, first = int(values.warp[0]), int(values.instruction.min())
    of_warp = run.trace.only(array="v_cache", warp=warp).records.instruction
    before = int(of_warp[of_warp < first].max(initial=-1))  # the V of the warp's last block
    reads = of_function(run.trace.only(space="shared", kind="read", warp=warp), "load_logits")
    (tokens,) = reads.the_array().indices(reads.records.address)
    at = reads.records.instruction
    here = (reads.records.lane == lane) & (at > before) & (at < first)
    block_idx = run["block_tables"][0].tolist().index(block)
    return (tokens[here] - block_idx * run.geometry.BLOCK_SIZE).tolist()


@style.styled
def draw_value_rows(run: Run, block: int, lane: int) -> Figure:
    """One block: the weights that a lane reads, the lane of each vec of V, and a lane's rows."""
    g, reads = run.geometry, values_of_block(run, block)
    rows, vecs = reads.the_array().indices(reads.records.address)
    places = zip(rows.tolist(), vecs.tolist(), strict=True)
    owner: dict[tuple[int, int], int] = {}
    for place, one in zip(places, reads.records.lane.tolist(), strict=True):
        owner.setdefault(place, one)
    mine = sorted(line for (line, _), one in owner.items() if one == lane)
    tokens = g.value_tokens(lane)
    figure, (above, axes) = style.new_figure(
        f"Lane {lane} reads the rows {mine[0]}, {mine[1]}, …, {mine[-1]} of V, the tokens "
        f"{tokens[0]} to {tokens[-1]} of each: {len(mine)} accs",
        5.2,
        nrows=2,
        height_ratios=(1, g.NUM_ROWS_PER_ITER + 3),
    )
    _draw_weights(above, run, block, lane)
    wide, turns = g.NUM_V_VECS_PER_ROW, g.NUM_ROWS_PER_THREAD
    board(axes, turns * (wide + GAP), g.NUM_ROWS_PER_ITER + 1.1, top=-2)
    for (line, vec), one in owner.items():
        turn, within = divmod(line, g.NUM_ROWS_PER_ITER)
        shade = style.V if one == lane else style.lighter(style.V, 0.72 + 0.12 * (one % 2))
        cell(axes, turn * (wide + GAP) + vec, within, shade, one)
    for turn in range(turns):
        middle = turn * (wide + GAP) + wide / 2
        first = turn * g.NUM_ROWS_PER_ITER
        write(axes, middle, -1.4, f"accs[{turn}]")
        note(axes, middle, -0.5, span(range(g.HEAD_SIZE)[first : first + g.NUM_ROWS_PER_ITER]))
    below = g.NUM_ROWS_PER_ITER + 0.6
    for vec in range(wide if wide <= 2 else 0):
        first = vec * g.V_VEC_SIZE
        note(axes, vec + 0.5, below, f"{first}–{first + g.V_VEC_SIZE - 1}")
    note(axes, -0.15, below, "tokens", "right")
    note(axes, wide + GAP, below, "a number is a lane", "left")
    note(axes, -0.15, -0.5, "rows", "right")
    for within in range(0, g.NUM_ROWS_PER_ITER, 5):
        note(axes, -0.15, within + 0.5, f"+{within}", "right")
    return figure


def _draw_weights(axes: Axes, run: Run, block: int, lane: int) -> None:
    """The weights of the tokens of a block; dark: those that the lane reads."""
    tokens, size = weights_read(run, block, lane), run.geometry.BLOCK_SIZE
    axes.set_title(
        f"logits_vec of lane {lane}: the weights of tokens {tokens[0]} to {tokens[-1]}; "
        "a number is a token of the block",
        weight="normal",
    )
    room = run.geometry.NUM_ROWS_PER_THREAD * (run.geometry.NUM_V_VECS_PER_ROW + GAP)
    board(axes, size * room / (room - GAP), 1)  # as wide as the rows of V below
    for token in range(size):
        shade = style.LOGITS if token in tokens else style.lighter(style.LOGITS, 0.75)
        cell(axes, token, 0, shade, token)


def draw_reference_value_rows() -> Figure:
    (table,), _ = REFERENCE.block_tables()
    return draw_value_rows(run_v1(REFERENCE), table[0], lane=0)


def writers(run: Run) -> dict[int, int]:
    """token -> the thread that writes its score, from the trace."""
    writes = between(run.trace, before=SCORES_DONE).only(array="shared_mem", kind="write")
    (tokens,) = writes.the_array().indices(writes.records.address)
    return dict(zip(tokens.tolist(), writes.threads.tolist(), strict=True))


def threads_of_scores(run: Run) -> dict[int, list[int]]:
    """token -> the threads that read its K or write its score, from the trace."""
    table, size = run["block_tables"][0].tolist(), run.geometry.BLOCK_SIZE
    threads = {}
    for token, writer in writers(run).items():
        keys = keys_of_block(run, table[token // size])
        _, offset, _ = keys.the_array().indices(keys.records.address)
        threads[token] = sorted({writer, *keys.threads[offset == token % size].tolist()})
    return threads


def softmax_lines(run: Run) -> dict[str, np.ndarray]:
    """One number per token: the shared array logits at three moments of the kernel."""
    seq_len = int(run["seq_lens"][0])
    moments = {"qk": SCORES_DONE, "exp(qk - qk_max)": SUM_DONE, "weight": WEIGHTS_DONE}
    return {
        name: np.ma.filled(run.snapshot(where)["logits"], np.nan)[:seq_len]
        for name, where in moments.items()
    }


@style.styled
def draw_whole_kernel(run: Run) -> Figure:
    """The whole computation for one head of a short sequence, with its numbers."""
    seq_len = int(run["seq_lens"][0])
    qk_max = float(run.snapshot(SCORES_DONE)["qk_max"][0])
    exp_sum = float(run.snapshot(SUM_DONE)["exp_sum"][0])
    accs = run.snapshot(ROWS_DONE)["accs"]
    title = f"One head from its scores to its output: qk_max {qk_max:.3f}, exp_sum {exp_sum:.3f}"
    figure, axes = style.new_figure(title, 3.9)
    _blocks_and_warps(axes, run, seq_len)
    threads = threads_of_scores(run)
    ranges = [span(threads[token]) for token in range(seq_len)]
    for y, name, texts in ((1.1, "token", range(seq_len)), (2.1, "threads for qk", ranges)):
        note(axes, -0.15, y + 0.5, name, "right")
        for column, text in enumerate(texts):
            note(axes, column + 0.5, y + 0.5, text, size=SMALL)
    lines = softmax_lines(run)
    for number, (name, values) in enumerate(lines.items()):
        shade = style.lighter(style.LOGITS, 0.75 - 0.25 * number) if number < 2 else style.LOGITS
        _line(axes, number + 3.1, name, [f"{value:.2f}" for value in values], shade)
    _values_and_output(axes, run, accs, seq_len, len(lines) + 4.2)
    board(axes, seq_len + 6.2, len(lines) + 4.3 + ROWS, top=-0.1)
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
    start = run.start_of_block(int(run["block_tables"][0, block_idx]))
    place = start + row * run.geometry.BLOCK_SIZE + offset
    return as_float(run["v_cache"][place].numpy()).item()


def _values_and_output(axes: Axes, run: Run, accs: np.ndarray, seq_len: int, y: float) -> None:
    """V of the tokens, the sums of the two warps with tokens, and the output."""
    g = run.geometry
    warps = range(min(g.NUM_WARPS, -(-seq_len // g.BLOCK_SIZE)))
    for number, name in enumerate([*(f"warp {warp}" for warp in warps), "out"]):
        note(axes, seq_len + 0.6 + 1.7 * number + 0.75, y - 0.45, name)
    note(axes, -0.15, y - 0.45, "V", "right")
    for line in range(ROWS):
        texts = [f"{value_of(run, token, line) + 0.0:.2f}" for token in range(seq_len)]
        _line(axes, y + line, f"row {line}", texts, style.lighter(style.V, 0.5))
        lane = next(one for one in range(WARP_SIZE) if line in g.value_rows(one))
        place = g.value_rows(lane).index(line)
        sums = [float(accs[warp * WARP_SIZE + lane, place]) for warp in warps]
        out = run.prepared.out[0, run.head, line].item()
        colors = [*(style.lighter(style.OUT, 0.6) for _ in warps), style.OUT]
        for number, (value, color) in enumerate(zip([*sums, out], colors, strict=True)):
            x = seq_len + 0.6 + 1.7 * number
            box(axes, x, y + line, 1.5, 1, color, f"{value:.3f}", SMALL)
