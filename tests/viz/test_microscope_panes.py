"""The panes of the microscope: each element is where the layout says, and has its name."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from numba import cuda

from pa_tutorial.kernels.launch import prepare_naive, prepare_v1, prepare_v2
from pa_tutorial.paging.layouts import VllmLayout
from pa_tutorial.simt import launch
from pa_tutorial.viz.kernel_runs import REFERENCE
from pa_tutorial.viz.microscope import Axis, Pane, microscope
from pa_tutorial.viz.microscope.paged_panes import paged_panes


def labels_of(pane: Pane, place: tuple[int, ...]) -> dict[str, int]:
    """Of the element at (tile, row, column places …), by hand."""
    tile, *at = place
    axes = (*pane.rows, *pane.columns)
    values = {**pane.tiles[tile].values, **{a.name: n for a, n in zip(axes, at, strict=True)}}
    return {
        name: sum(values[t] * f for t, f in terms.items()) for name, terms in pane.labels.items()
    }


def element_of(pane: Pane, place: tuple[int, ...]) -> int:
    tile, *at = place
    axes = (*pane.rows, *pane.columns)
    return pane.tiles[tile].start + sum(a.stride * n for a, n in zip(axes, at, strict=True))


@pytest.mark.parametrize("head", [0, 5])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_panes_of_k_and_v_say_what_the_layout_says(head: int, dtype: torch.dtype) -> None:
    """Every element of every tile, against VllmLayout."""
    sizes = {"num_heads": 6, "num_kv_heads": 3, "head_size": 32, "block_size": 8}
    problem = replace(REFERENCE, seq_lens=(5, 19), dtype=dtype, **sizes)
    inputs = problem.paged("vllm")
    prepared = prepare_v1(**vars(inputs))
    _, k_pane, v_pane, _ = paged_panes(prepared, (head, 1, 0))
    num_blocks = inputs.k_cache.shape[0]
    layout = VllmLayout(num_blocks, 3, 32, 8, dtype)
    for pane, element in ((k_pane, layout.k_element), (v_pane, layout.v_element)):
        sizes = [a.size for a in (*pane.rows, *pane.columns)]
        seen = set()
        for place in np.ndindex(len(pane.tiles), *sizes):
            labels = labels_of(pane, place)
            block = int(inputs.block_tables[1, labels["logical block"]])
            assert labels["physical block"] == block
            assert labels["token"] == labels["logical block"] * 8 + labels["offset"]
            assert labels["KV head"] == head // 2
            at = (block, head // 2, labels["offset"], labels["element"])
            assert element_of(pane, place) == element(*at)
            seen.add((labels["token"], labels["element"]))
        assert seen == {(token, e) for token in range(24) for e in range(32)}


def test_a_partition_has_the_blocks_of_its_tokens() -> None:
    problem = replace(REFERENCE, seq_lens=(40, 170))
    prepared = prepare_v2(**vars(problem.paged("vllm")), partition_size=64).partitions
    for partition, logical in ((0, range(4)), (1, range(4, 8)), (2, range(8, 11))):
        pane = paged_panes(prepared, (1, 1, partition))[1]
        assert [tile.values["logical block"] for tile in pane.tiles] == list(logical)
    out = paged_panes(prepared, (1, 1, 2))[3]
    assert out.tiles[0].start == ((1 * 2 + 1) * 3 + 2) * 128


def test_every_access_of_the_kernel_lies_in_a_pane() -> None:
    """q, K, V and out of each thread block: where the kernel goes, the pane has a cell."""
    problem = replace(REFERENCE, seq_lens=(70, 33))
    prepared = prepare_v2(**vars(problem.paged("vllm")), partition_size=32).partitions
    report = prepared.simulate(trace="all")
    for block in np.ndindex(*prepared.grid[::-1]):
        index = tuple(int(i) for i in block[::-1])
        if index[2] * 32 >= problem.seq_lens[index[1]]:
            continue  # the sequence ends before this partition
        trace = report.trace.only(block=index)
        for pane in paged_panes(prepared, index):
            part = trace.only(array=pane.array)
            array = part.the_array()
            touched = (part.records.address - array.address) // array.dtype.itemsize
            axes = [np.arange(a.size) * a.stride for a in (*pane.rows, *pane.columns)]
            inside = sum(np.ix_(*axes)).ravel().tolist()
            cells = {tile.start + i for tile in pane.tiles for i in inside}
            assert len(part)
            assert set(touched.tolist()) <= cells, (index, pane.array)


def test_a_block_that_stands_twice_in_the_table_is_one_tile() -> None:
    inputs = REFERENCE.paged("vllm")
    inputs.block_tables[0, 3] = inputs.block_tables[0, 1]
    pane = paged_panes(prepare_v1(**vars(inputs)))[1]
    assert len(pane.tiles) == 10
    assert pane.tiles[1].title.startswith("1 and 3 →")


@cuda.jit
def far_apart(out, a):
    t = cuda.threadIdx.x
    out[t, 1] = a[t] + a[900 + t]


def test_memory_that_nobody_touches_is_left_out() -> None:
    report = launch(far_apart, 1, 8, np.zeros((8, 4), np.float32), np.zeros(2000), trace=0)
    panes = {pane.array: pane for pane in microscope(report).panes}
    a, out = panes["a"], panes["out"]
    starts = [tile.start for tile in a.tiles]
    assert len(starts) == 2
    covered = {s + i for s in starts for i in range(a.rows[0].size * 32)}
    assert {*range(8), *range(900, 908)} <= covered
    assert len(covered) <= 2 * 16 * 32
    assert (out.rows[0].size, out.columns[0].size) == (8, 4)


def test_a_few_rows_in_the_middle_are_one_tile() -> None:
    @cuda.jit
    def kernel(out, a):
        t = cuda.threadIdx.x
        out[t] = a[160 + t]

    report = launch(kernel, 1, 96, np.zeros(96), np.zeros(2000), trace=0)
    panes = {pane.array: pane for pane in microscope(report).panes}
    assert [(tile.start, tile.title) for tile in panes["a"].tiles] == [(160, "")]
    assert panes["a"].rows[0].size == 3


# Bad input --------------------------------------------------------------------------------------


def test_what_cannot_be_shown_is_refused() -> None:
    out = np.zeros((8, 4), np.float32)
    untraced = launch(far_apart, 1, 8, out, np.zeros(2000))
    with pytest.raises(ValueError, match="report is without a trace"):
        microscope(untraced)
    report = launch(far_apart, 3, 8, out, np.zeros(2000), trace=1, checks=())
    with pytest.raises(ValueError, match="block is 2; it must be a traced one that touched"):
        microscope(report, block=2)
    with pytest.raises(ValueError, match="at is 99; it must be a warp instruction"):
        microscope(report, at=99)
    with pytest.raises(ValueError, match="at is a trace of nothing"):
        microscope(report, at=report.trace.only(kind="atomic"))
    with pytest.raises(ValueError, match="lane is 32; it must be 0 to 31"):
        microscope(report, lane=32)
    row = (Axis("row", 1, 1),)
    with pytest.raises(ValueError, match="panes: the array is 'b'; it must be one of"):
        microscope(report, panes=[Pane("b", "", row, ())])
    with pytest.raises(ValueError, match="term of the label 'token' of a is 'offset'"):
        Pane("a", "", row, (), labels={"token": {"offset": 1}})
    for axes, words in (
        (((), ()), "rows, columns is"),
        (((row[0],), (row[0],)), "of different names"),
    ):
        with pytest.raises(ValueError, match=words):
            Pane("a", "", *axes)
    for size, stride in ((0, 1), (2.5, 1), (1, -1)):
        with pytest.raises(ValueError, match="of the axis 'row' is"):
            Axis("row", size, stride)
    with pytest.raises(ValueError, match="color is 'notacolor'"):
        Pane("a", "", row, (), color="notacolor")
    with pytest.raises(TypeError, match="report is a int"):
        microscope(3)
    with pytest.raises(TypeError, match="panes holds 'a'"):
        microscope(report, panes=["a"])
    idle = launch(far_apart, 1, 8, out, np.zeros(2000), trace=[])
    with pytest.raises(ValueError, match="touched nothing"):
        microscope(idle)
    with pytest.raises(ValueError, match="lane is True"):
        microscope(report, lane=True)
    with pytest.raises(ValueError, match="tiles is empty"):
        Pane("a", "", row, (), tiles=())
    with pytest.raises(ValueError, match="there is no thread block 7"):
        microscope(report, block=7)


def test_panes_are_for_the_paged_kernel() -> None:
    prepared = prepare_v1(**vars(REFERENCE.paged("vllm")))
    with pytest.raises(ValueError, match="block is \\(2, 0, 0\\); it must be in the grid"):
        paged_panes(prepared, (2, 0, 0))
    naive = prepare_naive(**vars(REFERENCE.paged("vllm")))
    with pytest.raises(ValueError, match="prepared is a launch of another kernel"):
        paged_panes(naive)
