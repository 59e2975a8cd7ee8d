"""A GPU as a picture, with the sizes of a real one."""

import math

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from pa_tutorial.simt.gpus import GB, H100, KB, MB, NUM_SCHEDULERS, REGISTER, Gpu
from pa_tutorial.simt.races import WARP_SIZE
from pa_tutorial.viz import style

NUM_THREADS = 128  # of a thread block, in vLLM
MEMORY = style.lighter(style.QUIET, 0.75)


@style.styled
def draw_gpu(gpu: Gpu = H100) -> Figure:
    """The whole GPU on the left, one multiprocessor on the right."""
    title = f"{gpu.name}: small and fast memory near the threads, large and slow memory far away"
    figure, (left, right) = style.new_figure(title, 3.7, ncols=2, width_ratios=(1, 1.15))
    _whole(left, gpu)
    _multiprocessor(right, gpu)
    return figure


def _box(
    axes: Axes, x: float, y: float, width: float, height: float, text: str, color: str
) -> None:
    style.add(
        axes, Rectangle((x, y), width, height, facecolor=color, edgecolor=style.INK, linewidth=0.8)
    )
    middle = x + width / 2, y + height / 2
    axes.text(*middle, text, ha="center", va="center", color=style.ink_on(color))


def _board(axes: Axes, title: str) -> None:
    axes.set_xlim(0, 10)
    axes.set_ylim(10, 0)
    axes.axis("off")
    axes.set_title(title, weight="normal")


def _whole(axes: Axes, gpu: Gpu) -> None:
    _board(axes, f"{gpu.num_multiprocessors} multiprocessors share L2 and DRAM")
    columns = round(math.sqrt(2 * gpu.num_multiprocessors))
    size = 9.8 / columns
    rows = -(-gpu.num_multiprocessors // columns)
    height = 4.9 / rows
    for number in range(gpu.num_multiprocessors):
        row, column = divmod(number, columns)
        face = style.QUIET if number else style.INK
        box = (0.1 + column * size, 0.1 + row * height), size * 0.82, height * 0.78
        style.add(axes, Rectangle(*box, facecolor=face))
    _box(axes, 0.1, 5.5, 9.7, 1.6, f"L2 cache: {gpu.l2_bytes // MB} MB", MEMORY)
    speed = gpu.dram_bytes_per_second / 1e12
    text = f"DRAM: {gpu.dram_bytes // GB} GB\nread at {speed:.2f} TB/s, for all together"
    _box(axes, 0.1, 7.6, 9.7, 2.2, text, MEMORY)


def _multiprocessor(axes: Axes, gpu: Gpu) -> None:
    _board(axes, f"one of them: room for {gpu.max_warps} warps")
    warps = NUM_THREADS // WARP_SIZE
    per_row = gpu.max_warps // NUM_SCHEDULERS
    for number in range(gpu.max_warps):
        column, row = divmod(number, NUM_SCHEDULERS)
        face = style.INK if number < warps else style.QUIET
        box = (0.1 + column * 9.8 / per_row, 0.1 + row * 0.62), 9.8 / per_row * 0.82, 0.5
        style.add(axes, Rectangle(*box, facecolor=face))
    note = f"dark: the {warps} warps of one thread block of {NUM_THREADS} threads"
    axes.text(0.1, 2.95, note, va="center", color=style.QUIET)
    registers = gpu.registers * REGISTER // KB
    text = (
        f"registers: {gpu.registers:,} of {REGISTER} bytes, {registers} KB\n"
        f"a thread has its own, at most {gpu.max_registers_per_thread}"
    )
    _box(axes, 0.1, 3.5, 9.7, 2.6, text, MEMORY)
    text = (
        f"shared memory and L1 cache: {gpu.l1_bytes // KB} KB\n"
        f"shared: at most {gpu.shared_bytes // KB} KB, and\n"
        f"{gpu.max_shared_bytes_per_block // KB} KB for one thread block"
    )
    _box(axes, 0.1, 6.6, 9.7, 3.2, text, MEMORY)
