"""The figures of notebook 14: the partitions of v2, and the multiprocessors that v1 leaves idle.

Idle multiprocessors are a model, not a measurement: a multiprocessor runs one thread block at a
time, a thread block's time is proportional to its tokens, and the next one starts on the
multiprocessor that is free first. On a GPU, several thread blocks share a multiprocessor, but the
total amount it reads is the same.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pa_tutorial.checks.problem import DecodeProblem
from pa_tutorial.kernels.choose import VLLM_PARTITION_SIZE
from pa_tutorial.kernels.cuda_backends import PartitionedBackend, v2_backend
from pa_tutorial.kernels.intermediates import SCORES_DONE, WEIGHTS_DONE
from pa_tutorial.viz import style
from pa_tutorial.viz.drawing import SMALL, board, box, cell, cells, note, plate, write
from pa_tutorial.viz.first_kernel import BATCH
from pa_tutorial.viz.kernel_runs import between, run_v1, run_v2, softmax_lines
from simt import Trace
from simt.gpus import H100

SHOWN = 4  # elements of an output
TOKENS_SHOWN = 8  # per partition: the tokens with the largest scores
# The batch of notebook 08 with one long sequence; sequence 0 is the worked example.
MIXED = replace(
    BATCH, seq_lens=(*BATCH.seq_lens, 61), tables=(*BATCH.tables, (10, 8, 15, 7, 12, 9, 14, 11))
)


@dataclass(frozen=True)
class Piece:
    """One thread block on its multiprocessor, with its start and end in tokens."""

    multiprocessor: int
    sequence: int
    start: int
    end: int


def thread_blocks(
    seq_lens: Sequence[int], num_heads: int, partition_size: int = 0
) -> list[tuple[int, int]]:
    """(sequence, tokens) of each thread block that has tokens, in the order of the grid.

    partition_size  0: v1, one thread block reads the whole sequence
    """
    size = partition_size or max(seq_lens)
    return [
        (sequence, min(size, seq_len - start))
        for start in range(0, max(seq_lens), size)
        for sequence, seq_len in enumerate(seq_lens)
        for _ in range(num_heads)
        if start < seq_len
    ]


def schedule(work: Sequence[tuple[int, int]], num_multiprocessors: int) -> list[Piece]:
    """Each thread block, in this order, runs on the multiprocessor that is free first."""
    free = [(0, number) for number in range(num_multiprocessors)]
    pieces = []
    for sequence, tokens in work:
        start, number = heapq.heappop(free)
        pieces.append(Piece(number, sequence, start, start + tokens))
        heapq.heappush(free, (start + tokens, number))
    return pieces


def end_of(pieces: Sequence[Piece]) -> int:
    """The time at which the last multiprocessor finishes."""
    return max(piece.end for piece in pieces)


def busy(pieces: Sequence[Piece], num_multiprocessors: int) -> float:
    """The fraction of all multiprocessors' time spent working, until the last one finishes."""
    done = sum(piece.end - piece.start for piece in pieces)
    return done / (num_multiprocessors * end_of(pieces))


