"""The poster of v1, and of v2: which column moves what between memories, with which threads."""

from dataclasses import dataclass
from functools import cache

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Circle

from pa_tutorial.arguments import require
from pa_tutorial.kernels.cuda_backends import PartitionedBackend
from pa_tutorial.kernels.intermediates import ROWS_DONE, SCORES_DONE, SUM_DONE, WEIGHTS_DONE
from pa_tutorial.kernels.loads import element_loads
from pa_tutorial.simt import Trace
from pa_tutorial.simt.gpus import WARP_SIZE
from pa_tutorial.viz import drawing, style
from pa_tutorial.viz.drawing import add, arrow, write
from pa_tutorial.viz.kernel_runs import Run, between, of_function, run_v1, watched
from pa_tutorial.walk.cases import WORKED_EXAMPLE

SMALL = 7  # points
HEIGHT = 5.3  # inches, as all lengths here
LEFT = 0.6  # room for the names of the memories
HERE = "#FFF8DC"
GREY = "#CCCCCC"  # anything that isn't a tensor: the block table, red_smem


@dataclass(frozen=True)
class Step:
    """A column of the poster.

    who    works together on one thing
    unit   threads that work together; they are drawn as one piece
    """

    name: str
    words: str
    who: str
    unit: str
    width: float


STEPS = (
    Step("query", "load q", "a vec\na thread", "1", 0.74),
    Step("scores", "load K, q · k", "a token\na thread group", "group", 1.3),
    Step("maximum", "maximum", "lanes,\nthen warps", "warp", 0.76),
    Step("sum", "exp, sum", "a token\na thread", "1", 0.9),
    Step("weights", "weights", "a token\na thread", "1", 0.72),
    Step("values", "weights · V", "a block a warp,\na row a lane", "warp", 1.06),
    Step("warps", "sum", "lanes,\nthen warps", "warp", 0.66),
    Step("output", "out", "a row\na lane", "1", 0.46),
)
NAMES = tuple(step.name for step in STEPS)
STARTS = dict(zip(NAMES, np.cumsum([LEFT, *(step.width for step in STEPS)]).tolist(), strict=False))
BANDS_TOP, BOTTOM = 1.36, 5.08
BANDS = {
    "global\nmemory": (BANDS_TOP, 2.2),
    "shared\nmemory": (2.28, 3.3),
    "registers\nof one\nthread": (3.38, BOTTOM),
}


def trace_of(run: Run, step: str) -> Trace:
    """The accesses of a column in the trace."""
    trace = run.trace
    arrays = {"query": "q", "scores": "k_cache", "values": "v_cache", "output": "out"}
    if step in arrays:
        return trace.only(array=arrays[step])
    if step == "maximum":
        return shuffles(between(trace, before=SCORES_DONE), trace.kernel)
    marks = {"sum": (SCORES_DONE, SUM_DONE), "weights": (SUM_DONE, WEIGHTS_DONE)}
    return between(trace, *marks.get(step, (ROWS_DONE,))).only(array="shared_mem")


def shuffles(trace: Trace, function: str) -> Trace:
    return of_function(trace.only(kind="shuffle"), function)


