"""Pictures of traces show what the trace says, and nothing that was written down."""

import ast
import inspect

import numpy as np
import pytest
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from numba import cuda, float32
from simt_kernels.example import EXAMPLES

from pa_tutorial.simt import Trace, global_traffic, launch
from pa_tutorial.simt.gpus import H100
from pa_tutorial.viz import gpu_figures, style, traces, warps
from pa_tutorial.viz.traces import draw_thread_map, draw_walk, first_elements, threads_of_elements
from pa_tutorial.viz.warps import draw_banks, draw_reduction, summed_lanes

ALL_LANES = 0xFFFFFFFF


def texts(figure: Figure) -> list[str]:
    return [t.get_text() for axes in figure.axes for t in axes.texts]


def texts_of(axes) -> list[str]:
    return [text.get_text() for text in axes.texts]


@cuda.jit
def read_strided(out, a, stride):
    tile = cuda.shared.array(33 * 32, float32)
    for i in range(cuda.threadIdx.x, tile.size, cuda.blockDim.x):
        tile[i] = a[i]
    cuda.syncthreads()
    out[cuda.threadIdx.x] = tile[stride * cuda.threadIdx.x]


def first_column(size: int, padding: int) -> Trace:
    """A column of a tile with rows of size + padding words."""
    a, stride = np.zeros(33 * 32, np.float32), size + padding
    trace = launch(read_strided, 1, size, np.zeros(size, np.float32), a, stride, trace=0).trace
    return trace.only(array="tile", kind="read")


@cuda.jit
def sum_of_groups(out, group, rounds):
    for _ in range(rounds):
        x, mask = float32(1), group // 2
        while mask >= 1:
            x += cuda.shfl_xor_sync(ALL_LANES, x, mask)
            mask //= 2
        out[cuda.threadIdx.x] = x


def group_trace(group: int, rounds: int = 1) -> Trace:
    return launch(sum_of_groups, 1, 32, np.zeros(32, np.float32), group, rounds, trace=0).trace


@pytest.mark.parametrize("module", [traces, warps])
def test_no_number_stands_in_an_index(module) -> None:
    """Only -1, 0 and 1, for the last, the first and the second part of something."""
    for node in ast.walk(ast.parse(inspect.getsource(module))):
        if isinstance(node, ast.Subscript):
            numbers = [n.value for n in ast.walk(node.slice) if isinstance(n, ast.Constant)]
            assert all(n in (0, 1) for n in numbers if isinstance(n, int)), ast.unparse(node)


# The walk --------------------------------------------------------------------------------------


def rectangles(axes) -> list[tuple[float, float, float]]:
    return sorted((p.get_x(), p.get_y(), p.get_width()) for p in axes.patches)


def test_the_walk_shows_the_bytes_and_the_sectors_of_each_request() -> None:
    @cuda.jit
    def kernel(out, a):
        t = cuda.threadIdx.x
        out[t] = a[t + 6] + a[t]

    a = np.zeros(64, np.float32)
    trace = launch(kernel, 1, 4, np.zeros(4, np.float32), a, trace=0).trace.only(array="a")
    (axes,) = draw_walk({"": trace}, "title").axes
    sectors = [(0, 0.1, 32), (32, 0.1, 32), (0, 1.1, 32)]
    wanted = [(24 + 4 * t, 0.1, 4) for t in range(4)] + [(4 * t, 1.1, 4) for t in range(4)]
    assert rectangles(axes) == sorted(sectors + wanted)
    assert axes.get_title(loc="left").endswith("3 sectors, 2 at best")


@pytest.mark.parametrize("view", [slice(3, None), slice(None, None, -2)], ids=["late", "back"])
def test_the_walk_of_a_view_shows_its_sectors(view: slice) -> None:
    @cuda.jit
    def kernel(out, a):
        out[cuda.threadIdx.x] = a[cuda.threadIdx.x]

    a = np.zeros(64, np.float32)[view]
    trace = launch(kernel, 1, 32, np.zeros(32, np.float32), a, trace=0).trace.only(array="a")
    (axes,) = draw_walk({"": trace}, "title").axes
    sectors = [x for x, _, width in rectangles(axes) if width == 32]
    assert len(sectors) == global_traffic(trace).total("sectors")
    low, high = axes.get_xlim()
    assert all(low <= x < x + width <= high for x, _, width in rectangles(axes))


