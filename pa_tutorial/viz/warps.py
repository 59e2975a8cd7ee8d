"""Figures of notebook 09: what the lanes of a warp do together, and the GPU they run on."""

import math
from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from pa_tutorial.viz import style
from pa_tutorial.viz.drawing import arrow, board, box, cell, note, plural
from simt.gpus import GB, H100, KB, MB, NUM_SCHEDULERS, REGISTER, WARP_SIZE, Gpu
from simt.trace import Trace
from simt.traffic import NUM_BANKS, WORD, shared_traffic, units

STEP = 1.9  # distance between lines of lanes
SHOWN = 8  # lanes, if these add up nothing of the others


def summed_lanes(trace: Trace) -> list[dict[int, frozenset[int]]]:
    """After each shuffle of a warp: lane -> the lanes whose values are in its sum.

    This assumes a reduction in which each lane adds what it reads to what it has: a trace says
    which lane reads from which, not what it does with the value. The first entry is the state
    before all shuffles.

    Raises ValueError if the trace has no shuffles, isn't from one warp of one thread block, or
    continues after a sum is complete, because it then has several reductions.
    """
    shuffles = trace.only(kind="shuffle")
    records = shuffles.records
    warps = {*zip(records.block.tolist(), records.warp.tolist(), strict=True)}
    if len(warps) != 1:
        raise ValueError(
            f"trace: {len(warps)} warps of {trace.kernel} shuffle; a reduction is drawn for one. "
            "Choose by trace.only(block=, warp=)"
        )
    states = [{int(lane): frozenset({int(lane)}) for lane in np.unique(records.lane)}]
    for step in exchanges(shuffles):
        before, now = states[-1], dict(states[-1])
        for lane, source in step:
            read = before.get(source, frozenset())
            if lane != source and before[lane] & read:
                raise ValueError(f"trace: lane {lane} adds a value twice: several reductions")
            now[lane] = before[lane] | read
        states.append(now)
    return states


def exchanges(shuffles: Trace) -> list[list[tuple[int, int]]]:
    """(lane, lane that it reads from) for each shuffle."""
    steps: dict[int, list[tuple[int, int]]] = {}
    for r in shuffles.records:
        steps.setdefault(int(r.instruction), []).append((int(r.lane), int(r.source_lane)))
    return list(steps.values())


@style.styled
def draw_reduction(trace: Trace) -> Figure:
    """A reduction of one warp, drawn from its shuffles: which lane reads from which. The number
    below a lane says how many lanes' values are in its own."""
    states = summed_lanes(trace)
    lanes = sorted(states[0])
    if all(states[-1][lane] <= {*lanes[:SHOWN]} for lane in lanes[:SHOWN]):
        lanes = lanes[:SHOWN]
    figure, axes = style.new_figure(_finding(states), 0.5 + 0.55 * len(states))
    board(axes, len(lanes) + 0.05, STEP * (len(states) - 1) + 1)
    for number, step in enumerate(exchanges(trace.only(kind="shuffle"))):
        ends = STEP * number + 1, STEP * (number + 1)
        for lane, source in (pair for pair in step if pair[0] in lanes):
            xs = lanes.index(source) + 0.5, lanes.index(lane) + 0.5
            arrow(axes, *zip(xs, ends, strict=True))
        for column in range(len(lanes)):  # each lane keeps what it has
            own = [column + 0.5] * len(ends)
            axes.plot(own, ends, color=style.lighter(style.QUIET), zorder=0)
    largest = max(map(len, states[-1].values()))
    for number, state in enumerate(states):
        for column, lane in enumerate(lanes):
            missing = 1 - np.log2(len(state[lane]) + 1) / np.log2(largest + 1)
            shade = style.lighter(style.LOGITS, 0.8 * missing)
            cell(axes, column, STEP * number, shade, len(state[lane]) if number else lane)
        note(axes, -0.15, STEP * number + 0.5, f"shuffle {number}" if number else "lane", "right")
    return figure


def _finding(states: list[dict[int, frozenset[int]]]) -> str:
    last = states[-1]
    largest = max(map(len, last.values()))
    holders = [lane for lane in last if len(last[lane]) == largest]
    who = f"lane {holders[0]}" if len(holders) == 1 else f"{len(holders)} lanes"
    who = "every lane" if len(holders) == len(last) else who
    has = "have" if 1 < len(holders) < len(last) else "has"
    after, lanes = plural(len(states) - 1, "shuffle"), plural(largest, "lane")
    return f"After {after}, {who} {has} heard from {lanes}"


