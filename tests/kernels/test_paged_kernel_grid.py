"""vLLM's own test of the kernel, made small, with numbers and bounds that see more.

vLLM's grid (tests/kernels/test_attention.py) is all of dtypes, heads, head sizes, block sizes and
ALiBi; 7 sequences of up to some thousand tokens, q, k and v uniform within head_size**-0.5,
atol 1e-3: all weights are nearly equal, and the output is nearly the mean of V. Here, in a
simulator: every pair of values in some launch, N(0, 1), 3 sequences of up to 70 tokens, (5, 5) and
(8, 1) heads in place of (40, 40) and (64, 8), with the same ratios; and the bound is relative.
"""

import itertools
import random

import pytest
import torch
from kernel_inputs import arguments, problem

from pa_tutorial.checks.comparing import relative_errors, to_float64
from pa_tutorial.kernels.launch import prepare_v1

pytestmark = pytest.mark.cuda_v1
VALUES = {
    "dtype": (torch.float16, torch.bfloat16, torch.float32),
    "heads": ((5, 5), (8, 1)),  # num_heads, num_kv_heads
    "head_size": (32, 64, 80, 96, 112, 120, 128, 192, 256),
    "block_size": (8, 16, 32),
    "alibi": (False, True),
    "num_threads": (64, 128, 256),
}
Point = dict[str, object]  # one launch
Pair = tuple[tuple[str, object], tuple[str, object]]


def pairs_of(point: Point) -> set[Pair]:
    """Each two values of it, by their names."""
    return set(itertools.combinations(point.items(), 2))


def all_pairs() -> set[Pair]:
    every = (
        dict(zip(VALUES, values, strict=True)) for values in itertools.product(*VALUES.values())
    )
    return set().union(*map(pairs_of, every))


def covering_points() -> list[Point]:
    """Points that have every pair between them: each the best of 200 draws for what is left."""
    draw = random.Random(0)
    left, points = all_pairs(), []
    while left:
        needed = dict(draw.choice(sorted(left, key=str)))
        drawn = [
            {name: draw.choice(values) for name, values in VALUES.items()} | needed
            for _ in range(200)
        ]
        points.append(max(drawn, key=lambda point: len(pairs_of(point) & left)))
        left -= pairs_of(points[-1])
    return points


POINTS = covering_points()


def short(point: Point) -> str:
    dtype, (num_heads, num_kv_heads), head_size, block_size, alibi, num_threads = point.values()
    name = f"{str(dtype).removeprefix('torch.')}-heads{num_heads}x{num_kv_heads}-head{head_size}"
    return f"{name}-bs{block_size}-t{num_threads}" + "-alibi" * alibi


@pytest.mark.parametrize("point", POINTS, ids=short)
def test_v1_on_a_point_of_vllms_grid(point: Point) -> None:
    sizes = dict(point)
    num_threads, (num_heads, num_kv_heads) = sizes.pop("num_threads"), sizes.pop("heads")
    heads = {"num_heads": num_heads, "num_kv_heads": num_kv_heads}
    case = problem(seq_lens=(70, 33, 4), **heads, **sizes)
    prepared = prepare_v1(**arguments(case), num_threads=num_threads)
    errors = relative_errors(to_float64(prepared.run()), case.expected()["out"])
    # One rounding to the dtype of out, and sums in float32.
    assert errors.max() <= torch.finfo(case.dtype).eps / 2 + 3e-6


def test_every_two_values_meet_in_some_launch_and_launches_are_few() -> None:
    assert set().union(*map(pairs_of, POINTS)) == all_pairs()
    assert len(POINTS) <= 35