@dataclass(frozen=True)
class Board:
    """Where the poster is drawn; everything outside the column `here` is pale."""

    axes: Axes
    here: str | None

    def strong(self, steps: str) -> bool:
        return self.here is None or self.here in steps.split()

    def ink(self, steps: str) -> str:
        return style.INK if self.strong(steps) else style.lighter(style.QUIET, 0.15)

    def shade(self, color: str, steps: str) -> str:
        return color if self.strong(steps) else style.lighter(color, 0.8)

    def words(self, steps: str, x: float, y: float, text: str, **options: object) -> None:
        options = {"va": "center_baseline", "size": SMALL, **options}
        write(self.axes, x, y, text, color=self.ink(steps), **options)

    def box(
        self, steps: str, x: float, y: float, wide: float, text: str, color: str, high: float = 0.23
    ) -> None:
        face = self.shade(color, steps)
        edge = style.INK if self.here and self.strong(steps) else style.PAPER
        look = {"edgecolor": edge, "linewidth": 0.8, "zorder": 3}
        drawing.box(self.axes, x, y, wide, high, face, **look)
        ink = style.ink_on(face) if self.strong(steps) else self.ink(steps)
        look = {"size": SMALL, "color": ink, "linespacing": 1.05, "zorder": 4}
        write(self.axes, x + wide / 2, y + high / 2, text, **look)

    def vecs(self, steps: str, x: float, y: float, color: str, count: int, size: int) -> None:
        """`count` vecs of `size` elements in a row."""
        wide = 0.76 / size / count if count == 1 else 0.9 / size / count
        for number in range(count * size):
            left, face = x + number * wide + 0.04 * (number // size), self.shade(color, steps)
            drawing.box(self.axes, left, y, wide, 0.15, face, linewidth=0.8)

    def path(self, steps: str, *points: tuple[float, float]) -> None:
        """The path of data: straight lines with an arrow at the end."""
        color, width = self.ink(steps), 1.3 if self.strong(steps) and self.here else 0.9
        if len(points) > 2:
            self.axes.plot(*zip(*points[:-1], strict=True), color=color, lw=width, zorder=2)
        arrow(self.axes, *points[-2:], color=color, linewidth=width, zorder=2)


@cache
def run_of_partition() -> Run:
    """The paged kernel of v2 on the worked example: the thread block of partition 0, head 0."""
    size = WORKED_EXAMPLE.block_size
    backend = PartitionedBackend(element_loads)
    launch = backend.prepare(WORKED_EXAMPLE.paged("vllm"), partition_size=size)
    return watched(launch.partitions)


@style.styled
def draw_poster(here: str | None = None, partitions: bool = False) -> Figure:
    """v1 on one page, for head 0 of the worked example: its columns across, the memories down.

    here        name of the column to emphasise, one of NAMES; None: all columns
    partitions  draw v2 instead, with what the first partition's thread block stores
    """
    require(here is None or here in NAMES, "here", here, f"one of {', '.join(NAMES)}")
    run = run_of_partition() if partitions else run_v1(WORKED_EXAMPLE)
    title = (
        "A thread block of v2 leaves its maximum, its sum and its part of out to the reduce kernel"
        if partitions
        else "q, K and V come in, out goes back: scores and weights never leave the chip"
    )
    figure, axes = style.new_figure(title, HEIGHT + 0.25)
    drawing.board(axes, style.WIDTH, HEIGHT, 0, 0)
    board = Board(axes, here)
    _bands(board)
    for number, step in enumerate(STEPS, start=1):
        _head(board, number, step, run)
    _barriers(board, run)
    _query_and_key(board, run)
    _softmax(board, run)
    _values(board, run)
    if partitions:
        _partitions(board, run)
    return figure


def _bands(board: Board) -> None:
    for name, (top, bottom) in BANDS.items():
        look = {"edgecolor": "none", "zorder": -2}
        drawing.box(board.axes, LEFT, top, style.WIDTH - LEFT, bottom - top, "#F6F6F6", **look)
        write(board.axes, 0, (top + bottom) / 2, name, "left", size=8)
    for y, name in ((0.78, "threads\nat work"), (1.18, "who"), (5.21, "barriers")):
        write(board.axes, 0, y, name, "left", size=8)


def _head(board: Board, number: int, step: Step, run: Run) -> None:
    """Number and name of a step, and the threads at work, with one piece per unit."""
    x, middle = STARTS[step.name], STARTS[step.name] + step.width / 2
    if board.here == step.name:
        place = x + 0.02, 0.16, step.width - 0.04, BOTTOM - 0.12
        look = {"edgecolor": style.INK, "linewidth": 1.4, "zorder": -1}
        drawing.box(board.axes, *place, HERE, **look)
        board.words(step.name, min(middle, style.WIDTH - 0.35), 0.07, "you are here", weight="bold")
    add(board.axes, Circle((middle, 0.29), 0.085, facecolor=board.ink(step.name)))
    white = {"va": "center_baseline", "size": SMALL, "color": style.PAPER}
    write(board.axes, middle, 0.29, number, **white)
    board.words(step.name, middle, 0.48, step.words, size=8, weight="bold")
    threads = np.unique(trace_of(run, step.name).threads).tolist()
    _crew(board, step, middle, threads, run)
    board.words(step.name, middle, 0.94, str(len(threads)))
    board.words(step.name, middle, 1.18, step.who, va="center")


def _crew(board: Board, step: Step, middle: float, threads: list[int], run: Run) -> None:
    """The thread block: one line per warp, dark where a thread is at work."""
    unit = {"1": 1, "group": run.geometry.THREAD_GROUP_SIZE, "warp": WARP_SIZE}[step.unit]
    wide = min(step.width - 0.1, 0.7)
    lane = wide / WARP_SIZE
    for first in range(0, run.geometry.NUM_THREADS, unit):
        warp, column = divmod(first, WARP_SIZE)
        corner = middle - wide / 2 + column * lane, 0.61 + 0.065 * warp
        at_work = not {*range(first, first + unit)}.isdisjoint(threads)
        size = unit * lane - (0.5 * lane if unit > 1 else 0), 0.05
        color = board.ink(step.name) if at_work else "#DDDDDD"
        drawing.box(board.axes, *corner, *size, color, edgecolor="none", antialiased=False)


def num_barriers(run: Run) -> int:
    return run.trace.only(kind="barrier", warp=0).num_instructions


def _barriers(board: Board, run: Run) -> None:
    """One after q, the maximum, the sum, the weights and the rows; the others are the tree's."""
    middle = {step.name: STARTS[step.name] + step.width / 2 for step in STEPS}
    once = STARTS["scores"], middle["maximum"], middle["sum"], STARTS["values"], STARTS["warps"]
    bars = {**dict.fromkeys(once, 1), middle["warps"]: num_barriers(run) - len(once)}
    for x, count in bars.items():
        board.axes.plot((x, x), (BANDS_TOP, BOTTOM + 0.04), color=style.QUIET, lw=2, zorder=1)
        write(board.axes, x, 5.21, count, size=8)


def _table(board: Board, step: str, x: float, run: Run) -> None:
    """The row of the block table: the physical blocks of the sequence."""
    blocks = run["block_tables"][0, : _num_blocks(run)].tolist()
    board.words(step, x, 1.46, "block_tables", ha="left")
    for number, block in enumerate(blocks):
        board.box(step, x + 0.2 * number, 1.54, 0.18, str(block), GREY, 0.17)
    board.path(step, (x + 0.19, 1.71), (x + 0.19, 1.84))


def _num_blocks(run: Run) -> int:
    """Blocks of the sequence; of v2, of the first partition."""
    g, tokens = run.geometry, int(run["seq_lens"][0])
    return -(-min(tokens, g.PARTITION_SIZE or tokens) // g.BLOCK_SIZE)


def _query_and_key(board: Board, run: Run) -> None:
    """q to shared memory; then one thread's part of q times k."""
    g, k_cache = run.geometry, WORKED_EXAMPLE.paged("vllm").k_cache
    q, k, vecs = STARTS["query"], STARTS["scores"], (g.NUM_VECS_PER_THREAD, g.VEC_SIZE)
    board.box("query", q + 0.08, 1.84, 0.56, f"q\n{[g.HEAD_SIZE]}", style.Q, 0.3)
    board.path("query", (q + 0.36, 2.14), (q + 0.36, 2.38))
    words = f"q_vecs {[g.THREAD_GROUP_SIZE, *vecs]}"
    board.box("query scores", q + 0.06, 2.38, 1.15, words, style.Q)
    _table(board, "scores", k + 0.1, run)
    board.box("scores", k + 0.1, 1.84, 1.14, f"k_cache\n{[*k_cache.shape]}", style.K, 0.3)
    board.path("scores", (k + 0.86, 2.14), (k + 0.86, 3.64))
    board.words("scores", k + 0.12, 3.55, f"k_vecs {[*vecs]}", ha="left")
    board.vecs("scores", k + 0.12, 3.64, style.K, *vecs)
    board.words("scores", k + 0.6, 3.89, "×", size=9)
    board.vecs("scores", k + 0.12, 3.98, style.Q, *vecs)
    board.words("scores", k + 0.12, 4.22, f"q_vecs[0] {[*vecs]}", ha="left")
    board.path("scores", (k - 0.2, 2.61), (k - 0.2, 4.055), (k + 0.11, 4.055))
    number = shuffles(run.trace, "qk_dot").only(warp=0).num_instructions
    board.words("scores", k + 0.12, 4.42, f"sum, {number} shuffles", ha="left")
    board.path("scores", (k + 0.6, 4.49), (k + 0.6, 4.64))
    board.box("scores", k + 0.37, 4.64, 0.46, "qk", style.lighter(style.LOGITS, 0.75))
    board.path("scores", (k + 0.83, 4.71), (k + 1.2, 4.71), (k + 1.2, 2.61))


def _softmax(board: Board, run: Run) -> None:
    """The shared array logits from scores to weights; qk_max and exp_sum pass through red_smem."""
    g, top = run.geometry, 2.38
    k, m, s, w, v = (STARTS[name] for name in ("scores", "maximum", "sum", "weights", "values"))
    shades = [style.lighter(style.LOGITS, amount) for amount in (0.75, 0.4, 0)]
    words = f"logits {[_num_blocks(run) * g.BLOCK_SIZE]}: scores"
    board.box("scores maximum sum", k + 0.98, top, s - k - 0.98, words, shades[0])
    board.box("sum weights", s, top, w - s, "exp(qk − max)", shades[1])
    board.box("weights values", w, top, v + 0.4 - w, "weights", shades[2])
    board.path("maximum", (k + 0.83, 4.8), (m + 0.1, 4.8))
    board.path("sum", (m + 0.7, 4.71), (s + 0.06, 4.71), (s + 0.06, 2.61))
    board.path("sum", (s + 0.2, 2.61), (s + 0.2, 4.64))
    board.path("weights", (s + 0.8, 4.71), (w + 0.08, 4.71), (w + 0.08, 2.61))
    board.words("weights", w + 0.08, 4.97, "÷ exp_sum", ha="left")
    n = g.NUM_WARPS
    for step, after, x, name, trace, part in (
        ("maximum", "sum", m + 0.1, "qk_max", trace_of(run, "maximum"), f"[0:{n}]"),
        ("sum", "weights", s + 0.2, "exp_sum", shuffles(run.trace, "block_sum"), f"[{n}:{2 * n}]"),
    ):
        board.box(f"{step} {after}", x, 4.64, 0.6, name, GREY)
        board.words(step, x + 0.3, 4.97, f"{trace.only(warp=0).num_instructions} shuffles")
        board.box(step, x, 2.88, 0.6, f"red_smem\n{part}", GREY, 0.3)
        board.path(step, (x + 0.14, 4.64), (x + 0.14, 3.18))
        board.path(step, (x + 0.46, 3.18), (x + 0.46, 4.64))


def _values(board: Board, run: Run) -> None:
    """One lane's part of the weights times V; the sums over lanes and warps; out."""
    g, v_cache = run.geometry, WORKED_EXAMPLE.paged("vllm").v_cache
    v, r, o = STARTS["values"], STARTS["warps"], STARTS["output"]
    _table(board, "values", v + 0.1, run)
    board.box("values", v + 0.1, 1.84, 0.88, f"v_cache\n{[*v_cache.shape]}", style.V, 0.3)
    board.path("values", (v + 0.14, 2.61), (v + 0.14, 3.64))
    board.words("values", v + 0.2, 3.55, f"logits_vec {[g.V_VEC_SIZE]}", ha="left")
    board.vecs("values", v + 0.09, 3.64, style.LOGITS, 1, g.V_VEC_SIZE)
    board.words("values", v + 0.48, 3.89, "×", size=9)
    board.vecs("values", v + 0.09, 3.98, style.V, 1, g.V_VEC_SIZE)
    board.words("values", v + 0.09, 4.22, f"v_vec {[g.V_VEC_SIZE]}", ha="left")
    board.path("values", (v + 0.97, 2.14), (v + 0.97, 4.055), (v + 0.88, 4.055))
    board.path("values", (v + 0.6, 4.29), (v + 0.6, 4.64))
    words = f"accs {[g.NUM_ROWS_PER_THREAD]}"
    pale = style.lighter(style.OUT, 0.5)
    board.box("values warps output", v + 0.2, 4.64, o + 0.38 - v - 0.2, words, pale)
    words = f"{g.NUM_V_VECS_PER_ROW.bit_length() - 1} shuffles"
    board.words("warps", r + 0.33, 4.97, words)
    words = f"out_smem\n{[g.NUM_WARPS // 2, g.HEAD_SIZE]}"
    board.box("warps", r + 0.03, 2.35, 0.6, words, pale, 0.3)
    reused = {"color": board.ink("warps"), "linewidth": 0.9, "linestyle": "dotted"}
    board.axes.plot((v + 0.4, r + 0.03), (2.5, 2.5), **reused)
    board.words("warps", v + 0.68, 2.68, "the same\nmemory", va="center")
    board.path("warps", (r + 0.17, 4.64), (r + 0.17, 2.65))
    board.path("warps", (r + 0.49, 2.65), (r + 0.49, 4.64))
    board.path("output", (o + 0.23, 4.64), (o + 0.23, 2.14))
    name, color = ("tmp_out", pale) if g.PARTITION_SIZE else ("out", style.OUT)
    board.box("output", o + 0.02, 1.84, 0.42, f"{name}\n{[g.HEAD_SIZE]}", color, 0.3)


def _partitions(board: Board, run: Run) -> None:
    """What thread 0 stores besides tmp_out, and the reduce kernel that reads it."""
    w, r, o = STARTS["weights"], STARTS["warps"], STARTS["output"]
    s, size = STARTS["sum"], [run.geometry.HEAD_SIZE]
    board.path("weights", (s + 0.8, 4.8), (w + 0.5, 4.8), (w + 0.5, 2.14))
    board.box("weights output", w + 0.04, 1.84, 0.62, "exp_sums\nmax_logits", GREY, 0.3)
    board.path("output", (w + 0.2, 2.14), (w + 0.2, 2.2), (r + 0.2, 2.2), (r + 0.2, 2.14))
    board.box("output", r + 0.02, 1.84, 0.44, "reduce\nkernel", style.PAPER, 0.3)
    board.path("output", (o + 0.02, 1.99), (r + 0.46, 1.99))
    board.path("output", (r + 0.2, 1.84), (r + 0.2, 1.58), (o + 0.02, 1.58))
    board.box("output", o + 0.02, 1.43, 0.42, f"out\n{size}", style.OUT, 0.3)
