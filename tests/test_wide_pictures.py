"""What the figures of notebook 11 show is what the kernel did, and what the compiler said."""

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest
import torch
from test_kernel_pictures import FLOAT32, LARGE_BLOCKS, texts_of

from pa_tutorial.kernels.changed import changed
from pa_tutorial.kernels.evidence import rows
from pa_tutorial.kernels.launch import prepare_v1
from pa_tutorial.kernels.loads import element_loads
from pa_tutorial.kernels.paged_attention import paged_attention
from pa_tutorial.kernels.vectors import vector_loads
from pa_tutorial.simt import different_sectors, global_traffic
from pa_tutorial.viz import registers, wide
from pa_tutorial.viz.kernel_runs import REFERENCE, Run, run_v1, watched
from pa_tutorial.walk.cases import WORKED_EXAMPLE
from pa_tutorial.walk.problem import DecodeProblem

by_problem = pytest.mark.parametrize(
    "problem",
    [WORKED_EXAMPLE, REFERENCE, FLOAT32, LARGE_BLOCKS],
    ids=("worked_example", "reference", "float32", "blocks_of_32"),
)


def both(problem: DecodeProblem) -> tuple[Run, Run]:
    return run_v1(problem), run_v1(problem, loads=vector_loads)


@by_problem
def test_both_ways_give_one_output(problem: DecodeProblem) -> None:
    elements, vectors = both(problem)
    assert torch.equal(elements.ready.out, vectors.ready.out)


@by_problem
@pytest.mark.parametrize("array", ["k_cache", "v_cache"])
def test_the_first_bytes_are_read_by_the_threads_of_the_formula(
    problem: DecodeProblem, array: str
) -> None:
    """The first bytes of K are piece 0 of the first tokens, those of V the first rows."""
    elements, vectors = both(problem)
    g = elements.geometry
    size = g.VEC_SIZE if array == "k_cache" else g.V_VEC_SIZE
    num_bytes = size * g.ITEMSIZE
    starts = range(0, wide.SHOWN, num_bytes)
    assert sorted(wide.first_reads(vectors, array), key=lambda read: read.byte) == [
        wide.Read(0, thread, start, num_bytes) for thread, start in enumerate(starts)
    ]
    assert sorted(wide.first_reads(elements, array), key=lambda read: read.byte) == [
        wide.Read(e, thread, start + e * g.ITEMSIZE, g.ITEMSIZE)
        for thread, start in enumerate(starts)
        for e in range(size)
    ]


@pytest.mark.parametrize("loads", [element_loads, vector_loads])
def test_the_picture_shows_what_was_read(loads: Callable) -> None:
    """Not what should have been read: here all tokens of a block are read as token 0."""
    ready = prepare_v1(**vars(REFERENCE.paged("vllm")), loads=loads)
    wrong = changed(paged_attention, "+ physical_block_offset * X", "+ 0 * X")
    run = watched(dataclasses.replace(ready, kernel=wrong(ready.geometry, loads)))
    bytes_read = {read.byte for read in wide.first_reads(run, "k_cache")}
    assert max(bytes_read) < 16
    right = run_v1(REFERENCE, loads=loads)
    assert {read.byte for read in wide.first_reads(right, "k_cache")} > bytes_read


@by_problem
def test_vecs_ask_for_each_sector_once(problem: DecodeProblem) -> None:
    elements, vectors = map(wide.accesses, both(problem))
    for name in ("q", "K", "V"):
        sectors = different_sectors(elements[name])
        assert different_sectors(vectors[name]) == sectors
        assert global_traffic(vectors[name]).total("sectors") == sectors


@by_problem
def test_a_vec_is_one_request(problem: DecodeProblem) -> None:
    elements, vectors = map(wide.accesses, both(problem))
    g = run_v1(problem).geometry
    sizes = {"q": g.VEC_SIZE, "K": g.VEC_SIZE, "V": g.V_VEC_SIZE, "q_vecs": g.VEC_SIZE}
    for name, size in {**sizes, "weights": 4}.items():
        assert elements[name].num_instructions == size * vectors[name].num_instructions
        assert set(vectors[name].records.num_bytes) == {size * records_bytes(elements[name])}


def records_bytes(trace: object) -> int:
    (size,) = np.unique(trace.records.num_bytes)
    return int(size)


@by_problem
def test_the_weights_are_those_of_whole_blocks(problem: DecodeProblem) -> None:
    """Other reads of logits, for the sum, are not among them."""
    run = run_v1(problem)
    blocks = -(-problem.seq_lens[0] // run.geometry.BLOCK_SIZE)
    reads = wide.reads_of_weights(run.trace)
    assert reads.num_instructions == blocks * run.geometry.V_VEC_SIZE
    assert set(np.bincount(reads.records.instruction)[np.unique(reads.records.instruction)]) == {32}


def test_the_bars_are_the_compilers_numbers() -> None:
    versions = rows()
    texts = texts_of(registers.draw_compiled(versions))
    for row in versions:
        fits = registers.resident(row.registers)
        assert f"{row.registers} ({fits} thread blocks)" in texts
    fewer = dataclasses.replace(versions[-1], registers=40, global_loads={16: 7})
    changed_texts = texts_of(registers.draw_compiled([*versions[:-1], fewer]))
    assert {"40 (12 thread blocks)", "7 × 16"} <= {*changed_texts} - {*texts}
