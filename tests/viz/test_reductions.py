"""What the pictures of load_query, block_max and add_warps show is what a run did: ours, another
that is right, and one that is wrong."""

import linecache
from collections.abc import Callable
from dataclasses import replace

import pytest
from matplotlib.figure import Figure
from numba import cuda, float32

from pa_tutorial.checks.cases import WORKED_EXAMPLE
from pa_tutorial.checks.problem import DecodeProblem
from pa_tutorial.kernels.cuda_backends import PagedBackend, v1_backend
from pa_tutorial.kernels.sources import Source, source_of
from pa_tutorial.kernels.v1 import (
    FLT_MAX,
    HEAD_SIZE,
    NUM_ROWS_PER_THREAD,
    NUM_WARPS,
    THREAD_GROUP_SIZE,
    VEC_SIZE,
    warp_max,
)
from pa_tutorial.viz.kernel_runs import run_v1
from pa_tutorial.viz.poster import barriers_of_steps
from pa_tutorial.viz.query_and_key import draw_shares
from pa_tutorial.viz.reductions import draw_add_warps, draw_maximum, rounded
from pa_tutorial.viz.style import svg
from simt.gpus import WARP_SIZE
from tests.simt.microscope.pictures import require_readable, texts_of

# Right, in other ways than ours -------------------------------------------------------------------


@cuda.jit(device=True)
def block_max(red_smem, value, smallest_mask, thread_idx):  # warp 0 finds it, and tells the others
    value = warp_max(value, WARP_SIZE // 2, smallest_mask)
    if thread_idx % WARP_SIZE == 0:
        red_smem[NUM_WARPS - 1 - thread_idx // WARP_SIZE] = value
    cuda.syncthreads()
    if thread_idx < WARP_SIZE:
        value = float32(-FLT_MAX)
        for warp in range(NUM_WARPS):
            value = max(value, red_smem[warp])
    cuda.syncthreads()
    if thread_idx == 0:
        red_smem[0] = value
    cuda.syncthreads()
    return red_smem[0]


@cuda.jit(device=True)
def add_warps(accs, out_smem, thread_idx):  # one warp after another leaves its rows to warp 0
    warp_idx, lane = thread_idx // WARP_SIZE, thread_idx % WARP_SIZE
    for sender in range(1, NUM_WARPS):
        cuda.syncthreads()
        for j in range(NUM_ROWS_PER_THREAD):
            if warp_idx == sender:
                out_smem[HEAD_SIZE - 1 - lane] = accs[j]
        cuda.syncthreads()
        for j in range(NUM_ROWS_PER_THREAD):
            if warp_idx == 0:
                accs[j] = out_smem[HEAD_SIZE - 1 - lane] + accs[j]


@cuda.jit(device=True)
def load_query(q_vecs, q, thread_idx):  # the last threads copy, an element each
    element = cuda.blockDim.x - 1 - thread_idx
    if element < HEAD_SIZE:
        vec = element // VEC_SIZE
        share, place = vec % THREAD_GROUP_SIZE, vec // THREAD_GROUP_SIZE
        q_vecs[share, place, element % VEC_SIZE] = q[element]
    cuda.syncthreads()


@pytest.mark.rest(keep=["*(96, 32)"])
@pytest.mark.parametrize("sizes", [(32, 8), (128, 16), (96, 32)], ids=str)
@pytest.mark.parametrize("draw", [draw_maximum, draw_add_warps, draw_shares])
def test_every_word_can_be_read_and_a_run_is_drawn_the_same_twice(
    draw: Callable[[DecodeProblem], Figure], sizes: tuple[int, int]
) -> None:
    problem = replace(WORKED_EXAMPLE, head_size=sizes[0], block_size=sizes[1])
    figure = draw(problem)
    require_readable(figure)
    assert svg(figure) == svg(draw(problem))


def test_the_numbers_are_those_of_the_run() -> None:
    probed = v1_backend.prepare(WORKED_EXAMPLE.paged("vllm")).probe()
    scores, accs = probed["qk"][0, 0].tolist(), probed["accs"][0, 0].tolist()
    texts = texts_of(draw_maximum(WORKED_EXAMPLE))
    start = texts.index("warp 0, before") + 1
    assert texts[start : start + 8] == [rounded(score) for score in scores[:8]]
    start = texts.index("warp 1, before") + 1
    assert texts[start : start + 3] == [rounded(score) for score in scores[8:]]
    assert texts_of(draw_add_warps(WORKED_EXAMPLE))[-4:-1] == [rounded(row) for row in accs[:3]]


def test_another_way_that_is_right_is_drawn_as_it_ran() -> None:
    largest = rounded(WORKED_EXAMPLE.expected()["qk"][0, 0].max())
    figure = draw_maximum(WORKED_EXAMPLE, v1_backend.with_functions(v1=[block_max]))
    assert f"the largest score, {largest}" in figure.get_suptitle()
    assert "in warp 0:" in texts_of(figure)
    assert "in every warp:" in texts_of(draw_maximum(WORKED_EXAMPLE))
    run = run_v1(WORKED_EXAMPLE, backend=v1_backend.with_functions(v1=[block_max]))
    assert barriers_of_steps(run)["maximum"] == 3

    figure = draw_add_warps(WORKED_EXAMPLE, v1_backend.with_functions(v1=[add_warps]))
    assert figure.get_suptitle().startswith("In 3 rounds, warp 0 gets the sums of all 4 warps")
    texts = texts_of(figure)
    assert (texts.count("out_smem"), texts.count("barrier"), texts.count("31")) == (3, 7, 4)

    figure = draw_shares(WORKED_EXAMPLE, v1_backend.with_functions(v1=[load_query]))
    assert figure.get_suptitle() == draw_shares(WORKED_EXAMPLE).get_suptitle()
    assert "28, 29" in texts_of(figure)  # thread groups


WRONG = {  # function, what in it -> what instead; what the title says
    "maximum": (
        (draw_maximum, "block_max", "smallest_mask)", "2 * smallest_mask)"),
        "The largest score is 0.68, but in this run thread 0 ends with 0.51",
    ),
    "warps": (
        (draw_add_warps, "add_warps", "accs[j] +=", "accs[j] ="),
        "The sums of all warps for row 0 are 0.40 together, but in this run warp 0 ends with 0.00",
    ),
    "shares": (
        (draw_shares, "load_query", "+ i * THREAD_GROUP_SIZE", "* NUM_VECS_PER_THREAD + i"),
        "The deal puts vec 4 into place 1 of share 0; this run puts vec 1 there",
    ),
}


def changed(function: str, right: str, wrong: str) -> PagedBackend:
    """v1 with a mistake in one of its functions."""
    text, file = source_of(vars(v1_backend.namespace())[function]).text, f"<{function}: {wrong}>"
    text = text.replace(right, wrong)
    linecache.cache[file] = len(text), None, text.splitlines(keepends=True), file
    return v1_backend.with_functions(v1=[Source(text, file, 1)])


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_function_is_not_drawn_as_right(name: str) -> None:
    (draw, function, right, wrong), title = WRONG[name]
    assert draw(WORKED_EXAMPLE, changed(function, right, wrong)).get_suptitle() == title
