"""Geometry: which thread has what, and errors; v1 or v2 by vLLM's rule, at its edges."""

import itertools

import pytest
import torch

from pa_tutorial.kernels.choose import choose
from pa_tutorial.kernels.geometry import (
    BLOCK_SIZES,
    DTYPES,
    HEAD_SIZES,
    NUM_THREADS,
    Geometry,
)
from simt.gpus import WARP_SIZE


def test_a_group_shares_a_head_and_a_warp_a_block_of_v_without_overlap() -> None:
    """In every supported combination. (test_template.py compares the constants with the files'.)"""
    for sizes in itertools.product(HEAD_SIZES, BLOCK_SIZES, DTYPES, NUM_THREADS):
        g = Geometry(*sizes)
        shares = [g.head_elements(offset) for offset in range(g.THREAD_GROUP_SIZE)]
        assert {len(share) for share in shares} == {g.NUM_ELEMS_PER_THREAD}
        assert sorted(itertools.chain(*shares)) == list(range(g.HEAD_SIZE))
        places = []
        for lane in range(WARP_SIZE):
            places += itertools.product(g.value_rows(lane), g.value_tokens(lane))
        assert sorted(places) == list(itertools.product(range(g.HEAD_SIZE), range(g.BLOCK_SIZE)))
        assert 32 * g.NUM_TOKENS_PER_THREAD_GROUP == g.BLOCK_SIZE * g.THREAD_GROUP_SIZE


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("head_size", 100, "head_size is 100; .*32, 64, 80"),
        ("block_size", 64, "block_size is 64"),
        ("partition_size", 24, "partition_size is 24; .*16"),
        ("cache_dtype", torch.float8_e5m2, "head_size is 120; .*x, which is 16"),
    ],
)
def test_an_unsupported_size_is_refused(name: str, value: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Geometry(**{"head_size": 120, "block_size": 16, name: value})


@pytest.mark.parametrize(
    ("num_seqs", "num_heads", "max_seq_len", "chosen"),
    [
        (1, 32, 512, "v1"),  # one partition: nothing to split
        (16, 32, 513, "v2"),  # two, and 512 thread blocks do not fill a GPU
        (513, 1, 513, "v1"),
        (17, 32, 8192, "v1"),
        (17, 32, 8193, "v2"),  # too long for v1, however many sequences
    ],
)
def test_the_rule_decides(num_seqs: int, num_heads: int, max_seq_len: int, chosen: str) -> None:
    assert choose(num_seqs, num_heads, max_seq_len) == chosen
