"""The poster of v1, and of v2: which column moves what between memories, with which threads."""

from dataclasses import dataclass, replace
from functools import cache

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Circle

from pa_tutorial.arguments import require
from pa_tutorial.checks.cases import WORKED_EXAMPLE
from pa_tutorial.kernels.cuda_backends import PagedBackend, PartitionedBackend, v1_backend
from pa_tutorial.kernels.intermediates import ROWS_DONE, SCORES_DONE, WEIGHTS_DONE
from pa_tutorial.viz import drawing, style
from pa_tutorial.viz.drawing import add, arrow, write
from pa_tutorial.viz.kernel_runs import Run, between, of_function, run_v1, watched
from simt import Trace
from simt.gpus import WARP_SIZE

HEIGHT = 4.4  # inches, as all lengths here
LEFT = 0.77  # room for the names of the memories
HERE = "#FFF8DC"
NEVER = np.iinfo(np.int32).max
GREY = "#CCCCCC"  # anything that isn't a tensor: red_smem, what it passes on
PALE_OUT = style.lighter(style.OUT, 0.5)


@dataclass(frozen=True)
class Step:
    """A column of the poster.

    unit   threads that work together; they are drawn as one piece
    """

    name: str
    words: str
    unit: str
    width: float


STEPS = (
    Step("query", "load\nq", "1", 0.66),
    Step("scores", "q · k:\nscores", "group", 0.95),
    Step("maximum", "the\nmaximum", "warp", 0.85),
    Step("sum", "exp and\nsum", "1", 0.98),
    Step("weights", "divide:\nweights", "1", 0.72),
    Step("values", "weights\n· V", "warp", 0.85),
    Step("warps", "add the\nwarps", "warp", 0.82),
    Step("output", "store\nout", "1", 0.6),
)
NAMES = tuple(step.name for step in STEPS)
STARTS = dict(zip(NAMES, np.cumsum([LEFT, *(step.width for step in STEPS)]).tolist(), strict=False))
MIDDLES = {step.name: STARTS[step.name] + step.width / 2 for step in STEPS}
BANDS = {
    "global\nmemory": (1.32, 1.94),
    "shared\nmemory": (2.0, 3.0),
    "registers\nof a thread": (3.06, 4.1),
}
BANDS_TOP, BOTTOM = 1.32, 4.1
GLOBAL, SHARED, RED_SMEM, REGISTERS = 1.42, 2.32, 2.68, 3.72  # tops of boxes
HIGH = 0.25
# The finding, by the steps that a poster frames.
TITLES = {
    (): "Steps 1, 2 and 6 load from global memory, only step 8 stores: scores stay on the chip",
    ("query", "scores"): "q waits in shared memory; K goes from the cache straight into registers",
    ("maximum",): "The warps find their common maximum through shared memory",
    ("values",): "Each warp multiplies its blocks of V by their weights and adds up in registers",
}


def threads_of(run: Run, step: str) -> list[int]:
    """The threads at work in a column, from the trace."""
    out = "tmp_out" if run.geometry.PARTITION_SIZE else "out"
    arrays = {"query": "q", "scores": "k_cache", "values": "v_cache", "output": out}
    if step in arrays:
        found = run.trace.only(array=arrays[step])
    elif step == "maximum":
        found = of_function(run.trace, "block_max").only(kind="shuffle")
    elif step == "warps":
        found = between(run.trace, ROWS_DONE).only(space="shared")
    else:
        found = writes_of_logits(run.trace, first=step == "sum")
    return np.unique(found.threads).tolist()


def writes_of_logits(trace: Trace, first: bool) -> Trace:
    """After the scores, each logit is written twice: first its exp, at last its weight."""
    writes = between(trace, SCORES_DONE, WEIGHTS_DONE).only(array="logits", kind="write")
    records = writes.records if first else writes.records[::-1]
    _, places = np.unique(records.address, return_index=True)
    return replace(writes, records=records[places])


