"""The first reads that the figure of notebook 11 shows are those of the kernel."""

import dataclasses
from collections.abc import Callable

import pytest
from test_kernel_pictures import FLOAT32, LARGE_BLOCKS

from pa_tutorial.kernels.changed import changed
from pa_tutorial.kernels.launch import prepare_v1
from pa_tutorial.kernels.loads import element_loads
from pa_tutorial.kernels.paged_attention import paged_attention
from pa_tutorial.kernels.vectors import vector_loads
from pa_tutorial.viz import wide
from pa_tutorial.viz.kernel_runs import REFERENCE, Run, run_v1, watched
from pa_tutorial.walk.cases import WORKED_EXAMPLE
from pa_tutorial.walk.problem import DecodeProblem


def first_reads(run: Run, array: str) -> list[wide.Read]:
    start = run.start_of_block(int(run["block_tables"][0, 0])) * run.geometry.ITEMSIZE
    return wide.first_reads(run.trace, array, start)


@pytest.mark.parametrize(
    "problem",
    [WORKED_EXAMPLE, REFERENCE, FLOAT32, LARGE_BLOCKS],
    ids=("worked_example", "reference", "float32", "blocks_of_32"),
)
@pytest.mark.parametrize("array", ["k_cache", "v_cache"])
def test_the_first_bytes_are_read_by_the_threads_of_the_formula(
    problem: DecodeProblem, array: str
) -> None:
    """The first bytes of K are piece 0 of the first tokens, those of V the first rows."""
    elements, vectors = run_v1(problem), run_v1(problem, loads=vector_loads)
    g = elements.geometry
    size = g.VEC_SIZE if array == "k_cache" else g.V_VEC_SIZE
    num_bytes = size * g.ITEMSIZE
    starts = range(0, wide.SHOWN, num_bytes)
    assert sorted(first_reads(vectors, array), key=lambda read: read.byte) == [
        wide.Read(0, thread, start, num_bytes) for thread, start in enumerate(starts)
    ]
    assert sorted(first_reads(elements, array), key=lambda read: read.byte) == [
        wide.Read(e, thread, start + e * g.ITEMSIZE, g.ITEMSIZE)
        for thread, start in enumerate(starts)
        for e in range(size)
    ]


@pytest.mark.parametrize("loads", [element_loads, vector_loads])
def test_the_picture_shows_what_was_read(loads: Callable) -> None:
    """Not what should have been read: here all tokens of a block are read as token 0."""
    prepared = prepare_v1(**vars(REFERENCE.paged("vllm")), loads=loads)
    wrong = changed(paged_attention, "+ physical_block_offset * X", "+ 0 * X")
    run = watched(dataclasses.replace(prepared, kernel=wrong(prepared.geometry, loads)))
    bytes_read = {read.byte for read in first_reads(run, "k_cache")}
    assert max(bytes_read) < 16
    right = run_v1(REFERENCE, loads=loads)
    assert {read.byte for read in first_reads(right, "k_cache")} > bytes_read
