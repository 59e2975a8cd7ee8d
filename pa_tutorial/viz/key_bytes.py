"""Figures of notebooks 08, 10, 13 and 14: which lanes read which bytes of K with one load, and what
16 bytes hold."""

from dataclasses import replace

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pa_tutorial.checks.problem import DecodeProblem
from pa_tutorial.kernels.cuda_backends import (
    CudaBackend,
    naive_backend,
    v1_backend,
    v1_vector_backend,
    v2_backend,
)
from pa_tutorial.kernels.geometry import VEC_BYTES
from pa_tutorial.viz import style
from pa_tutorial.viz.drawing import SMALL, board, box, frame, note, span, write
from simt import Trace, different_sectors, global_traffic
from simt.traffic import SECTOR

KERNELS = {
    "One thread per token": naive_backend,
    "v1, element by element": v1_backend,
    "v1, vec by vec": v1_vector_backend,
    "v2, vec by vec": v2_backend,
}
LEFT, LINE = 0.23, 1.7  # room for words, in lengths of a line; the height of a line


@style.styled
def draw_key_bytes(
    problem: DecodeProblem,
    num_kernels: int,
    partition_size: int = 0,
    backend: CudaBackend = v1_backend,
) -> Figure:
    """The first load of K by each warp of head 0 of the first sequence: a panel per kernel.

    A line is piece 0 of every token of a block, 16 bytes each.

    backend  its reader's functions are in every kernel that has them
    """
    step, num_blocks = problem.paged("vllm"), -(-problem.seq_lens[0] // problem.block_size)
    blocks = problem.block_tables()[0][0][:num_blocks]
    height = 0.55 + num_kernels * (0.3 + 0.42 * len(blocks))
    figure, panels = style.new_figure("", height, nrows=num_kernels, squeeze=False)
    line, shares = problem.block_size * VEC_BYTES, []
    for axes, (name, kernel) in zip(panels[:, 0], KERNELS.items(), strict=False):
        theirs = replace(kernel, mine=backend.mine)
        if kernel is v2_backend:
            launch = theirs.prepare(step, partition_size=partition_size).partitions
        else:
            launch = theirs.prepare(step)
        warps = reads_of_warps(launch.simulate(trace="all", checks=()).trace)
        loads = [reads.only(instruction=int(reads.records.instruction.min())) for reads in warps]
        sectors, wanted = different_sectors(loads[0]), int(loads[0].records.num_bytes.sum())
        again = global_traffic(warps[0]).total("sectors") / different_sectors(warps[0])
        words = f"{name}: a load moves {sectors} sectors for {wanted} bytes"
        words += f"; each sector moves {again:g} times" * (again > 1)
        words += "; no other load moves them" * (again <= 1)
        axes.set_title(words, weight="bold" if axes is panels[-1, 0] else "normal")
        shares.append(f"{100 * wanted / (sectors * SECTOR):.0f} %")
        board(axes, 1.003 * line, LINE * len(blocks), -LEFT * line)
        for number, block in enumerate(blocks):
            start = block * step.k_cache.stride(0) * step.k_cache.itemsize
            note(axes, -LEFT * line, LINE * number + 1.1, f"block {block}", "left")
            _draw_line(axes, LINE * number, loads, start, line)
    shares = ", then ".join(dict.fromkeys(shares))
    figure.suptitle(f"Of the bytes that a load of K moves, a warp uses {shares}", **style.TITLE)
    words = "A frame is a sector. Light: it moves. Dark: the bytes that the lanes above it read."
    figure.supxlabel(words, x=0.01, ha="left", size=SMALL, color=style.QUIET)
    return figure


def reads_of_warps(trace: Trace) -> list[Trace]:
    """What each warp reads of K for head 0 of the first sequence."""
    reads, (num_heads, num_seqs, _) = trace.only(array="k_cache"), trace.grid
    pairs = {*zip(reads.records.block.tolist(), reads.records.warp.tolist(), strict=True)}
    mine = sorted(pair for pair in pairs if pair[0] % (num_heads * num_seqs) == 0)
    return [reads.only(block=block, warp=warp) for block, warp in mine]


def _draw_line(axes: Axes, y: float, loads: list[Trace], start: int, line: int) -> None:
    """Some bytes of K: the sectors that move, and in them what the lanes read."""
    top, high = y + 0.65, 0.9
    for load in loads:
        records, (num_heads, num_seqs, depth) = load.records, load.grid
        byte = records.address - load.the_array().address - start
        here = (byte >= 0) & (byte < line)
        records, byte = records[here], byte[here]
        for sector in np.unique(byte // SECTOR).tolist():
            box(axes, sector * SECTOR, top, SECTOR, high, style.lighter(style.K, 0.8))
        for first, size in zip(byte.tolist(), records.num_bytes.tolist(), strict=True):
            shade = style.lighter(style.K, 0.4 * (first // VEC_BYTES % 2))
            box(axes, first, top, size, high, shade, linewidth=0.8)
        for token in np.unique(byte // VEC_BYTES).tolist():
            lanes = records.lane[byte // VEC_BYTES == token].tolist()
            write(axes, (token + 0.5) * VEC_BYTES, y + 0.3, span(lanes), size=SMALL)
        for block, warp in {*zip(records.block.tolist(), records.warp.tolist(), strict=True)}:
            who = f"partition {block // (num_heads * num_seqs)}, " * (depth > 1)
            note(axes, -0.01 * line, y + 0.3, f"{who}warp {warp}, lane", "right", size=SMALL)
    for first in range(0, line, SECTOR):
        frame(axes, first, top, SECTOR, high, style.QUIET, linewidth=0.8)


@style.styled
def draw_sixteen_bytes() -> Figure:
    """The same 16 bytes of K as elements of 4, 2 and 1 bytes: x of them."""
    figure, axes = style.new_figure("x: how many elements 16 bytes hold", 1.9)
    left = 5.5  # room for the words
    board(axes, left + VEC_BYTES + 0.05, 4.1)
    for row, (words, size) in enumerate((("float32", 4), ("float16, bfloat16", 2), ("float8", 1))):
        y = 1.4 * row + 0.2
        write(axes, 0, y + 0.5, f"{words}: x = {VEC_BYTES // size}", "left")
        for element in range(VEC_BYTES // size):
            box(axes, left + element * size, y, size, 1, style.K, text=element)
    return figure
