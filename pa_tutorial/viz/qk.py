"""q times k in one thread group: the vecs of its threads, their sums, and the shuffles."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from pa_tutorial.kernels.intermediates import SCORES_DONE
from pa_tutorial.kernels.vectors import as_float
from pa_tutorial.simt import Snapshot
from pa_tutorial.viz import style
from pa_tutorial.viz.kernel_runs import run_v1
from pa_tutorial.walk.cases import WORKED_EXAMPLE

SMALL = 7  # points
CELL, VEC_GAP, SUM_GAP = 1.0, 0.15, 0.7  # cells
THREAD = 3.1  # rows from one thread to the next


def partial_sums(snapshot: Snapshot, group: int) -> list[np.ndarray]:
    """What each thread of a group has before the shuffles and after each: [THREAD_GROUP_SIZE].

    snapshot   holds q_vecs [THREAD_GROUP_SIZE, NUM_VECS_PER_THREAD, VEC_SIZE] and, of each thread,
           k_vecs [NUM_VECS_PER_THREAD, VEC_SIZE], in float32
    """
    q_vecs = as_float(snapshot["q_vecs"].data)
    products = q_vecs * keys_of_group(snapshot, group)
    size = len(q_vecs)
    # One addition after the other, as in the kernel.
    sums = [np.cumsum(products.reshape(size, -1), axis=1, dtype=np.float32)[:, -1]]
    mask = size // 2
    while mask >= 1:
        sums.append(sums[-1] + sums[-1][np.arange(size) ^ mask])
        mask //= 2
    return sums


def keys_of_group(snapshot: Snapshot, group: int) -> np.ndarray:
    """k_vecs of the threads of a group, [THREAD_GROUP_SIZE, NUM_VECS_PER_THREAD, VEC_SIZE]."""
    size = len(snapshot["q_vecs"])
    places = np.searchsorted(snapshot.threads, range(group * size, group * size + size))
    return np.ma.filled(snapshot["k_vecs"][places], np.nan)


@style.styled
def draw_qk(snapshot: Snapshot, group: int, scale: float) -> Figure:
    """One key token in one thread group, with its numbers.

    snapshot  where the threads hold q_vecs, and k_vecs of this token; see partial_sums
    group     number of the thread group in the thread block
    scale     that the kernel multiplies by
    """
    q_vecs, k_vecs = as_float(snapshot["q_vecs"].data), keys_of_group(snapshot, group)
    size, num_vecs, vec_size = k_vecs.shape
    sums, first = partial_sums(snapshot, group), group * len(q_vecs)
    qk = scale * float(sums[-1][0])
    figure, axes = style.new_figure(
        f"{size} threads share one key token: {num_vecs * vec_size} products each, "
        f"{len(sums) - 1} shuffles, and all of them have its score {qk:.3f}",
        0.5 + 0.2 * THREAD * size,
    )
    wide = num_vecs * (vec_size * CELL + VEC_GAP)
    right = wide + 0.8 + len(sums) * (CELL + SUM_GAP) + 0.8
    style.bare(axes, right, THREAD * size)
    axes.set_aspect("auto")
    for row in range(size):
        _thread(axes, THREAD * row, first + row, q_vecs[row], k_vecs[row], row, size)
    elements = {"ha": "right", "va": "center", "color": style.QUIET, "size": SMALL}
    axes.text(-0.1, -0.25, "elements", **elements)
    _sums(axes, wide + 0.8, sums, scale, qk)
    axes.set_xlim(-2.85, right)
    axes.set_ylim(THREAD * size - 0.3, -0.7)
    return figure


def _thread(
    axes: Axes, y: float, thread: int, q: np.ndarray, k: np.ndarray, row: int, size: int
) -> None:
    """A thread's vecs: row `row` of q_vecs above, its k_vecs below."""
    quiet = {"va": "center", "color": style.QUIET, "size": SMALL}
    axes.text(-2.85, y + 1, f"thread {thread}", va="center", weight="bold", size=8)
    axes.text(-0.1, y + 0.5, f"q_vecs[{row}]", ha="right", **quiet)
    axes.text(-0.1, y + 1.5, "k_vecs", ha="right", **quiet)
    num_vecs, vec_size = q.shape
    for j in range(num_vecs):
        x = j * (vec_size * CELL + VEC_GAP)
        first = (row + j * size) * vec_size
        words = f"{first}–{first + vec_size - 1}" if vec_size > 1 else str(first)
        axes.text(x + vec_size * CELL / 2, y - 0.25, words, ha="center", **quiet)
        for e in range(vec_size):
            number(axes, x + e * CELL, y, float(q[j, e]), style.lighter(style.Q, 0.6))
            number(axes, x + e * CELL, y + 1, float(k[j, e]), style.lighter(style.K, 0.45))


def number(axes: Axes, x: float, y: float, value: float, color: str) -> None:
    """A value in a cell."""
    box = Rectangle((x, y), CELL, 1, facecolor=color, edgecolor=style.PAPER, linewidth=1)
    style.add(axes, box)
    text = f"{round(value, 3) + 0.0:g}"
    axes.text(x + CELL / 2, y + 0.5, text, ha="center", va="center", size=SMALL)


def _sums(axes: Axes, x: float, sums: list[np.ndarray], scale: float, qk: float) -> None:
    """A column for the sums before the shuffles and after each; at the end, the score."""
    size, step = len(sums[0]), CELL + SUM_GAP
    quiet = {"ha": "center", "va": "center", "color": style.QUIET, "size": SMALL}
    for column, values in enumerate(sums):
        shade = style.lighter(style.LOGITS, 0.8 - 0.3 * column)
        mask = size >> column
        words = f"mask {mask}" if column else "sum"
        axes.text(x + column * step + CELL / 2, -0.25, words, **quiet)
        for row in range(size):
            here = THREAD * row + 0.5
            number(axes, x + column * step, here, float(values[row]), shade)
            if column:
                ends = x + column * step - SUM_GAP, x + column * step
                own, other = here + 0.5, THREAD * (row ^ mask) + 1
                axes.plot(ends, (own, own), color=style.QUIET, lw=0.8, zorder=0)
                style.add(axes, style.arrow((ends[0], other), (ends[1], own)))
    last = x + len(sums) * step - SUM_GAP
    axes.text(last + 0.05, 1, f"× {scale:.3f}\n= {qk:.3f}", va="center", size=8, weight="bold")


def draw_worked_qk() -> Figure:
    """Token 0 of the worked example, which thread group 0 has."""
    run = run_v1(WORKED_EXAMPLE)
    return draw_qk(run.snapshot(SCORES_DONE), group=0, scale=float(run["scale"]))