# Who touches what ------------------------------------------------------------------------------


def test_the_map_names_every_thread_of_every_element() -> None:
    @cuda.jit
    def kernel(out, a):
        t = cuda.threadIdx.x
        out[t] = a[1, t % 3] + a[0, t // 40]

    a = np.zeros((2, 4), np.float32)
    trace = launch(kernel, 1, 42, np.zeros(42, np.float32), a, trace=0).trace.only(array="a")
    threads = threads_of_elements(trace)
    assert threads[0] == list(range(40))
    assert threads[1] == [40, 41]
    assert threads[4] == [t for t in range(42) if t % 3 == 0]
    assert set(threads) == {0, 1, 4, 5, 6}
    assert first_elements(trace) == {4, 5, 6}
    shown = texts(draw_thread_map({"": trace}, "title"))
    assert {"0–39", "40–41", "0, …"} < set(shown)


def test_outlines_colours_and_brackets_of_a_map() -> None:
    @cuda.jit
    def kernel(out, a):
        t = cuda.threadIdx.x
        out[t] = a[t // 8, t % 8]

    trace = launch(kernel, 1, 16, np.zeros(16, np.float32), np.zeros((2, 8), np.float32), trace=0)
    options = {"group": 4, "first_request": True, "sectors": True, "run_name": "run"}
    (axes,) = draw_thread_map({"": trace.trace.only(array="a")}, "title", **options).axes
    cells = [p for p in axes.patches if p.get_fill()]
    colours = [p.get_facecolor() for p in cells]
    assert len(set(colours)) == 2, "neighbours among the groups differ"
    assert colours[0] == colours[3] != colours[4]
    outlines = [p for p in axes.patches if not p.get_fill()]
    assert len(outlines) == 16, "one request reads all"
    assert [round(line.get_xdata()[0] - 0.15, 2) for line in axes.lines] == [0, 8.3]
    assert texts_of(axes).count("sector") == 2
    assert {"run 0", "run 1"} < set(texts_of(axes))


def test_sectors_of_rows_that_are_not_whole_sectors_are_refused() -> None:
    @cuda.jit
    def kernel(out, a):
        out[cuda.threadIdx.x] = a[cuda.threadIdx.x]

    trace = launch(kernel, 1, 9, np.zeros(9), np.zeros(9), trace=0).trace.only(array="a")
    with pytest.raises(ValueError, match="the rows of a are not whole sectors"):
        draw_thread_map({"": trace}, "title", sectors=True)


def test_a_vector_touches_several_elements() -> None:
    example = EXAMPLES["vectors_of_4_8_and_16_bytes"]
    report = launch(example.kernel, 1, 32, *example.draw(), trace=0)
    threads = threads_of_elements(report.trace.only("load4"))
    assert threads == {i: [i // 4] for i in range(128)}


# Shuffles --------------------------------------------------------------------------------------


@pytest.mark.parametrize("group", [2, 4, 8, 16, 32])
def test_a_group_has_heard_of_itself_and_of_nobody_else(group: int) -> None:
    states = summed_lanes(group_trace(group))
    assert len(states) == 1 + np.log2(group)
    for lane, lanes in states[-1].items():
        first = lane // group * group
        assert lanes == frozenset(range(first, first + group))
    figure = draw_reduction(group_trace(group))
    assert f"every lane holds the sum of {group} lanes" in figure.get_suptitle()


def test_a_shuffle_down_leaves_the_whole_sum_in_the_first_lane_only() -> None:
    @cuda.jit
    def kernel(out):
        x = float32(1)
        for delta in (16, 8, 4, 2, 1):
            x += cuda.shfl_down_sync(ALL_LANES, x, delta)
        out[cuda.threadIdx.x] = x

    trace = launch(kernel, 1, 32, np.zeros(32, np.float32), trace=0).trace
    assert summed_lanes(trace)[-1][0] == frozenset(range(32))
    assert summed_lanes(trace)[-1][31] == frozenset({31})
    assert draw_reduction(trace).get_suptitle().endswith("lane 0 holds the sum of 32 lanes")


def test_a_warp_without_shuffles_is_refused() -> None:
    with pytest.raises(ValueError, match="0 warps of sum_of_groups shuffle; a reduction"):
        draw_reduction(group_trace(1))


def test_shuffles_of_several_reductions_are_refused() -> None:
    with pytest.raises(ValueError, match="lane 0 adds a value twice: several reductions"):
        draw_reduction(group_trace(8, rounds=2))

    @cuda.jit
    def kernel(out):
        out[cuda.threadIdx.x] = cuda.shfl_xor_sync(ALL_LANES, float32(1), 1)

    trace = launch(kernel, 1, 64, np.zeros(64, np.float32), trace=0).trace
    with pytest.raises(ValueError, match="2 warps of kernel shuffle"):
        draw_reduction(trace)
    assert len(summed_lanes(trace.only(warp=1))) == 2


def test_arrows_lead_from_the_lane_that_is_read() -> None:
    @cuda.jit
    def kernel(out):
        out[cuda.threadIdx.x] = cuda.shfl_up_sync(ALL_LANES, float32(1), 1)

    trace = launch(kernel, 1, 32, np.zeros(32, np.float32), trace=0).trace
    (axes,) = draw_reduction(trace).axes
    arrows = [p for p in axes.patches if hasattr(p, "get_arrowstyle")]
    ends = {(tail[0] - 0.5, head[0] - 0.5) for tail, head in (a._posA_posB for a in arrows)}
    assert ends == {(0, 0), *((lane - 1, lane) for lane in range(1, 32))}
    assert all(a._posA_posB[0][1] < a._posA_posB[1][1] for a in arrows), "downwards"


# Banks -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("size", "padding", "tallest"), [(32, 0, 32), (32, 1, 1), (16, 0, 8)])
def test_the_bank_map_counts_the_words_of_each_bank(size: int, padding: int, tallest: int) -> None:
    above, below = draw_banks({"": first_column(size, padding)}, "title").axes
    heights = [bar.get_height() for bar in below.patches]
    assert len(heights) == 32
    assert (max(heights), sum(heights)) == (tallest, size)
    coloured = {p.get_xy() for p in above.patches if p.get_facecolor() == to_rgba(style.K)}
    words = [t * (size + padding) for t in range(size)]
    assert coloured == {(word % 32, word // 32) for word in words}


def test_a_bank_map_is_of_one_request() -> None:
    a = np.zeros(33 * 32, np.float32)
    trace = launch(read_strided, 1, 32, np.zeros(32, np.float32), a, 1, trace=0).trace
    with pytest.raises(ValueError, match="writes: 33 requests; a bank map shows one"):
        draw_banks({"writes": trace.only(array="tile", kind="write")}, "title")


# The GPU ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("threads", "registers", "shared", "expected"),
    [
        # NVIDIA's occupancy calculator, compute capability 9.0
        (128, 32, 0, 16),  # 64 warps
        (128, 56, 0, 9),  # 36 warps: 1,792 registers each, 9 in each quarter
        (128, 64, 0, 8),
        (64, 40, 0, 24),  # 48 warps: 12 in each quarter; without quarters there would be 25
        (128, 33, 0, 12),  # 1,056 registers of a warp are rounded to 1,280
        (128, 32, 32_329, 6),  # with what CUDA keeps, rounded to 33,408 bytes
        (128, 128, 0, 4),
        (128, 255, 0, 2),
        (1024, 64, 0, 1),
        (32, 16, 0, 32),  # thread blocks
        (128, 32, 48 * 1024, 4),  # 49 KB each with what CUDA keeps
        (128, 32, 227 * 1024, 1),
    ],
)
def test_resident_blocks(threads: int, registers: int, shared: int, expected: int) -> None:
    assert min(H100.resident_blocks(threads, registers, shared).values()) == expected


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
    shown = " ".join(
        texts(gpu_figures.draw_gpu())
        + [a.get_title(loc="left") for a in gpu_figures.draw_gpu().axes]
    )
    for size in (
        "132",
        "65,536",
        "255",
        "256 KB",
        "228 KB",
        "227 KB",
        "50 MB",
        "80 GB",
        "3.35 TB/s",
    ):
        assert size in shown
