"""Pictures of traces show what the trace says, and nothing that was written down."""

import ast
import inspect
from types import ModuleType

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_rgba
from numba import cuda, float32
from pictures import require_readable, texts_of
from simt_kernels.example import EXAMPLES

from pa_tutorial.simt import Trace, launch
from pa_tutorial.simt.gpus import H100
from pa_tutorial.viz import style, traces, warps
from pa_tutorial.viz.traces import draw_thread_map, draw_walk, threads_of_elements
from pa_tutorial.viz.warps import draw_banks, draw_gpu, draw_reduction, summed_lanes

ALL_LANES = 0xFFFFFFFF
WORDS = {"group": 4, "row_name": "row", "run_name": "run"}


@cuda.jit
def read_strided(out, a, stride):
    tile = cuda.shared.array(33 * 32, float32)
    for i in range(cuda.threadIdx.x, tile.size, cuda.blockDim.x):
        tile[i] = a[i]
    cuda.syncthreads()
    out[cuda.threadIdx.x] = tile[stride * cuda.threadIdx.x]


@cuda.jit
def read_one(out, a):
    out[cuda.threadIdx.x] = a[cuda.threadIdx.x]


@cuda.jit
def read_rows(out, a):
    t = cuda.threadIdx.x
    out[t] = a[t // 8, t % 8] + a[1, 0]


@cuda.jit
def sum_of_groups(out, group, rounds):
    for _ in range(rounds):
        x, mask = float32(1), group // 2
        while mask >= 1:
            x += cuda.shfl_xor_sync(ALL_LANES, x, mask)
            mask //= 2
        out[cuda.threadIdx.x] = x


@cuda.jit
def sum_downwards(out, first):
    x, delta = float32(1), first
    while delta >= 1:
        x += cuda.shfl_down_sync(ALL_LANES, x, delta)
        delta //= 2
    out[cuda.threadIdx.x] = x


def trace_of(kernel: object, threads: int, *arguments: object) -> Trace:
    return launch(kernel, 1, threads, np.zeros(threads, np.float32), *arguments, trace=0).trace


@pytest.mark.parametrize("module", [traces, warps])
def test_no_number_stands_in_an_index(module: ModuleType) -> None:
    """Only -1, 0 and 1, for the last, the first and the second part of something."""
    for node in ast.walk(ast.parse(inspect.getsource(module))):
        if isinstance(node, ast.Subscript):
            numbers = [n.value for n in ast.walk(node.slice) if isinstance(n, ast.Constant)]
            assert all(n in (0, 1) for n in numbers if isinstance(n, int)), ast.unparse(node)


def rectangles(axes: Axes) -> list[tuple[float, float, float]]:
    return sorted((p.get_x(), p.get_y(), p.get_width()) for p in axes.patches)


def test_the_walk_shows_the_bytes_and_the_sectors_of_each_request() -> None:
    @cuda.jit
    def kernel(out, a):
        t = cuda.threadIdx.x
        out[t] = a[t + 6] + a[t]

    trace = trace_of(kernel, 4, np.zeros(64, np.float32)).only(array="a")
    (axes,) = draw_walk({"": trace}, "title").axes
    sectors = [(0, 0.1, 32), (32, 0.1, 32), (0, 1.1, 32)]
    wanted = [(24 + 4 * t, 0.1, 4) for t in range(4)] + [(4 * t, 1.1, 4) for t in range(4)]
    assert rectangles(axes) == sorted(sectors + wanted)
    assert axes.get_title(loc="left").endswith("3 sectors, 2 at best")


def test_the_map_names_every_thread_of_every_element() -> None:
    @cuda.jit
    def kernel(out, a):
        t = cuda.threadIdx.x
        out[t] = a[0, t // 40] + a[1, t % 3]

    trace = trace_of(kernel, 42, np.zeros((2, 8), np.float32)).only(array="a")
    threads = threads_of_elements(trace)
    assert set(threads) == {0, 1, 8, 9, 10}
    assert threads[0] == list(range(40))
    assert threads[8] == [t for t in range(42) if t % 3 == 0]
    shown = texts_of(draw_thread_map({"": trace}, "title", **WORDS))
    assert {"0–31", "run 1", "row 0"} <= {*shown}  # warp 0 is the first to read
    assert not {"0, …", "40–41"} & {*shown}
    example = EXAMPLES["vectors_of_4_8_and_16_bytes"]
    vectors = launch(example.kernel, 1, 32, *example.draw(), trace=0).trace.only("load4")
    assert threads_of_elements(vectors) == {i: [i // 4] for i in range(128)}


def test_colours_and_brackets_of_a_map() -> None:
    trace = trace_of(read_rows, 16, np.zeros((2, 8), np.float32)).only(array="a")
    figure = draw_thread_map({"": trace}, "title", **WORDS)
    (axes,) = figure.axes
    colours = [p.get_facecolor() for p in axes.patches]
    assert len(set(colours)) == 2, "neighbours among the groups differ"
    assert colours[0] == colours[3] != colours[4]
    assert [round(line.get_xdata()[0] - 0.15, 2) for line in axes.lines] == [0, 8.3]
    assert texts_of(figure).count("sector") == 2
    require_readable(figure)


@pytest.mark.parametrize("group", [2, 4, 8, 16, 32])
def test_a_group_has_heard_of_itself_and_of_nobody_else(group: int) -> None:
    trace = trace_of(sum_of_groups, 32, group, 1)
    states = summed_lanes(trace)
    assert len(states) == 1 + np.log2(group)
    for lane, lanes in states[-1].items():
        first = lane // group * group
        assert lanes == frozenset(range(first, first + group))
    title = draw_reduction(trace).get_suptitle()
    assert f"every lane holds the sum of {group} lanes" in title


def test_a_shuffle_down_leaves_the_whole_sum_in_the_first_lane_only() -> None:
    trace = trace_of(sum_downwards, 32, 16)
    assert summed_lanes(trace)[-1][0] == frozenset(range(32))
    assert summed_lanes(trace)[-1][31] == frozenset({31})
    assert draw_reduction(trace).get_suptitle().endswith("lane 0 holds the sum of 32 lanes")


@pytest.mark.parametrize(("size", "padding", "tallest"), [(32, 0, 32), (32, 1, 1), (16, 0, 8)])
def test_the_bank_map_counts_the_words_of_each_bank(size: int, padding: int, tallest: int) -> None:
    """Of a column of a tile with rows of size + padding words."""
    trace = trace_of(read_strided, size, np.zeros(33 * 32, np.float32), size + padding)
    above, below = draw_banks({"": trace.only(array="tile", kind="read")}, "title").axes
    heights = [bar.get_height() for bar in below.patches]
    assert (len(heights), max(heights), sum(heights)) == (32, tallest, size)
    coloured = {p.get_xy() for p in above.patches if p.get_facecolor() == to_rgba(style.K)}
    words = [t * (size + padding) for t in range(size)]
    assert coloured == {(word % 32, word // 32) for word in words}


def test_what_a_picture_cannot_show_is_refused() -> None:
    nine = trace_of(read_one, 9, np.zeros(9)).only(array="a")
    with pytest.raises(ValueError, match="the rows of a are not whole sectors"):
        draw_thread_map({"": nine}, "title", **WORDS)
    with pytest.raises(ValueError, match="0 warps of sum_of_groups shuffle; a reduction"):
        draw_reduction(trace_of(sum_of_groups, 32, 1, 1))
    with pytest.raises(ValueError, match="lane 0 adds a value twice: several reductions"):
        draw_reduction(trace_of(sum_of_groups, 32, 8, 2))
    two = trace_of(sum_of_groups, 64, 2, 1)
    with pytest.raises(ValueError, match="2 warps of sum_of_groups shuffle"):
        draw_reduction(two)
    assert len(summed_lanes(two.only(warp=1))) == 2
    writes = trace_of(read_strided, 32, np.zeros(33 * 32, np.float32), 1)
    with pytest.raises(ValueError, match="writes: 33 requests; a bank map shows one"):
        draw_banks({"writes": writes.only(array="tile", kind="write")}, "title")


# The GPU -------------------------------------------------------------------------------------

# threads, registers, shared bytes -> resident thread blocks: NVIDIA's occupancy calculator, 9.0
OCCUPANCY = {
    (128, 32, 0): 16,  # 64 warps
    (128, 56, 0): 9,  # 36 warps: 1,792 registers each, 9 in each quarter
    (64, 40, 0): 24,  # 48 warps: 12 in each quarter; without quarters there would be 25
    (128, 33, 0): 12,  # 1,056 registers of a warp are rounded to 1,280
    (128, 32, 32_329): 6,  # with what CUDA keeps, rounded to 33,408 bytes
    (128, 255, 0): 2,
    (1024, 64, 0): 1,
    (32, 16, 0): 32,  # thread blocks
    (128, 32, 48 * 1024): 4,  # 49 KB each with what CUDA keeps
    (128, 32, 227 * 1024): 1,
}


@pytest.mark.parametrize(("sizes", "expected"), OCCUPANCY.items())
def test_resident_blocks(sizes: tuple[int, int, int], expected: int) -> None:
    assert min(H100.resident_blocks(*sizes).values()) == expected


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ((0, 32, 0), "num_threads is 0; 1 to 1024"),
        ((128, 256, 0), "registers is 256; a thread has 1 to 255"),
        ((128, 32, 300_000), "shared_bytes is 300000; a thread block has at most 232448"),
        ((1024, 255, 0), "1024 threads of 255 registers do not fit"),
    ],
)
def test_what_cannot_be_launched_is_refused(sizes: tuple[int, int, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        H100.resident_blocks(*sizes)


def test_the_figure_of_the_gpu_has_its_sizes() -> None:
    figure = draw_gpu()
    shown = " ".join(texts_of(figure) + [axes.get_title(loc="left") for axes in figure.axes])
    sizes = ["132", "65,536", "255", "256 KB", "228 KB", "227 KB", "50 MB", "80 GB", "3.35 TB/s"]
    assert [size for size in sizes if size not in shown] == []
    require_readable(figure)
