"""Pictures of traces show what the trace says, and nothing that was written down."""

import numpy as np
import pytest
from matplotlib.colors import to_rgba

from pa_tutorial.exercises import EXERCISES, Exercise, find
from pa_tutorial.simt import Trace, launch
from pa_tutorial.simt.gpus import H100
from pa_tutorial.viz import style
from pa_tutorial.viz.threads import draw_threads
from pa_tutorial.viz.traces import draw_thread_map, draw_walk, threads_of_elements
from pa_tutorial.viz.warps import draw_banks, draw_reduction, summed_lanes
from tests.simt_helpers import kernel, run, zeros
from tests.simt_kernels.example import EXAMPLES
from tests.viz.pictures import require_readable, texts_of

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


def test_the_walk_shows_the_bytes_and_the_sectors_of_each_transaction() -> None:
    (axes,) = draw_walk({"": reads_of_a("a[t + 6] + a[t]", 4, 64)}, "title").axes
    sectors = [(0, 0.1, 32), (32, 0.1, 32), (0, 1.1, 32)]
    wanted = [(24 + 4 * t, 0.1, 4) for t in range(4)] + [(4 * t, 1.1, 4) for t in range(4)]
    drawn = [(p.get_x(), p.get_y(), p.get_width()) for p in axes.patches]
    assert sorted(drawn) == sorted(sectors + wanted)
    assert axes.get_title(loc="left").endswith("3 sectors, 2 at best")


def test_the_map_names_every_thread_of_every_element() -> None:
    trace = reads_of_a("a[0, t // 40] + a[1, t % 3]", 42, 2, 8)
    threads = threads_of_elements(trace)
    assert set(threads) == {0, 1, 8, 9, 10}
    assert threads[0] == list(range(40))
    assert threads[8] == [t for t in range(42) if t % 3 == 0]
    shown = {*texts_of(draw_thread_map({"": trace}, "title", **WORDS))}
    assert {"0–31", "run 1", "row 0"} <= shown  # warp 0 is the first to read
    assert not {"0, …", "40–41"} & shown
    vectors = run(EXAMPLES["vectors_of_4_8_and_16_bytes"], trace=0).trace.only("load4", warp=0)
    assert threads_of_elements(vectors) == {i: [i // 4] for i in range(128)}


@pytest.mark.parametrize("group", [2, 8, 32])
def test_a_group_has_heard_of_itself_and_of_nobody_else(group: int) -> None:
    trace = sum_of_groups(32, *(mask for mask in (16, 8, 4, 2, 1) if mask < group))
    states = summed_lanes(trace)
    assert len(states) == 1 + np.log2(group)
    firsts = {lane: lane // group * group for lane in range(32)}
    assert states[-1] == {n: frozenset(range(at, at + group)) for n, at in firsts.items()}
    title = draw_reduction(trace).get_suptitle()
    assert f"can bring every lane the sum of {group} lanes" in title


def test_a_shuffle_down_leaves_the_whole_sum_in_the_first_lane_only() -> None:
    steps = [f"x += cuda.shfl_down_sync(0xFFFFFFFF, x, {delta})" for delta in (16, 8, 4, 2, 1)]
    trace = trace_of("x", "\n".join([*steps, "out[t] = x"]), 32, np.float32(1))
    assert [len(summed_lanes(trace)[-1][lane]) for lane in (0, 31)] == [32, 1]
    assert draw_reduction(trace).get_suptitle().endswith("can bring lane 0 the sum of 32 lanes")


@pytest.mark.parametrize(("size", "padding", "tallest"), [(32, 0, 32), (32, 1, 1), (16, 0, 8)])
def test_the_bank_map_counts_the_words_of_each_bank(size: int, padding: int, tallest: int) -> None:
    """Of a column of a tile with rows of size + padding words."""
    above, below = draw_banks({"": of_tile("read", size, size + padding)}, "title").axes
    heights = [bar.get_height() for bar in below.patches]
    assert (len(heights), max(heights), sum(heights)) == (32, tallest, size)
    coloured = {p.get_xy() for p in above.patches if p.get_facecolor() == to_rgba(style.K)}
    words = [t * (size + padding) for t in range(size)]
    assert coloured == {(word % 32, word // 32) for word in words}


def test_what_a_picture_cannot_show_is_refused() -> None:
    nine, writes = {"": reads_of_a("a[t]", 9, 9)}, {"writes": of_tile("write", 32, 1)}
    for message, draw in {
        "the rows of a are not whole sectors": lambda: draw_thread_map(nine, "", **WORDS),
        "0 warps of kernel shuffle; a reduction": lambda: draw_reduction(sum_of_groups(32)),
        "lane 0 adds a value twice: several": lambda: draw_reduction(sum_of_groups(32, 1, 1)),
        "2 warps of kernel shuffle": lambda: draw_reduction(sum_of_groups(64, 2)),
        "writes: 33 instructions; a bank map shows one": lambda: draw_banks(writes, ""),
    }.items():
        with pytest.raises(ValueError, match=message):
            draw()


PUZZLES = {  # answer -> title, lines drawn over the dotted ones, red lines, red frames
    "out[t] = a[index[t]]": ("6 threads, 12 loads, 6 stores", 18, 0, 0),
    "out[t] = a[t]": ("5 of 6 elements of out wrong or missing", 12, 0, 0),
    "out[0] = a[t]": ("race: thread 5 of thread block 0 writes out[0], which", 12, 2, 2),
    "out[t] = a[t + 3]": ("memory: thread 5 of thread block 0 asks for a[8]", 11, 0, 0),
    "out[t] = b[t]": ("b is not defined", 0, 0, 0),
    "return": ("nothing written yet", 0, 0, 0),
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


DRAWN = [exercise for exercise in EXERCISES.values() if exercise.drawn]


@pytest.mark.parametrize("exercise", [pytest.param(e, id=e.name) for e in DRAWN])
def test_every_word_of_a_puzzle_can_be_read(exercise: Exercise) -> None:
    task, stub = exercise.drawn(), exercise.answer(exercise.stub)
    answers = [exercise.answer(exercise.wrong_source(wrong)) for wrong in exercise.wrong]
    for answer in (stub, exercise.solution, *answers):
        require_readable(draw_threads(task, answer, exercise.solution))


# threads, registers, shared bytes -> resident thread blocks (NVIDIA's occupancy calculator, 9.0),
# or what is wrong with them
OCCUPANCY = {
    (128, 32, 0): 16,  # 64 warps
    (128, 56, 0): 9,  # 36 warps: 1,792 registers each, 9 in each quarter
    (64, 40, 0): 24,  # 12 warps in each quarter; without quarters there would be 25
    (128, 33, 0): 12,  # 1,056 registers of a warp are rounded to 1,280
    (128, 32, 32_329): 6,  # with what CUDA keeps, rounded to 33,408 bytes
    (32, 16, 0): 32,  # thread blocks
    (0, 32, 0): "num_threads is 0; 1 to 1024",
    (128, 256, 0): "registers is 256; a thread has 1 to 255",
    (128, 32, 300_000): "shared_bytes is 300000; a thread block has at most 232448",
    (1024, 255, 0): "1024 threads of 255 registers do not fit",
}


@pytest.mark.parametrize(("sizes", "expected"), OCCUPANCY.items())
def test_how_many_thread_blocks_are_resident(sizes: tuple[int, ...], expected: int | str) -> None:
    if isinstance(expected, int):
        assert min(H100.resident_blocks(*sizes).values()) == expected
        return
    with pytest.raises(ValueError, match=expected):
        H100.resident_blocks(*sizes)
