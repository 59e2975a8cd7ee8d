"""Pictures of traces show what the trace says, and nothing that was written down."""

import numpy as np
import pytest
from matplotlib.colors import to_rgba

from pa_tutorial.exercises import EXERCISES, Exercise, find
from pa_tutorial.viz import style
from pa_tutorial.viz.threads import draw_threads
from pa_tutorial.viz.traces import draw_thread_map
from pa_tutorial.viz.warps import draw_banks, draw_reduction, summed_lanes
from simt import Trace, launch
from simt.gpus import H100
from tests.simt.helpers import kernel, zeros
from tests.simt.microscope.pictures import require_readable, texts_of

WORDS = {"group": 4, "row_name": "row", "run_name": "run"}


def trace_of(parameters: str, body: str, threads: int, *arguments: object) -> Trace:
    """Of a kernel that has an element of `out` for each thread; then come its parameters."""
    made = kernel(f"out, {parameters}", body)
    return launch(made, 1, threads, zeros(threads), *arguments, trace=0).trace


def reads_of_a(body: str, threads: int, *shape: int) -> Trace:
    return trace_of("a", f"out[t] = {body}", threads, zeros(*shape)).only(array="a")


def of_tile(kind: str, threads: int, stride: int) -> Trace:
    """A tile in shared memory, written by all and read by columns."""
    body = """
        tile = cuda.shared.array(33 * 32, float32)
        for i in range(t, tile.size, cuda.blockDim.x):
            tile[i] = a[i]
        cuda.syncthreads()
        out[t] = tile[stride * t]
    """
    trace = trace_of("a, stride", body, threads, zeros(33 * 32), stride)
    return trace.only(array="tile", kind=kind)


def sum_of_groups(threads: int, *masks: int) -> Trace:
    steps = [f"x += cuda.shfl_xor_sync(0xFFFFFFFF, x, {mask})" for mask in masks]
    return trace_of("x", "\n".join([*steps, "out[t] = x"]), threads, np.float32(1))


def test_a_shuffle_down_leaves_the_whole_sum_in_the_first_lane_only() -> None:
    steps = [f"x += cuda.shfl_down_sync(0xFFFFFFFF, x, {delta})" for delta in (16, 8, 4, 2, 1)]
    trace = trace_of("x", "\n".join([*steps, "out[t] = x"]), 32, np.float32(1))
    assert [len(summed_lanes(trace)[-1][lane]) for lane in (0, 31)] == [32, 1]
    assert draw_reduction(trace).get_suptitle().endswith("lane 0 has heard from 32 lanes")


def test_what_a_picture_cannot_show_is_refused() -> None:
    nine, writes = {"": reads_of_a("a[t]", 9, 9)}, {"writes": of_tile("write", 32, 1)}
    for number, draw in {
        "sectors": lambda: draw_thread_map(nine, "", **WORDS),
        "0 warps": lambda: draw_reduction(sum_of_groups(32)),
        "twice": lambda: draw_reduction(sum_of_groups(32, 1, 1)),
        "2 warps": lambda: draw_reduction(sum_of_groups(64, 2)),
        "33 instructions": lambda: draw_banks(writes, ""),
    }.items():
        with pytest.raises(ValueError, match=number):
            draw()


PUZZLES = {  # answer -> title, lines drawn over the dotted ones, red lines, red frames
    "out[t] = a[index[t]]": ("takes 6 threads, 12 loads and 6 stores", 18, 0, 0),
    "out[t] = a[t]": ("5 of 6 elements of out are wrong or missing", 12, 0, 0),
    "out[0] = a[t]": ("race: thread 5 of thread block 0 writes out[0], which", 12, 2, 2),
    "out[t] = a[t + 3]": ("memory: thread 5 of thread block 0 reads a[8]", 11, 0, 0),
    "out[t] = b[t]": ("b is not defined", 0, 0, 0),
    "return": ("has written nothing yet", 0, 0, 0),
}


@pytest.mark.parametrize("answer", PUZZLES)
def test_a_picture_shows_what_the_readers_kernel_did(answer: str) -> None:
    exercise, (title, lines, red_lines, frames) = find("look_up"), PUZZLES[answer]
    made = kernel("out, a, index", answer)
    figure = draw_threads(exercise.drawn(), made, exercise.solution)
    assert title in figure.get_suptitle().replace("\n", " ")
    (axes,) = figure.axes
    solid = [line for line in axes.lines if line.get_linestyle() == "-"]
    red = [line for line in solid if to_rgba(line.get_color()) == to_rgba(style.NAN)]
    framed = [p for p in axes.patches if not p.get_fill() and p.get_linewidth() == 2]
    assert (len(solid), len(red), len(framed)) == (lines, red_lines, frames)
    assert len(axes.lines) - len(solid) == 18
    assert ("a[8]" in texts_of(figure)) == ("t + 3" in answer)


@pytest.mark.parametrize(("line", "barriers"), [("cuda.syncthreads()", 3), ("pass", 0)])
def test_what_is_handed_on_through_shared_memory_begins_a_row(line: str, barriers: int) -> None:
    exercise = find("sum_in_shared")
    answer = exercise.answer(exercise.source.replace("cuda.syncthreads()", line))
    shown = texts_of(draw_threads(exercise.drawn(), answer, exercise.solution))
    assert (shown.count("threads"), shown.count("barrier")) == (5, barriers)


def test_a_barrier_is_drawn_over_the_threads_that_wait_at_it() -> None:
    exercise = find("sum_in_shared")
    in_branch = exercise.wrong[1].made_in(exercise.source)
    figure = draw_threads(exercise.drawn(), exercise.answer(in_branch), exercise.solution)
    barriers = [len(lines.get_segments()) for lines in figure.axes[0].collections]
    assert barriers == [4, 2, 1]


DRAWN = [exercise for exercise in EXERCISES.values() if exercise.drawn]


@pytest.mark.rest(keep=["double_each", "sum_in_shared"])
@pytest.mark.parametrize("exercise", [pytest.param(e, id=e.name) for e in DRAWN])
def test_every_word_of_a_puzzle_can_be_read(exercise: Exercise) -> None:
    task, stub = exercise.drawn(), exercise.answer(exercise.stub)
    answers = [exercise.answer(wrong.made_in(exercise.source)) for wrong in exercise.wrong]
    for answer in (stub, exercise.solution, *answers):
        require_readable(draw_threads(task, answer, exercise.solution))


# threads, registers, shared bytes -> resident thread blocks (NVIDIA's occupancy calculator, 9.0)
OCCUPANCY = {
    (128, 32, 0): 16,  # 64 warps
    (128, 56, 0): 9,  # 36 warps: 1,792 registers each, 9 in each quarter
    (64, 40, 0): 24,  # 12 warps in each quarter; without quarters there would be 25
    (128, 33, 0): 12,  # 1,056 registers of a warp are rounded to 1,280
    (128, 32, 32_329): 6,  # with what CUDA keeps, rounded to 33,408 bytes
    (32, 16, 0): 32,  # thread blocks
}
IMPOSSIBLE = {
    (0, 32, 0): "num_threads",
    (128, 256, 0): "registers",
    (128, 32, 300_000): "shared_bytes",
    (1024, 255, 0): "do not fit",
}


def test_how_many_thread_blocks_are_resident() -> None:
    found = {sizes: min(H100.resident_blocks(*sizes).values()) for sizes in OCCUPANCY}
    assert found == OCCUPANCY
    for sizes, name in IMPOSSIBLE.items():
        with pytest.raises(ValueError, match=name):
            H100.resident_blocks(*sizes)