@dataclass(frozen=True)
class Board:
    """Where the poster is drawn; steps after `last` are only named."""

    axes: Axes
    last: int

    def shows(self, step: str) -> bool:
        return NAMES.index(step) <= self.last

    def box(self, step: str, x: float, y: float, wide: float, text: str, color: str) -> None:
        """A named piece of memory, from the step on in which it first appears."""
        if self.shows(step):
            high = HIGH + 0.15 * text.count("\n")
            look = {"zorder": 3, "linewidth": 0.8}
            drawing.box(self.axes, x, y, wide, high, color, **look)
            look = {"color": style.ink_on(color), "linespacing": 1.05, "zorder": 4}
            look["va"] = "center" if "\n" in text else "center_baseline"
            write(self.axes, x + wide / 2, y + high / 2, text, **look)

    def path(self, step: str, *points: tuple[float, float]) -> None:
        """The path of data: straight lines with an arrow at the end."""
        if self.shows(step):
            look = {"color": style.INK, "linewidth": 0.9, "zorder": 2}
            self.axes.plot(*zip(*points[:-1], strict=True), **look)
            arrow(self.axes, *points[-2:], **look)


@cache
def run_of_partition(backend: PartitionedBackend) -> Run:
    """The paged kernel of v2 on the worked example: the thread block of partition 0, head 0."""
    size = WORKED_EXAMPLE.block_size
    launch = backend.prepare(WORKED_EXAMPLE.paged("vllm"), partition_size=size)
    return watched(backend, launch.partitions)


@style.styled
def draw_poster(*here: str, backend: PagedBackend | PartitionedBackend = v1_backend) -> Figure:
    """v1 on one page, for head 0 of the worked example: its steps across, the memories down.

    here     names of the steps to frame, those of a key of TITLES; later steps are only named
    backend  whose run it is; of v2's, with what the first partition's thread block stores
    """
    require(here in TITLES, "here", here, f"one of {', '.join(map(str, TITLES))}")
    partitions = isinstance(backend, PartitionedBackend)
    run = run_of_partition(backend) if partitions else run_v1(WORKED_EXAMPLE, backend=backend)
    title = TITLES[here]
    if partitions:
        title = "A thread block of v2 leaves a maximum, a sum and an output for the reduce kernel"
    figure, axes = style.new_figure(title, HEIGHT + 0.25)
    drawing.board(axes, style.WIDTH, HEIGHT, 0, 0)
    board = Board(axes, NAMES.index(here[-1]) if here else len(STEPS) - 1)
    for name, (top, bottom) in BANDS.items():
        look = {"edgecolor": "none", "zorder": -2}
        drawing.box(axes, LEFT, top, style.WIDTH - LEFT, bottom - top, "#F6F6F6", **look)
        write(axes, 0, (top + bottom) / 2, name, "left")
    write(axes, 0, 0.97, "threads\nat work", "left")
    for number, step in enumerate(STEPS, start=1):
        _head(board, number, step, run, step.name in here)
    _barriers(board, run)
    _query_and_key(board, run)
    _softmax(board)
    _values(board, run)
    if partitions:
        _partitions(board)
    return figure


def _head(board: Board, number: int, step: Step, run: Run, is_here: bool) -> None:
    """Number and name of a step, and the threads at work, with one piece per unit."""
    middle, ink = MIDDLES[step.name], style.INK if board.shows(step.name) else style.QUIET
    if is_here:
        place = STARTS[step.name] + 0.02, 0.03, step.width - 0.04, BOTTOM
        look = {"edgecolor": style.INK, "linewidth": 1.4, "zorder": -1}
        drawing.box(board.axes, *place, HERE, **look)
    add(board.axes, Circle((middle, 0.18), 0.11, facecolor=ink))
    write(board.axes, middle, 0.18, number, va="center_baseline", color=style.PAPER)
    look = {"color": ink, "weight": "bold", "linespacing": 1.05, "va": "top"}
    write(board.axes, middle, 0.35, step.words, **look)
    if board.shows(step.name):
        threads = threads_of(run, step.name)
        _crew(board, step, threads, run)
        write(board.axes, middle, 1.18, len(threads))


