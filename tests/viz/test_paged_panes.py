"""The panes of K, V, q and out: each cell is what the layout says, and no access is left out."""

from dataclasses import replace
from itertools import product

import pytest
import torch

from pa_tutorial.kernels.cuda_backends import v1_backend, v2_backend
from pa_tutorial.paging.layouts import VllmLayout
from pa_tutorial.viz.kernel_runs import REFERENCE
from pa_tutorial.viz.paged_panes import paged_panes
from tests.simt.microscope.elements import elements_of


@pytest.mark.parametrize(("head", "dtype"), [(0, torch.float32), (5, torch.float16)], ids=str)
def test_panes_of_k_and_v_say_what_the_layout_says(head: int, dtype: torch.dtype) -> None:
    """Every element of every tile, against VllmLayout."""
    sizes = {"num_heads": 6, "num_kv_heads": 3, "head_size": 32, "block_size": 8}
    inputs = replace(REFERENCE, seq_lens=(5, 19), dtype=dtype, **sizes).paged("vllm")
    _, k_pane, v_pane, _ = paged_panes(v1_backend.prepare(inputs), (head, 1, 0))
    layout = VllmLayout(inputs.k_cache.shape[0], 3, 32, 8, dtype)
    for pane, element in ((k_pane, layout.k_element), (v_pane, layout.v_element)):
        seen = set()
        for found, labels in elements_of(pane):
            block = int(inputs.block_tables[1, labels["logical block"]])
            assert labels["physical block"] == block
            assert labels["token"] == labels["logical block"] * 8 + labels["offset"]
            assert labels["KV head"] == head // 2
            assert found == element(block, head // 2, labels["offset"], labels["element"])
            seen.add((labels["token"], labels["element"]))
        assert seen == {(token, e) for token in range(24) for e in range(32)}


def test_every_access_of_the_kernel_lies_in_a_pane_of_its_partition() -> None:
    """q, K, V and out of each thread block: where the kernel goes, the pane has a cell."""
    problem = replace(REFERENCE, seq_lens=(70, 33))
    prepared = v2_backend.prepare(problem.paged("vllm"), partition_size=32).partitions
    whole = prepared.simulate(trace="all").trace
    for block in product(range(2), range(2), range(3)):
        head, sequence, partition = block
        if partition * 32 >= problem.seq_lens[sequence]:
            continue  # the sequence ends before this partition
        panes = paged_panes(prepared, block)
        assert panes[1].tiles[0].values["logical block"] == partition * 2
        assert panes[3].tiles[0].start == ((sequence * 2 + head) * 3 + partition) * 128
        for pane in panes:
            part = whole.only(block=block, array=pane.array)
            array = part.the_array()
            touched = (part.records.address - array.address) // array.dtype.itemsize
            assert {*touched.tolist()} <= {element for element, _ in elements_of(pane)}, block
