"""Which threads are at work in each part of the first paged kernel, by its trace."""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from pa_tutorial.kernels.intermediates import SCORES_DONE, SUM_DONE
from pa_tutorial.kernels.launch import prepare_naive
from pa_tutorial.simt import Trace
from pa_tutorial.simt.races import WARP_SIZE
from pa_tutorial.viz import style
from pa_tutorial.viz.first_kernel import ONE_HEAD
from pa_tutorial.viz.kernel_runs import between
from pa_tutorial.walk.cases import WORKED_EXAMPLE
from pa_tutorial.walk.problem import DecodeProblem


def threads_at_work(trace: Trace) -> dict[str, set[int]]:
    """Part of the kernel -> threads of thread block 0 that read or write there."""
    trace = trace.only(block=0)
    parts = {
        "scores": trace.only(array="k_cache"),
        "maximum and sum": between(trace, SCORES_DONE, SUM_DONE),
        "output": between(trace, SUM_DONE),
    }
    return {name: set(part.threads.tolist()) for name, part in parts.items()}


@style.styled
def draw_at_work(problems: Sequence[DecodeProblem]) -> Figure:
    """For each part of the kernel, the threads that have something to do; a panel a problem."""
    found = []
    for problem in problems:
        ready = prepare_naive(**vars(problem.paged("vllm")))
        found.append((problem, threads_at_work(ready.simulate(trace=0).trace)))
    num_threads = ready.geometry.NUM_THREADS
    few = len(found[0][1]["scores"])
    figure, panels = style.new_figure(
        f"{few} of {num_threads} threads compute scores; then all {num_threads} do the same sums",
        0.35 + 1.35 * len(problems),
        nrows=len(problems),
        squeeze=False,
    )
    colors = dict(zip(found[0][1], (style.K, style.LOGITS, style.V), strict=True))
    for axes, (problem, parts) in zip(panels[:, 0], found, strict=True):
        heading = f"{problem.seq_lens[0]} tokens, HEAD_SIZE {problem.head_size}"
        style.bare(axes, num_threads * 1.22, len(colors))
        axes.set_aspect("auto")
        axes.set_ylim(len(colors) + 0.1, -1.6)
        axes.set_xlim(-0.24 * num_threads, num_threads * 1.22)
        axes.text(0, -1.15, heading, va="center")
        for warp in range(num_threads // WARP_SIZE):
            x = warp * (WARP_SIZE + 2) + WARP_SIZE / 2
            axes.text(x, -0.35, f"warp {warp}", ha="center", va="center", color=style.QUIET)
        for row, (name, color) in enumerate(colors.items()):
            _strip(axes, row, color, parts[name], num_threads)
            axes.text(-2, row + 0.5, name, ha="right", va="center", color=style.QUIET)
            words = f"{len(parts[name])} of {num_threads}"
            axes.text(num_threads + 9, row + 0.5, words, ha="left", va="center")
    return figure


def _strip(axes: Axes, row: int, color: str, threads: set[int], num_threads: int) -> None:
    """All threads side by side, with a gap after each warp; coloured are those at work."""
    for first in range(0, num_threads, WARP_SIZE):
        x = first + 2 * (first // WARP_SIZE)
        at_work = len(threads & set(range(first, first + WARP_SIZE)))
        for width, face in ((WARP_SIZE, style.EMPTY), (at_work, color)):
            style.add(axes, Rectangle((x, row + 0.12), width, 0.76, facecolor=face, linewidth=0))


def draw_worked_and_one_head() -> Figure:
    return draw_at_work([WORKED_EXAMPLE, ONE_HEAD])
