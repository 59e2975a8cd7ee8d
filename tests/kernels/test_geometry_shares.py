"""Geometry: which thread has what, in every supported combination and where descriptions err."""

import itertools
from collections.abc import Callable

import pytest
import torch

from pa_tutorial.kernels.geometry import BLOCK_SIZES, DTYPES, HEAD_SIZES, NUM_THREADS, Geometry

WARP_SIZE = 32
F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16
REFERENCE = Geometry(head_size=128, block_size=16)  # float16, 128 threads
ALL = [
    Geometry(*sizes) for sizes in itertools.product(HEAD_SIZES, BLOCK_SIZES, DTYPES, NUM_THREADS)
]


def exceptions(holds: Callable[[Geometry], bool]) -> list[str]:
    """The supported combinations for which something does not hold."""
    return [
        f"head_size {g.head_size}, block_size {g.block_size}, {g.dtype}, {g.num_threads} threads"
        for g in ALL
        if not holds(g)
    ]


def test_all_combinations_are_supported() -> None:
    assert len(ALL) == 9 * 3 * 3 * 3


def test_the_threads_of_a_group_share_a_head_without_overlap() -> None:
    def cover(g: Geometry) -> bool:
        offsets = range(g.THREAD_GROUP_SIZE)
        elements = [element for offset in offsets for element in g.head_elements(offset)]
        return sorted(elements) == list(range(g.HEAD_SIZE))

    assert exceptions(cover) == []


def test_the_threads_of_a_group_have_equally_many_elements() -> None:
    def equal(g: Geometry) -> bool:
        offsets = range(g.THREAD_GROUP_SIZE)
        return {len(g.head_elements(offset)) for offset in offsets} == {g.NUM_ELEMS_PER_THREAD}

    assert exceptions(equal) == []


def test_a_warp_reads_each_number_of_a_block_of_v_once() -> None:
    def once(g: Geometry) -> bool:
        places = [
            place
            for lane in range(WARP_SIZE)
            for place in itertools.product(g.value_rows(lane), g.value_tokens(lane))
        ]
        return sorted(places) == list(itertools.product(range(g.HEAD_SIZE), range(g.BLOCK_SIZE)))

    assert exceptions(once) == []


@pytest.mark.parametrize(
    ("why", "holds"),
    [
        ("a group: 16 bytes of K", lambda g: g.THREAD_GROUP_SIZE * g.VEC_SIZE * g.ITEMSIZE == 16),
        ("x is 16 bytes", lambda g: g.X * g.ITEMSIZE == 16),
        ("a thread: 16 bytes of V", lambda g: g.V_VEC_SIZE * g.ITEMSIZE == 16),
        (
            "the vecs of all threads are a head",
            lambda g: g.NUM_VECS_PER_THREAD * g.THREAD_GROUP_SIZE * g.VEC_SIZE == g.HEAD_SIZE,
        ),
        (  # holds because a group reads 16 bytes at once; it is no definition
            "vecs of a thread are the 16-byte pieces of a head",
            lambda g: g.NUM_VECS_PER_THREAD * 16 == g.HEAD_SIZE * g.ITEMSIZE,
        ),
        (
            "the groups of a warp take one block",
            lambda g: (
                WARP_SIZE // g.THREAD_GROUP_SIZE * g.NUM_TOKENS_PER_THREAD_GROUP == g.BLOCK_SIZE
            ),
        ),
        ("groups", lambda g: g.NUM_THREAD_GROUPS * g.THREAD_GROUP_SIZE == g.NUM_THREADS),
        ("warps", lambda g: g.NUM_WARPS * WARP_SIZE == g.NUM_THREADS),
        ("a tree over warps halves to 1", lambda g: g.NUM_WARPS.bit_count() == 1),
        ("a tree over a row halves to 1", lambda g: g.NUM_V_VECS_PER_ROW.bit_count() == 1),
        ("some lane needs the last row", lambda g: len(g.value_rows(0)) == g.NUM_ROWS_PER_THREAD),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_in_every_combination(why: str, holds: Callable[[Geometry], bool]) -> None:
    assert exceptions(holds) == [], why


@pytest.mark.parametrize(
    ("block_size", "dtype", "head_sizes"),
    [
        (16, F16, {120}),
        (16, BF16, {120}),
        (8, F16, {80, 112, 120}),
        (8, BF16, {80, 112, 120}),
        (32, F16, set()),
        (8, F32, {120}),
        (16, F32, set()),
        (32, F32, set()),
    ],
)
def test_rows_need_a_guard_where_the_last_turn_passes_the_head(
    block_size: int, dtype: torch.dtype, head_sizes: set[int]
) -> None:
    guarded = set()
    for head_size in HEAD_SIZES:
        geometry = Geometry(head_size, block_size, dtype)
        last_lane = geometry.value_rows(WARP_SIZE - 1)
        if len(last_lane) < geometry.NUM_ROWS_PER_THREAD:
            guarded.add(head_size)
    assert guarded == head_sizes


# What descriptions of this kernel get wrong ---------------------------------------------------


def test_thread_0_sums_the_rows_0_16_to_112_and_none_past_the_head() -> None:
    assert REFERENCE.value_rows(0) == (0, 16, 32, 48, 64, 80, 96, 112)


def test_rows_are_32_apart_only_in_blocks_of_8_and_then_there_are_4() -> None:
    assert Geometry(128, 8).value_rows(0) == (0, 32, 64, 96)


@pytest.mark.parametrize(
    ("dtype", "first", "second"),
    [
        (F16, (0, 1, 2, 3, 8, 9, 10, 11), (4, 5, 6, 7, 12, 13, 14, 15)),
        (F32, (0, 1, 4, 5, 8, 9, 12, 13), (2, 3, 6, 7, 10, 11, 14, 15)),
    ],
)
def test_vecs_alternate_between_threads_and_not_elements(
    dtype: torch.dtype, first: tuple[int, ...], second: tuple[int, ...]
) -> None:
    geometry = Geometry(32, 16, dtype)
    assert geometry.head_elements(0)[:8] == first
    assert geometry.head_elements(1)[:8] == second


def test_x_is_not_what_a_group_multiplies() -> None:
    elements = REFERENCE.THREAD_GROUP_SIZE * REFERENCE.NUM_ELEMS_PER_THREAD
    assert (REFERENCE.X, elements) == (8, 128)


def test_16_of_64_groups_bring_q_once_and_48_bring_nothing() -> None:
    step = REFERENCE.NUM_THREAD_GROUPS
    vecs = REFERENCE.NUM_VECS_PER_THREAD
    turns = [len(range(group, vecs, step)) for group in range(step)]
    assert turns == [1] * 16 + [0] * 48


@pytest.mark.parametrize(("block_size", "groups"), [(8, 32), (16, 64), (32, 128)])
def test_128_threads_are_never_6_groups(block_size: int, groups: int) -> None:
    geometry = Geometry(128, block_size)
    found = geometry.NUM_THREAD_GROUPS
    assert found == groups
