"""What the figures of notebooks 08 to 13 show is what the kernels did."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure

from pa_tutorial.checks.cases import WORKED_EXAMPLE
from pa_tutorial.checks.problem import DecodeProblem
from pa_tutorial.kernels.intermediates import SCORES_DONE
from pa_tutorial.viz import first_kernel, key_bytes, nested, query_and_key, rows
from pa_tutorial.viz.kernel_runs import REFERENCE, run_v1, values_of_block
from simt import launch
from simt.gpus import WARP_SIZE
from tests.simt.helpers import kernel
from tests.simt.microscope.pictures import require_readable, texts_of

FLOAT32 = replace(REFERENCE, dtype=torch.float32, head_size=64, block_size=8)
LARGE_BLOCKS = replace(REFERENCE, head_size=64, block_size=32)
by_problem = pytest.mark.parametrize(
    "problem",
    [WORKED_EXAMPLE, REFERENCE, FLOAT32, LARGE_BLOCKS],
    ids=("worked_example", "reference", "float32", "blocks_of_32"),
)
rest = pytest.mark.rest("test_notebooks.py draws the reference")


@pytest.mark.rest(keep=["reference"])
@by_problem
def test_terms_rows_and_weights_are_those_of_the_trace(problem: DecodeProblem) -> None:
    """The five terms of an address of K; a lane's rows and tokens of V; its weights."""
    run = run_v1(problem, head=1)
    g = run.geometry
    for block_idx, block in enumerate(problem.block_tables()[0][0][:6]):
        first = block_idx % g.NUM_WARPS * WARP_SIZE
        reads = values_of_block(run, block)
        row, vec = reads.the_array().indices(reads.records.address)
        for lane in range(WARP_SIZE):
            terms = [
                sum(query_and_key.key_terms(run, first + lane, block, j).values())
                for j in range(g.NUM_VECS_PER_THREAD)
            ]
            assert query_and_key.key_offsets(run, first + lane, block) == terms
            mine = reads.records.lane == lane
            assert tuple(np.unique(row[mine])) == g.value_rows(lane)
            assert {*vec[mine] * g.V_VEC_SIZE} == {g.value_tokens(lane)[0]}
            assert tuple(rows.weights_read(run, block, lane)) == g.value_tokens(lane)


# With other sizes, and with a kernel that is wrong -----------------------------------------------

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
    require_readable(query_and_key.draw_qk(run.snapshot(SCORES_DONE), 0, 1.0))
    require_readable(rows.draw_whole_kernel(run))


@rest
def test_values_are_read_as_what_their_bits_mean() -> None:
    run = run_v1(problem := of_sizes((32, 8), torch.bfloat16))
    found = [rows.value_of(run, 0, row) for row in range(32)]
    assert found == problem.inputs().values[0][0, 0].tolist()


@rest
@SIZES
def test_the_score_in_the_picture_is_what_the_threads_have(sizes: tuple[int, int]) -> None:
    run = run_v1(of_sizes(sizes))
    looked, size = run.snapshot(SCORES_DONE), run.geometry.THREAD_GROUP_SIZE
    qk, sums = looked["qk"].copy(), query_and_key.partial_sums(looked, 0)
    for held, is_one in (
        (qk[:size] / run["scale"], True),
        (sums[-1] + np.arange(1, size + 1), False),
    ):
        qk[:size] = held
        snapshot = replace(looked, values=looked.values | {"qk": qk.copy()})
        figure = query_and_key.draw_qk(snapshot, 0, run["scale"])
        shown = f"{run['scale'] * held[0]:.3f}"
        expected = (f" {sizes[0] // size} products", shown) if is_one else ("in this run",)
        assert [words for words in expected if words not in figure.get_suptitle()] == []
        assert any(text.endswith(f"= {shown}") for text in texts_of(figure))


@rest
def test_a_thread_that_reads_another_block_than_its_own_is_told() -> None:
    right, wrong = (addresses(of_sizes((32, 8)), block) for block in ("table[t // size]", "3"))
    assert right.get_suptitle().endswith("logical block 1; the block table says block 2")
    assert wrong.get_suptitle().endswith("says block 2,\nbut it reads block 3, offset 1")


@rest
@SIZES
@pytest.mark.parametrize("notebook", nested.ABOUT)
def test_every_word_of_the_ladder_can_be_read(notebook: str, sizes: tuple[int, int]) -> None:
    partition_size = sizes[1] * (notebook == "13")
    require_readable(nested.draw_ladder(notebook, of_sizes(sizes), partition_size))


@rest
@SIZES
def test_only_whole_vecs_use_all_bytes_that_a_load_moves(sizes: tuple[int, int]) -> None:
    figure = key_bytes.draw_key_bytes(of_sizes(sizes), 4, partition_size=sizes[1])
    require_readable(figure)
    naive, *_, by_vec, v2 = (axes.get_title("left") for axes in figure.axes)
    assert figure.get_suptitle().endswith("100 %")
    assert "6 sectors for 22 bytes; 8 loads move each" in naive
    for title in (by_vec, v2):
        assert f"{sizes[1] // 2} sectors for {16 * sizes[1]} bytes; no other" in title
