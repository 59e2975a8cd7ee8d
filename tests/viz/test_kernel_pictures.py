"""What the figures of notebooks 08 to 14 show is what the kernels did."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from numba import cuda, float32

from pa_tutorial.checks.cases import WORKED_EXAMPLE
from pa_tutorial.checks.problem import DecodeProblem
from pa_tutorial.kernels.cuda_backends import v1_backend, v2_backend
from pa_tutorial.kernels.v1 import (
    NUM_THREADS,
    NUM_VECS_PER_THREAD,
    THREAD_GROUP_SIZE,
    VEC_SIZE,
    X,
    block_sum,
    to_float,
)
from pa_tutorial.paging.layouts import VllmLayout
from pa_tutorial.viz import first_kernel, key_bytes, nested, partitions, poster, query_and_key, rows
from pa_tutorial.viz.barriers import without_barrier
from pa_tutorial.viz.kernel_runs import REFERENCE, of_block, places, run_v1
from simt import launch
from simt.gpus import WARP_SIZE
from tests.simt.helpers import kernel
from tests.simt.microscope.pictures import require_readable, texts_of

rest = pytest.mark.rest("test_notebooks.py draws the reference")


def test_terms_rows_and_weights_are_those_of_the_geometry() -> None:
    """The vecs of K that a lane reads, in order; its rows and tokens of V; its weights."""
    problem, run = REFERENCE, run_v1(REFERENCE, head=1)
    g, num_blocks = run.geometry, len(run["k_cache"])
    layout = VllmLayout(num_blocks, problem.num_kv_heads, g.HEAD_SIZE, g.BLOCK_SIZE, problem.dtype)
    for block_idx, block in enumerate(problem.block_tables()[0][0][:6]):
        first = block_idx % g.NUM_WARPS * WARP_SIZE
        reads = of_block(run, "v_cache", block)
        *_, row, offset = places(reads)
        for lane in range(WARP_SIZE):
            vecs = query_and_key.vecs_read(run, first + lane, block)
            token = lane // g.THREAD_GROUP_SIZE
            elements = g.head_elements(lane % g.THREAD_GROUP_SIZE)[:: g.VEC_SIZE]
            assert [sum(query_and_key.key_terms(run, vec).values()) for vec in vecs] == [
                layout.k_element(block, run.kv_head, token, element) for element in elements
            ]
            mine = reads.records.lane == lane
            assert tuple(np.unique(row[mine])) == g.value_rows(lane)
            assert tuple(np.unique(offset[mine])) == g.value_tokens(lane)
            assert tuple(rows.weights_read(run, block, lane)) == g.value_tokens(lane)


# With a reader's functions ------------------------------------------------------------------------


@cuda.jit(device=True)
def load_key(k_vecs, k_block, physical_block_offset, thread_idx):
    for i in range(NUM_VECS_PER_THREAD):
        j = NUM_VECS_PER_THREAD - 1 - i  # the last vec first
        first = (thread_idx % THREAD_GROUP_SIZE + j * THREAD_GROUP_SIZE) * VEC_SIZE
        for e in range(VEC_SIZE):
            k_vecs[j, e] = to_float(k_block[first // X, physical_block_offset, first % X + e])


@cuda.jit(device=True)
def scores_to_weights(logits, red_smem, qk_max, num_tokens, thread_idx):
    exp_sum = float32(0)
    for i in range(NUM_THREADS - 1 - thread_idx, num_tokens, NUM_THREADS):  # the last threads
        exp_sum += math.exp(logits[i] - qk_max)
    exp_sum = block_sum(red_smem, exp_sum, thread_idx)
    for i in range(NUM_THREADS - 1 - thread_idx, num_tokens, NUM_THREADS):
        logits[i] = math.exp(logits[i] - qk_max) / (exp_sum + float32(1e-6))
    cuda.syncthreads()
    return exp_sum


MINE = v1_backend.with_functions(v1=[load_key, scores_to_weights])
MINE_OF_V2 = v2_backend.with_functions(v1=[scores_to_weights], v1_vector=[load_key])


def test_a_picture_shows_the_loads_of_the_readers_function() -> None:
    found = []
    for backend in (v1_backend, MINE):
        run = run_v1(WORKED_EXAMPLE, backend=backend)
        figure = query_and_key.draw_key_address(run, 5, WORKED_EXAMPLE.tables[0][0])
        texts = texts_of(figure)  # after each vec that the thread reads comes the name of its piece
        found.append([texts[texts.index(f"piece {piece}") - 1] for piece in range(4)])
    assert found == [["0", "1", "2", "3"], ["3", "2", "1", "0"]]


@pytest.mark.parametrize("step", ["sum", "weights"])
def test_the_poster_shows_the_threads_of_the_readers_function(step: str) -> None:
    of_v1, of_v2 = run_v1(WORKED_EXAMPLE, backend=MINE), poster.run_of_partition(MINE_OF_V2)
    for run, tokens in (of_v1, 11), (of_v2, 8):
        assert poster.threads_of(run, step) == [*range(128 - tokens, 128)]


def test_every_picture_of_a_readers_kernel_can_be_read() -> None:
    run = run_v1(WORKED_EXAMPLE, backend=MINE)
    for figure in (
        poster.draw_poster(backend=MINE),
        poster.draw_poster(backend=MINE_OF_V2),
        rows.draw_whole_kernel(run),
        rows.draw_value_rows(run, WORKED_EXAMPLE.tables[0][0], lane=0),
        query_and_key.draw_blocks_of_warps(run),
        query_and_key.draw_query_banks(run.geometry, MINE),
        key_bytes.draw_key_bytes(WORKED_EXAMPLE, 4, 8, MINE_OF_V2),
        partitions.draw_split(WORKED_EXAMPLE, 8, backend=MINE_OF_V2),
    ):
        require_readable(figure)


def test_without_a_barrier_the_order_of_two_warps_decides() -> None:
    """Warp 1 leaves its rows where warp 0 has yet to read those of the round before."""
    step = WORKED_EXAMPLE.paged("vllm")
    right = v1_backend.prepare(step).run()
    broken = without_barrier(v1_backend, "add_warps", 1)
    for order in ([0, 1, 2, 3], [2, 0, 3, 1], [1, 0, 2, 3], [3, 1, 2, 0]):
        launch = broken.prepare(step)
        launch.simulate(order=order, checks=())
        assert torch.equal(launch.out, right) == (order.index(0) < order.index(1))
    with pytest.raises(ValueError, match="number is 2; it must be less than the number"):
        without_barrier(v1_backend, "add_warps", 2)


# With other sizes, and with a kernel that is wrong ------------------------------------------------

# HEAD_SIZE, BLOCK_SIZE: those of the text, and those that it invites a reader to try
SIZES = pytest.mark.parametrize("sizes", [(32, 8), (64, 16), (96, 32)], ids=str)


def of_sizes(sizes: tuple[int, int], dtype: torch.dtype = torch.float16) -> DecodeProblem:
    return replace(WORKED_EXAMPLE, head_size=sizes[0], block_size=sizes[1], dtype=dtype)


def addresses(problem: DecodeProblem, block: str = "table[t // size]") -> Figure:
    """The picture of a kernel whose thread t reads the K of token t, from this block."""
    size, step = problem.block_size, problem.paged("vllm")
    x, table = step.k_cache.shape[-1], step.block_tables[0]
    body = f"""
        if t < 11:
            for d in range({problem.head_size}):
                out[t] += k_cache[{block}, 0, d // {x}, t % size, d % {x}]
    """
    arguments = torch.zeros(128), step.k_cache, table, size
    trace = launch(kernel("out, k_cache, table, size", body), 1, 128, *arguments, trace=0).trace
    return first_kernel.draw_addresses(trace, table.tolist(), marked=(0, 9))


@pytest.mark.rest(keep=["(96, 32)"])
@SIZES
def test_words_can_be_read_with_a_readers_sizes(sizes: tuple[int, int]) -> None:
    run = run_v1(problem := of_sizes(sizes))
    require_readable(addresses(problem))
    require_readable(query_and_key.draw_key_address(run, 5, problem.tables[0][0]))
    require_readable(query_and_key.draw_score(problem))
    require_readable(rows.draw_whole_kernel(run))


@rest
def test_values_are_read_as_what_their_bits_mean() -> None:
    run = run_v1(problem := of_sizes((32, 8), torch.bfloat16))
    found = [rows.value_of(run, 0, row) for row in range(32)]
    assert found == problem.inputs().values[0][0, 0].tolist()


@rest
def test_a_thread_that_reads_another_block_than_its_own_is_told() -> None:
    right, wrong = (addresses(of_sizes((32, 8)), block) for block in ("table[t // size]", "3"))
    assert right.get_suptitle().endswith("logical block 1; the block table says block 2")
    assert wrong.get_suptitle().endswith("says block 2,\nbut it reads block 3, offset 1")


@rest
@SIZES
@pytest.mark.parametrize("notebook", nested.ABOUT)
def test_every_word_of_the_ladder_can_be_read(notebook: str, sizes: tuple[int, int]) -> None:
    partition_size = sizes[1] * (notebook == "14")
    require_readable(nested.draw_ladder(notebook, of_sizes(sizes), partition_size))
