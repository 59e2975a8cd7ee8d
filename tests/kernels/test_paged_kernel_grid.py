"""vLLM's own test of the kernel, made small, with numbers and bounds that see more.

vLLM's grid (tests/kernels/test_attention.py) is all of dtypes, heads, head sizes, block sizes and
ALiBi; 7 sequences of up to some thousand tokens, q, k and v uniform within head_size**-0.5,
atol 1e-3. Here, in a simulator: every pair of values in some launch, 3 sequences of up to 70
tokens, and (5, 5) and (8, 1) heads in place of (40, 40) and (64, 8), with the same ratios. With
vLLM's numbers all weights are nearly equal and the output is nearly the mean of V: so N(0, 1) is
tried too, and the bound is relative.
"""

import itertools
import random
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

from pa_tutorial.checks.comparing import relative_errors, to_float64
from pa_tutorial.kernels.launch import prepare_v1
from pa_tutorial.walk import oracle

pytestmark = pytest.mark.cuda_v1
F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16
MAX_SEQ_LEN = 70
NUM_SEQS = 3
NUM_BLOCKS = 40  # of the pool


class Point(NamedTuple):
    """One launch. numbers: "uniform" as in vLLM's test, or "normal"."""

    dtype: torch.dtype
    heads: tuple[int, int]  # num_heads, num_kv_heads
    head_size: int
    block_size: int
    alibi: bool
    num_threads: int
    numbers: str


VALUES = Point(
    dtype=(F16, BF16, F32),
    heads=((5, 5), (8, 1)),
    head_size=(32, 64, 80, 96, 112, 120, 128, 192, 256),
    block_size=(8, 16, 32),
    alibi=(False, True),
    num_threads=(64, 128, 256),
    numbers=("uniform", "normal"),
)
Pair = tuple[tuple[str, object], tuple[str, object]]


def pairs_of(point: Point) -> set[Pair]:
    """Each two values of it, by the names of their fields."""
    return set(itertools.combinations(point._asdict().items(), 2))


def all_pairs() -> set[Pair]:
    found = set()
    for one, other in itertools.combinations(Point._fields, 2):
        values = itertools.product(getattr(VALUES, one), getattr(VALUES, other))
        found |= {((one, a), (other, b)) for a, b in values}
    return found


def covering_points() -> list[Point]:
    """Points that have every pair between them: each the best of 200 draws for what is left."""
    draw = random.Random(0)
    left, points = all_pairs(), []
    while left:
        needed = dict(draw.choice(sorted(left, key=str)))
        drawn = [
            Point(**{name: draw.choice(getattr(VALUES, name)) for name in Point._fields} | needed)
            for _ in range(200)
        ]
        points.append(max(drawn, key=lambda point: len(pairs_of(point) & left)))
        left -= pairs_of(points[-1])
    return points


POINTS = covering_points()


def short(point: Point) -> str:
    heads = "x".join(map(str, point.heads))
    dtype = str(point.dtype).removeprefix("torch.")
    name = f"{dtype}-heads{heads}-head{point.head_size}-bs{point.block_size}"
    return f"{name}-t{point.num_threads}-{point.numbers}" + "-alibi" * point.alibi