def _crew(board: Board, step: Step, threads: list[int], run: Run) -> None:
    """The thread block: one line per warp, dark where a thread is at work."""
    unit = {"1": 1, "group": run.geometry.THREAD_GROUP_SIZE, "warp": WARP_SIZE}[step.unit]
    wide = min(step.width - 0.1, 0.7)
    lane = wide / WARP_SIZE
    for first in range(0, run.geometry.NUM_THREADS, unit):
        warp, column = divmod(first, WARP_SIZE)
        corner = MIDDLES[step.name] - wide / 2 + column * lane, 0.78 + 0.07 * warp
        at_work = not {*range(first, first + unit)}.isdisjoint(threads)
        size = unit * lane - (0.5 * lane if unit > 1 else 0), 0.055
        color = style.INK if at_work else "#DDDDDD"
        drawing.box(board.axes, *corner, *size, color, edgecolor="none", antialiased=False)


def barriers_of_steps(run: Run) -> dict[str, int]:
    """How often warp 0 meets a barrier in each step, or between it and the next."""
    trace = run.trace.only(warp=0)
    weights = writes_of_logits(trace, first=False)
    sums = between(run.trace, ROWS_DONE).only(space="shared")  # warp 0 isn't the first
    starts = {  # of the next step: the first instruction that belongs to it
        "query": trace.only(array="k_cache"),
        "maximum": between(trace, SCORES_DONE),
        "sum": weights,
        "weights": between(trace, WEIGHTS_DONE),
        "values": sums,
        "warps": trace.only(array="tmp_out" if run.geometry.PARTITION_SIZE else "out"),
    }
    firsts = [int(part.records.instruction.min(initial=NEVER)) for part in starts.values()]
    barriers = np.unique(trace.only(kind="barrier").records.instruction)
    counts = np.bincount(np.searchsorted(firsts, barriers), minlength=len(firsts))
    return dict(zip(starts, counts.tolist(), strict=False))


def _barriers(board: Board, run: Run) -> None:
    """Each where it is met, with how often."""
    places = {"query": STARTS["scores"], "maximum": MIDDLES["maximum"], "sum": MIDDLES["sum"]}
    places |= {"weights": STARTS["values"], "values": STARTS["warps"], "warps": MIDDLES["warps"]}
    met = barriers_of_steps(run)
    shown = [(x, met[step]) for step, x in places.items() if board.shows(step) and met[step]]
    for x, count in shown:
        board.axes.plot((x, x), (BANDS_TOP, BOTTOM + 0.06), color=style.QUIET, lw=2.5, zorder=1)
        write(board.axes, x, BOTTOM + 0.2, count)
    count = sum(count for _, count in shown)  # of the whole kernel, if all of it is shown
    words = drawing.plural(count, "barrier") if board.shows(NAMES[-1]) else "barriers"
    write(board.axes, 0, BOTTOM + 0.2, words, "left")