@style.styled
def draw_idle(batches: Sequence[Sequence[int]], num_heads: int) -> Figure:
    """v1 on the left, v2 on the right; a pair of panels per batch, a line per multiprocessor."""
    count, sizes = H100.num_multiprocessors, (0, VLLM_PARTITION_SIZE)
    found = [
        [schedule(thread_blocks(lens, num_heads, size), count) for size in sizes]
        for lens in batches
    ]
    v1, v2 = (count - len({piece.multiprocessor for piece in pieces}) for pieces in found[0])
    title = f"With one sequence, v1 leaves {v1} of {count} multiprocessors idle; v2 "
    title += f"leaves {v2}" if v2 else "has work for all of them"
    height, shared = 1.0 + 1.75 * len(batches), {"sharex": True, "sharey": True}
    figure, panels = style.new_figure(title, height, 2, len(batches), squeeze=False, **shared)
    for row, (lens, pair) in enumerate(zip(batches, found, strict=True)):
        for axes, pieces, name in zip(panels[row], pair, ("v1", "v2"), strict=True):
            tokens = " + ".join(f"{n:,}" for n in lens)
            axes.set_title(f"{name}: {tokens} tokens", weight="normal")
            _draw_pieces(axes, pieces, count)
    longest = max(end_of(pieces) for pair in found for pieces in pair)
    panels[0, 0].set_xlim(0, 1.02 * longest)
    panels[0, 0].set_ylim(count, 0)
    ticks = range(0, longest + 1, longest // 4)
    panels[0, 0].set_xticks(ticks, [f"{tick:,}" for tick in ticks])
    for axes in panels[:, 0]:
        axes.set_ylabel(f"{count} multiprocessors")
        axes.set_yticks([])
    for axes in panels[-1]:
        axes.set_xlabel("time, as tokens of one thread block")
    return figure


def _draw_pieces(axes: Axes, pieces: Sequence[Piece], count: int) -> None:
    end = end_of(pieces)
    idle = {"hatch": style.UNUSED_HATCH, "linewidth": 0, "edgecolor": None}
    box(axes, 0, 0, end, count, style.EMPTY, **idle)
    for piece in pieces:
        corner, color = (piece.start, piece.multiprocessor), style.SEQUENCES[piece.sequence]
        box(axes, *corner, piece.end - piece.start, 1, color, linewidth=0)
    ends, places = zip(*((piece.end, piece.multiprocessor) for piece in pieces), strict=True)
    axes.vlines(ends, places, [place + 1 for place in places], color=style.PAPER, linewidth=0.8)
    words = f"ends at {end:,}\n{100 * busy(pieces, count):.0f} % of the time is work"
    where = {"transform": axes.transAxes, "va": "bottom", "bbox": plate(2)}
    write(axes, 0.97, 0.06, words, "right", **where)


@style.styled
def draw_split(
    problem: DecodeProblem,
    partition_size: int,
    head: int = 0,
    backend: PartitionedBackend = v2_backend,
) -> Figure:
    """One head of a sequence: what each partition computes and leaves, and how it is merged."""
    left, report = run_v2(problem, partition_size, backend)
    left.reduce.simulate()
    whole = run_v1(problem, head).prepared.out[0, head]
    # Both are rounded to the type of q, and bfloat16 has only 8 bits.
    assert torch.allclose(left.out[0, head], whole, rtol=0.02, atol=1e-3), "v2 has v1's output"
    largest, sums, outs = (t[0, head] for t in (left.max_logits, left.exp_sums, left.tmp_out))
    factors = torch.exp(largest - largest.max())
    total = float((factors * sums).sum())
    seq_len = problem.seq_lens[0]
    starts = range(0, seq_len, partition_size)
    times = " and ".join(f"{factor:.2f}" for factor in factors.tolist())
    title = f"Rescaled by {times}, the partitions add up to v1's sum, {total:.3f}, and its output"
    figure, axes = style.new_figure(title, 4.3)
    corner = 0.0
    for partition, start in enumerate(starts):
        tokens = range(start, min(start + partition_size, seq_len))
        block = head, 0, partition
        (scores,), (weights,) = (report.at(where, block) for where in (SCORES_DONE, WEIGHTS_DONE))
        lines = [*softmax_lines(scores, weights, len(tokens)).values()]
        shown = np.sort(np.argsort(-lines[0])[:TOKENS_SHOWN])
        name = f"partition {partition}"
        name += f", {len(shown)} of its {len(tokens)} tokens" * (len(shown) < len(tokens))
        _tokens(axes, corner, name, shown + start, [line[shown] for line in lines])
        most, factor, part = largest[partition], factors[partition], sums[partition]
        write(axes, corner + SHOWN / 2, 5.5, "leaves:")
        _leaves(axes, corner, 6, f"{most:.3f}", f"{part:.3f}", outs[partition])
        out = outs[partition] * factor * part / total
        _leaves(axes, corner, 9.5, f"× {factor:.2f}", f"{factor * part:.3f}", out)
        corner += max(len(shown), SHOWN) + 0.5
    write(axes, corner + SHOWN / 2, 9, "together:")
    _leaves(axes, corner, 9.5, f"M = {largest.max():.3f}", f"{total:.3f}", left.out[0, head])
    before = ("", "token", "qk", "exp(qk - max)", "weight", "", "maximum", "exp_sum", "output")
    for y, name in enumerate((*before, "exp(maximum - M)", "r", "output · r / sum of r")):
        note(axes, -0.2, y + 0.5 + 0.5 * (y >= len(before)), name, "right")
    board(axes, corner + SHOWN, 12.6)
    return figure


def _tokens(axes: Axes, x: float, name: str, tokens: np.ndarray, lines: list[np.ndarray]) -> None:
    axes.plot((x + 0.05, x + len(tokens) - 0.05), (0.95, 0.95), color=style.INK, lw=1)
    write(axes, x + len(tokens) / 2, 0.45, name)
    for place, token in enumerate(tokens):
        note(axes, x + place + 0.5, 1.5, token, size=SMALL)
        for number, values in enumerate(lines):
            shade = style.lighter(style.LOGITS, 0.75 - 0.375 * number)
            box(axes, x + place, number + 2, 1, 1, shade, f"{values[place]:.2f}", SMALL)


def _leaves(axes: Axes, x: float, y: float, first: str, second: str, out: torch.Tensor) -> None:
    """Three lines: two numbers, and the first elements of an output."""
    for line, text, amount in ((0, first, 0.75), (1, second, 0.375)):
        box(axes, x, y + line, SHOWN, 1, style.lighter(style.LOGITS, amount), text, SMALL)
    cells(axes, x, y + 2, [f"{float(number):.2f}" for number in out[:SHOWN]], style.OUT, SMALL)


def tokens_of_thread_blocks(trace: Trace) -> np.ndarray:
    """[num_seqs, max_num_partitions] tokens of each thread block of head 0; 0 if it returns at
    once. Read from the weights that it writes.
    """
    num_heads, num_seqs, num_partitions = trace.grid
    writes = between(trace, SCORES_DONE, WEIGHTS_DONE).only(array="logits", kind="write").records
    found = np.zeros((num_seqs, num_partitions), int)
    for sequence, partition in np.ndindex(found.shape):
        block = num_heads * (sequence + num_seqs * partition)
        found[sequence, partition] = len(np.unique(writes.address[writes.block == block]))
    return found


@style.styled
def draw_mixed(
    problem: DecodeProblem, partition_size: int, backend: PartitionedBackend = v2_backend
) -> Figure:
    """One head of a mixed batch: the thread blocks with tokens, and the ones without."""
    found = tokens_of_thread_blocks(run_v2(problem, partition_size, backend)[1].trace)
    num_seqs, num_partitions = found.shape
    figure, axes = style.new_figure(
        f"{(found == 0).sum()} of {found.size} thread blocks of each head return at once, "
        "because the grid fits the longest sequence",
        0.75 + 0.4 * num_seqs,
    )
    board(axes, num_partitions, num_seqs, -1.9, -0.7)
    for partition in range(num_partitions):
        note(axes, partition + 0.5, -0.35, f"partition {partition}")
    for (sequence, partition), tokens in np.ndenumerate(found):
        cell(axes, partition, sequence, style.EMPTY, unused=not tokens)
        if tokens:
            width, color = tokens / partition_size, style.SEQUENCES[sequence]
            box(axes, partition, sequence, width, 1, color, tokens)
    for sequence, tokens in enumerate(found.sum(axis=1)):
        note(axes, -0.1, sequence + 0.5, f"sequence {sequence}\n{tokens} tokens", "right")
    return figure