@style.styled
def draw_banks(traces: Mapping[str, Trace], title: str) -> Figure:
    """Shared memory in lines of 32 banks, and the words that one warp instruction accesses.

    traces  heading -> one warp instruction that touches shared memory; one panel each
    """
    figure, panels = style.new_figure(
        title, 3.6, ncols=len(traces), nrows=2, squeeze=False, height_ratios=(3, 1), sharex=True
    )
    tallest = 0
    for (above, below), (heading, trace) in zip(panels.T, traces.items(), strict=True):
        if trace.num_instructions != 1:
            raise ValueError(
                f"{heading}: {trace.num_instructions} instructions; a bank map shows one"
            )
        count = plural(shared_traffic(trace).total("wavefronts"), "wavefront")
        above.set_title(f"{heading}: {count}", weight="normal")
        _memory(above, trace)
        words = np.unique(units(trace.records, WORD)[1])
        per_bank = np.bincount(words % NUM_BANKS, minlength=NUM_BANKS)
        below.bar(np.arange(NUM_BANKS) + 0.5, per_bank, width=0.8, color=style.K)
        below.set_xlabel("bank")
        ticks = range(0, NUM_BANKS, NUM_BANKS // 4)
        below.set_xticks([tick + 0.5 for tick in ticks], ticks)
        tallest = max(tallest, int(per_bank.max()))
    for below in panels[1]:
        below.set_ylim(0, tallest * 1.05)
        below.set_yticks([0, tallest])
    panels[0][0].set_ylabel(f"row of {NUM_BANKS} words")
    panels[1][0].set_ylabel("words")
    return figure


def _memory(axes: Axes, trace: Trace) -> None:
    array = trace.the_array()
    begin = array.address // WORD
    num_words = -(-int(np.prod(array.shape)) * array.dtype.itemsize // WORD)
    wanted = set(units(trace.records, WORD)[1].tolist())
    for word in range(begin, begin + num_words):
        row, bank = divmod(word, NUM_BANKS)
        face = style.K if word in wanted else style.EMPTY
        box(axes, bank, row, 0.9, 1, face, edgecolor="none")
    rows = range(begin // NUM_BANKS, (begin + num_words - 1) // NUM_BANKS + 1)
    axes.hlines(rows, 0, NUM_BANKS, style.PAPER, linewidth=0.6)  # gaps would vary with the pixels
    axes.set_xlim(0, NUM_BANKS)
    axes.set_ylim(rows.stop, rows.start)
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))


NUM_THREADS = 128  # per thread block, in vLLM


@style.styled
def draw_gpu(gpu: Gpu = H100) -> Figure:
    """The whole GPU on the left, one multiprocessor on the right."""
    title = f"{gpu.name}: small and fast memory near the threads, large and slow memory far away"
    figure, (left, right) = style.new_figure(title, 3.7, ncols=2, width_ratios=(1, 1.15))
    _whole(left, gpu)
    _multiprocessor(right, gpu)
    return figure


def _memory_box(axes: Axes, y: float, height: float, text: str) -> None:
    color, look = style.lighter(style.QUIET, 0.75), {"edgecolor": style.INK, "linewidth": 0.8}
    box(axes, 0.1, y, 9.7, height, color, text, **look)


def _whole(axes: Axes, gpu: Gpu) -> None:
    count = gpu.num_multiprocessors
    board(axes, 10, 10, 0, 0)
    axes.set_title(f"{count} multiprocessors share L2 and DRAM", weight="normal")
    columns = round(math.sqrt(2 * count))
    wide, high = 9.8 / columns, 4.9 / -(-count // columns)
    for number in range(count):
        row, column = divmod(number, columns)
        face, corner = style.QUIET if number else style.INK, (0.1 + column * wide, 0.1 + row * high)
        box(axes, *corner, wide * 0.82, high * 0.78, face, edgecolor="none")
    _memory_box(axes, 5.5, 1.6, f"L2 cache: {gpu.l2_bytes // MB} MB")
    speed = gpu.dram_bytes_per_second / 1e12
    text = f"DRAM: {gpu.dram_bytes // GB} GB\nread at {speed:.2f} TB/s, shared by all"
    _memory_box(axes, 7.6, 2.2, text)


def _multiprocessor(axes: Axes, gpu: Gpu) -> None:
    board(axes, 10, 10, 0, 0)
    axes.set_title(f"one of them: room for {gpu.max_warps} warps", weight="normal")
    warps, wide = NUM_THREADS // WARP_SIZE, 9.8 * NUM_SCHEDULERS / gpu.max_warps
    for number in range(gpu.max_warps):
        column, row = divmod(number, NUM_SCHEDULERS)
        corner = 0.1 + column * wide, 0.1 + row * 0.62
        face = style.INK if number < warps else style.QUIET
        box(axes, *corner, wide * 0.82, 0.5, face, edgecolor="none")
    words = f"first column: the {warps} warps of a thread block of {NUM_THREADS} threads"
    note(axes, 0.1, 2.95, words, "left")
    registers = gpu.registers * REGISTER // KB
    text = (
        f"registers: {gpu.registers:,} of {REGISTER} bytes, {registers} KB\n"
        f"each thread has its own, at most {gpu.max_registers_per_thread}"
    )
    _memory_box(axes, 3.5, 2.6, text)
    text = (
        f"shared memory and L1 cache: {gpu.l1_bytes // KB} KB\n"
        f"shared: at most {gpu.shared_bytes // KB} KB, and\n"
        f"{gpu.max_shared_bytes_per_block // KB} KB for one thread block"
    )
    _memory_box(axes, 6.6, 3.2, text)