def _blocks(run: Run) -> str:
    """The physical blocks of the sequence; of v2, of the first partition."""
    g, tokens = run.geometry, int(run["seq_lens"][0])
    count = -(-min(tokens, g.PARTITION_SIZE or tokens) // g.BLOCK_SIZE)
    blocks = run["block_tables"][0, :count].tolist()
    return f"block{'s' * (count > 1)} {', '.join(map(str, blocks))}"


def _query_and_key(board: Board, run: Run) -> None:
    """q to shared memory; then one thread's part of q times k."""
    q, k = STARTS["query"], STARTS["scores"]
    board.box("query", q + 0.08, GLOBAL, 0.5, "q", style.Q)
    board.path("query", (q + 0.33, GLOBAL + HIGH), (q + 0.33, SHARED))
    board.box("query", q + 0.08, SHARED, 0.88, "q_vecs", style.Q)
    board.box("scores", k + 0.05, GLOBAL, 0.85, f"K\n{_blocks(run)}", style.K)
    board.path("scores", (k + 0.5, GLOBAL + 0.4), (k + 0.5, 3.2))
    board.box("scores", k + 0.22, 3.2, 0.58, "k_vecs", style.K)
    board.path("scores", (k + 0.5, 3.45), (k + 0.5, REGISTERS))
    level = REGISTERS + HIGH / 2
    board.path("scores", (k + 0.12, SHARED + HIGH), (k + 0.12, level), (k + 0.22, level))
    board.box("scores", k + 0.22, REGISTERS, 0.58, "qk", style.lighter(style.LOGITS, 0.75))
    board.path("scores", (k + 0.8, level - 0.07), (k + 0.88, level - 0.07), (k + 0.88, 2.57))


def _softmax(board: Board) -> None:
    """The shared array logits from scores to weights; qk_max and exp_sum pass through red_smem."""
    k, m, s, w, v = (STARTS[name] for name in ("scores", "maximum", "sum", "weights", "values"))
    shades = [style.lighter(style.LOGITS, amount) for amount in (0.75, 0.4, 0)]
    board.box("scores", k + 0.72, SHARED, s - k - 0.72, "logits: scores", shades[0])
    board.box("sum", s, SHARED, w - s, "exp", shades[1])
    board.box("weights", w, SHARED, v + 0.6 - w, "weights", shades[2])
    level = REGISTERS + HIGH / 2
    board.path("maximum", (k + 0.8, level + 0.05), (m + 0.08, level + 0.05))
    board.path("sum", (m + 0.78, level), (s + 0.06, level), (s + 0.06, SHARED + HIGH))
    board.path("sum", (s + 0.15, SHARED + HIGH), (s + 0.15, level), (s + 0.22, level))
    board.path("weights", (s + 0.92, level), (w + 0.1, level), (w + 0.1, SHARED + HIGH))
    for step, x, name in (("maximum", m + 0.08, "qk_max"), ("sum", s + 0.22, "exp_sum")):
        board.box(step, x, RED_SMEM, 0.7, "red_smem", GREY)
        board.box(step, x, REGISTERS, 0.7, name, GREY)
        board.path(step, (x + 0.16, REGISTERS), (x + 0.16, RED_SMEM + HIGH))
        board.path(step, (x + 0.54, RED_SMEM + HIGH), (x + 0.54, REGISTERS))


def _values(board: Board, run: Run) -> None:
    """One lane's part of the weights times V; the sums over lanes and warps; out."""
    v, r, o = STARTS["values"], STARTS["warps"], STARTS["output"]
    board.box("values", v + 0.03, GLOBAL, 0.79, f"V\n{_blocks(run)}", style.V)
    board.path("values", (v + 0.2, SHARED + HIGH), (v + 0.2, REGISTERS))
    board.path("values", (v + 0.7, GLOBAL + 0.4), (v + 0.7, REGISTERS))
    wide = 0.72 if not board.shows("warps") else o + 0.5 - v - 0.1
    board.box("values", v + 0.1, REGISTERS, wide, "accs", PALE_OUT)
    board.box("warps", r + 0.03, SHARED, 0.76, "out_smem", PALE_OUT)
    if board.shows("warps"):
        write(board.axes, r + 0.41, SHARED - 0.13, "= logits")
    board.path("warps", (r + 0.22, REGISTERS), (r + 0.22, SHARED + HIGH))
    board.path("warps", (r + 0.6, SHARED + HIGH), (r + 0.6, REGISTERS))
    board.path("output", (o + 0.3, REGISTERS), (o + 0.3, GLOBAL + HIGH))
    if not run.geometry.PARTITION_SIZE:
        board.box("output", o + 0.05, GLOBAL, 0.5, "out", style.OUT)


def _partitions(board: Board) -> None:
    """What a thread block leaves for the reduce kernel."""
    m, s, w, o = (STARTS[name] for name in ("maximum", "sum", "weights", "output"))
    level = REGISTERS + HIGH / 2 + 0.07
    board.path("weights", (s + 0.92, level), (w + 0.5, level), (w + 0.5, GLOBAL + 0.4))
    low, right = REGISTERS + HIGH + 0.07, w + 0.62
    start = m + 0.43, REGISTERS + HIGH  # below qk_max
    board.path("weights", start, (start[0], low), (right, low), (right, GLOBAL + 0.4))
    board.box("weights", w - 0.16, GLOBAL, 0.84, "exp_sums\nmax_logits", GREY)
    board.box("output", o, GLOBAL, 0.6, "tmp_out", PALE_OUT)
