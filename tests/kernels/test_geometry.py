"""Geometry: constants against numbers worked out by hand, which thread has what, and errors."""

import itertools
from collections.abc import Callable

import pytest
import torch

from pa_tutorial.kernels.geometry import (
    BLOCK_SIZES,
    DTYPES,
    HEAD_SIZES,
    NUM_THREADS,
    Geometry,
)

WARP_SIZE = 32
F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16
REFERENCE = Geometry(head_size=128, block_size=16)  # float16, 128 threads


@pytest.mark.parametrize(
    ("geometry", "max_seq_len", "num_bytes"),
    [
        (REFERENCE, 11, 2 * 128 * 4),  # out_smem of two warps; logits are 16 * 4
        (REFERENCE, 257, 272 * 4),  # padded to whole blocks
        (Geometry(32, 8, F16, 64), 11, 32 * 4),  # one of two warps leaves its rows
        (Geometry(128, 16, partition_size=512), 100_000, 512 * 4),  # the length does not count
    ],
)
def test_dynamic_shared_bytes(geometry: Geometry, max_seq_len: int, num_bytes: int) -> None:
    assert geometry.dynamic_shared_bytes(max_seq_len) == num_bytes


# Who has what, in every supported combination -------------------------------------------------

ALL = [
    Geometry(*sizes) for sizes in itertools.product(HEAD_SIZES, BLOCK_SIZES, DTYPES, NUM_THREADS)
]


def elements_of_a_group(g: Geometry) -> bool:
    """It shares a head equally and without overlap."""
    shares = [g.head_elements(offset) for offset in range(g.THREAD_GROUP_SIZE)]
    equal = {len(share) for share in shares} == {g.NUM_ELEMS_PER_THREAD}
    return equal and sorted(itertools.chain(*shares)) == list(range(g.HEAD_SIZE))


def block_of_v_of_a_warp(g: Geometry) -> bool:
    """It reads each element of a block of V once."""
    places = []
    for lane in range(WARP_SIZE):
        places += itertools.product(g.value_rows(lane), g.value_tokens(lane))
    return sorted(places) == list(itertools.product(range(g.HEAD_SIZE), range(g.BLOCK_SIZE)))


@pytest.mark.parametrize(
    "holds",
    [
        elements_of_a_group,
        block_of_v_of_a_warp,
        lambda g: g.THREAD_GROUP_SIZE * g.VEC_SIZE * g.ITEMSIZE == 16,  # of K, for a group
        lambda g: g.X * g.ITEMSIZE == g.V_VEC_SIZE * g.ITEMSIZE == 16,
        # holds because a group reads 16 bytes at once; it is no definition
        lambda g: g.NUM_VECS_PER_THREAD * 16 == g.HEAD_SIZE * g.ITEMSIZE,
        # the groups of a warp take one block
        lambda g: 32 * g.NUM_TOKENS_PER_THREAD_GROUP == g.BLOCK_SIZE * g.THREAD_GROUP_SIZE,
        lambda g: g.NUM_THREAD_GROUPS * g.THREAD_GROUP_SIZE == g.NUM_THREADS,
        # trees halve to 1
        lambda g: (g.NUM_WARPS | g.NUM_V_VECS_PER_ROW << 8).bit_count() == 2,
        lambda g: len(g.value_rows(0)) == g.NUM_ROWS_PER_THREAD,  # some lane needs the last row
    ],
)
def test_property_holds_in_every_combination(holds: Callable[[Geometry], bool]) -> None:
    assert [g for g in ALL if not holds(g)] == []


# Errors ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("head_size", 100, "head_size is 100; .*one of 32, 64, 80, 96, 112, 120, 128, 192, 256"),
        ("block_size", 64, "block_size is 64; .*one of 8, 16, 32"),
        ("dtype", torch.float64, "dtype is torch.float64; .*one of torch.float32, torch.float16"),
        ("num_threads", 32, "num_threads is 32; .*one of 64, 128, 256"),
        ("partition_size", 24, "partition_size is 24; .*multiple of block_size, which is 16"),
        ("num_queries_per_kv", 0, "num_queries_per_kv is 0; .*1 or more"),
        ("cache_dtype", torch.float8_e5m2, "head_size is 120; .*of x, which is 16"),
    ],
)
def test_an_unsupported_size_is_refused_with_the_supported_ones(
    name: str, value: object, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        Geometry(**{"head_size": 120, "block_size": 16, name: value})