def inputs(point: Point) -> dict[str, object]:
    """Arguments of prepare_v1. Blocks stand in tables more than once; every slot has numbers."""
    rng = np.random.default_rng(point.head_size + point.block_size)
    (num_heads, num_kv_heads), head_size = point.heads, point.head_size
    x = 16 // point.dtype.itemsize

    def drawn(*shape: int) -> Tensor:
        size = head_size**-0.5
        uniform = point.numbers == "uniform"
        numbers = rng.uniform(-size, size, shape) if uniform else rng.standard_normal(shape)
        return torch.from_numpy(numbers).to(point.dtype)

    pool = (NUM_BLOCKS, num_kv_heads)
    width = -(-MAX_SEQ_LEN // point.block_size)
    tables = rng.integers(0, NUM_BLOCKS, (NUM_SEQS, width))
    tables[1, :2] = tables[0, 0]  # twice in one table, and in two
    seq_lens = [*rng.integers(1, MAX_SEQ_LEN + 1, NUM_SEQS - 1), MAX_SEQ_LEN]
    return {
        "q": drawn(NUM_SEQS, num_heads, head_size),
        "k_cache": drawn(*pool, head_size // x, point.block_size, x),
        "v_cache": drawn(*pool, head_size, point.block_size),
        "block_tables": torch.from_numpy(tables).int(),
        "seq_lens": torch.tensor(seq_lens, dtype=torch.int32),
        "scale": head_size**-0.5,
        "alibi_slopes": torch.from_numpy(rng.standard_normal(num_heads)).float()
        if point.alibi
        else None,
    }


def expected(tensors: dict[str, object]) -> np.ndarray:
    """[num_seqs, num_heads, head_size] float64. K and V are looked up token by token."""
    q, k_cache, v_cache = (to_float64(tensors[name]) for name in ("q", "k_cache", "v_cache"))
    slopes = tensors["alibi_slopes"]
    block_size = v_cache.shape[3]
    outs = []
    for sequence, seq_len in enumerate(tensors["seq_lens"].tolist()):
        table = tensors["block_tables"][sequence].tolist()
        places = [(table[token // block_size], token % block_size) for token in range(seq_len)]
        k = np.stack(
            [k_cache[block, :, :, offset].reshape(len(k_cache[0]), -1) for block, offset in places]
        )
        v = np.stack([v_cache[block, :, :, offset] for block, offset in places])
        of_heads = None if slopes is None else to_float64(slopes)
        attended = oracle.attend(
            q[sequence : sequence + 1], k, v, tensors["scale"], of_heads, first=seq_len - 1
        )
        outs.append(attended["out"][0])
    return np.stack(outs)


def bound(dtype: torch.dtype) -> float:
    """One rounding to the dtype of out, and sums in float32."""
    return torch.finfo(dtype).eps / 2 + 3e-6


@pytest.mark.parametrize(
    "point",
    [pytest.param(point, id=short(point)) for point in POINTS],
)
def test_v1_on_a_point_of_vllms_grid(point: Point) -> None:
    tensors = inputs(point)
    prepared = prepare_v1(**tensors, num_threads=point.num_threads)
    prepared.simulate()
    errors = relative_errors(to_float64(prepared.out), expected(tensors))
    assert errors.max() <= bound(point.dtype), (
        f"sequence, head: {np.argwhere(errors > bound(point.dtype)).tolist()}"
    )


def test_every_two_values_meet_in_some_launch() -> None:
    assert set().union(*map(pairs_of, POINTS)) == all_pairs()


def test_there_are_not_more_launches_than_one_waits_for() -> None:
    assert len(POINTS) <= 35


def without_k(tensors: dict[str, object]) -> np.ndarray:
    """What a kernel computes that ignores K."""
    return expected({**tensors, "k_cache": torch.zeros_like(tensors["k_cache"])})


@pytest.mark.parametrize("point", [p for p in POINTS if p.numbers == "normal"], ids=short)
def test_normal_numbers_show_that_k_is_ignored(point: Point) -> None:
    tensors = inputs(point)
    errors = relative_errors(without_k(tensors), expected(tensors))
    assert errors[-1].max() > 10 * bound(point.dtype)


@pytest.mark.parametrize(
    "point", [p for p in POINTS if p.numbers == "uniform" and p.head_size >= 64], ids=short
)
def test_vllms_numbers_and_bound_do_not_show_that_k_is_ignored(point: Point) -> None:
    """So half of the launches have other numbers, and all have another bound."""
    tensors = inputs(point)
    tensors["alibi_slopes"] = None
    difference = np.abs(without_k(tensors)[-1] - expected(tensors)[-1])
    assert difference.max() < 1e-3


@pytest.mark.parametrize("point", POINTS[:3], ids=short)
def test_blocks_stand_in_more_than_one_table(point: Point) -> None:
    tables = inputs(point)["block_tables"]
    assert len(tables[:2].unique()) < tables[:2].numel()
