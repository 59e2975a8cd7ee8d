"""The partitions of v2: what each leaves, and which do not exist."""

from dataclasses import replace

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from pa_tutorial.kernels.intermediates import SCORES_DONE, SUM_DONE, WEIGHTS_DONE
from pa_tutorial.simt import Trace
from pa_tutorial.viz import style
from pa_tutorial.viz.first_kernel import BATCH
from pa_tutorial.viz.kernel_runs import RunOfV2, between, run_v1, run_v2
from pa_tutorial.walk.cases import WORKED_EXAMPLE
from pa_tutorial.walk.problem import DecodeProblem

SMALL = 7.5  # points: numbers in cells
# The batch of notebook 08 with one long sequence; sequence 0 is the worked example.
MIXED = replace(
    BATCH,
    seq_lens=(*BATCH.seq_lens, 61),
    tables=(*BATCH.tables, (10, 8, 15, 7, 12, 9, 14, 11)),
)


# Split ---------------------------------------------------------------------------------------


@style.styled
def draw_split(problem: DecodeProblem, partition_size: int, head: int = 0, rows: int = 4) -> Figure:
    """One head of a short sequence: what each partition computes and leaves, and v1 beside it.

    rows  elements of the outputs that are shown
    """
    run, whole = run_v2(problem, partition_size), run_v1(problem, head)
    seq_len, left = problem.seq_lens[0], run.prepared
    starts = range(0, seq_len, partition_size)
    figure, axes = style.new_figure(
        f"Each of {len(starts)} partitions leaves a maximum, a sum and an output of its own", 3.4
    )
    corner = 0.0
    for partition, start in enumerate(starts):
        tokens = range(start, min(start + partition_size, seq_len))
        _tokens(axes, corner, f"partition {partition}", tokens, _lines(run, head, partition))
        numbers = (t[0, head, partition] for t in (left.max_logits, left.exp_sums, left.tmp_out))
        _leaves(axes, corner, "leaves:", *numbers, rows)
        corner += max(len(tokens), rows) + 0.5
    numbers = whole.snapshot(SCORES_DONE)["qk_max"][0], whole.snapshot(SUM_DONE)["exp_sum"][0]
    _leaves(axes, corner, "v1 (notebook 10):", *numbers, whole.prepared.out[0, head], rows)
    names = ("", "token", "qk", "exp(qk - max)", "weight", "", "maximum", "exp_sum", "output")
    for y, name in enumerate(names):
        axes.text(-0.2, y + 0.5, name, ha="right", va="center", color=style.QUIET)
    style.bare(axes, corner + rows, len(names))
    axes.set_aspect("auto")
    return figure


def _lines(run: RunOfV2, head: int, partition: int) -> list[np.ndarray]:
    """One number a token: what `logits` of one thread block holds at three moments."""
    moments = SCORES_DONE, SUM_DONE, WEIGHTS_DONE
    snapshots = [run.snapshot(where, head, 0, partition)["logits"] for where in moments]
    return [np.ma.filled(snapshot, np.nan) for snapshot in snapshots]


def _tokens(axes: Axes, x: float, name: str, tokens: range, lines: list[np.ndarray]) -> None:
    axes.plot((x + 0.05, x + len(tokens) - 0.05), (0.95, 0.95), color=style.INK, lw=1)
    axes.text(x + len(tokens) / 2, 0.45, name, ha="center", va="center")
    for place, token in enumerate(tokens):
        where = x + place + 0.5, 1.5
        axes.text(*where, str(token), ha="center", va="center", size=SMALL, color=style.QUIET)
        for number, values in enumerate(lines):
            shade = style.lighter(style.LOGITS, 0.75 - 0.375 * number)
            _number(axes, x + place, number + 2, f"{values[place]:.2f}", shade)


def _leaves(
    axes: Axes, x: float, title: str, largest: object, total: object, out: object, rows: int
) -> None:
    """Three lines: maximum, sum, the first numbers of an output."""
    axes.text(x + rows / 2, 5.5, title, ha="center", va="center")
    _number(axes, x, 6, f"{float(largest):.3f}", style.lighter(style.LOGITS, 0.75), rows)
    _number(axes, x, 7, f"{float(total):.3f}", style.lighter(style.LOGITS, 0.375), rows)
    for row in range(rows):
        _number(axes, x + row, 8, f"{float(out[row]):.2f}", style.OUT)


def _number(axes: Axes, x: float, y: float, text: str, color: str, width: int = 1) -> None:
    style.add(axes, Rectangle((x, y), width, 1, facecolor=color, edgecolor=style.PAPER))
    middle = x + width / 2, y + 0.5
    axes.text(*middle, text, ha="center", va="center", size=SMALL, color=style.ink_on(color))


def draw_worked_split() -> Figure:
    return draw_split(WORKED_EXAMPLE, partition_size=8)


# A mixed batch -------------------------------------------------------------------------------


def tokens_of_thread_blocks(trace: Trace) -> np.ndarray:
    """[num_seqs, max_num_partitions] tokens of each thread block of head 0; 0 if it returns at
    once. Read from the weights that it writes.
    """
    num_heads, num_seqs, num_partitions = trace.grid
    writes = between(trace, SCORES_DONE, SUM_DONE).only(array="shared_mem", kind="write").records
    found = np.zeros((num_seqs, num_partitions), int)
    for sequence, partition in np.ndindex(found.shape):
        block = num_heads * (sequence + num_seqs * partition)
        found[sequence, partition] = len(np.unique(writes.address[writes.block == block]))
    return found


@style.styled
def draw_mixed(problem: DecodeProblem, partition_size: int) -> Figure:
    """One head of a mixed batch: the thread blocks that have tokens, and those that have none."""
    found = tokens_of_thread_blocks(run_v2(problem, partition_size).partitions.trace)
    num_seqs, num_partitions = found.shape
    figure, axes = style.new_figure(
        f"{(found == 0).sum()} of {found.size} thread blocks of each head return at once: "
        "the grid is for the longest sequence",
        0.75 + 0.4 * num_seqs,
    )
    style.bare(axes, num_partitions, num_seqs)
    axes.set_aspect("auto")
    axes.set_xlim(-1.9, num_partitions)
    axes.set_ylim(num_seqs, -0.7)
    for partition in range(num_partitions):
        place = partition + 0.5, -0.35
        axes.text(*place, f"partition {partition}", ha="center", va="center", color=style.QUIET)
    for (sequence, partition), tokens in np.ndenumerate(found):
        color = style.SEQUENCES[sequence]
        style.cell(axes, partition, sequence, style.EMPTY, unused=not tokens)
        if tokens:
            width, ink = tokens / partition_size, style.ink_on(color)
            box = Rectangle((partition, sequence), width, 1, edgecolor=style.PAPER, facecolor=color)
            style.add(axes, box)
            place = partition + width / 2, sequence + 0.5
            axes.text(*place, f"{tokens}", ha="center", va="center", color=ink)
    for sequence, tokens in enumerate(found.sum(axis=1)):
        words = f"sequence {sequence}\n{tokens} tokens"
        axes.text(-0.1, sequence + 0.5, words, ha="right", va="center", color=style.QUIET)
    return figure


def draw_mixed_batch() -> Figure:
    return draw_mixed(MIXED, partition_size=8)
