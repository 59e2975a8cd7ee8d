"""Exercises of notebook 25: a ratio you can believe, and which roof limits a step."""

import statistics

import numpy as np
import torch
from torch import Tensor

from pa_tutorial.attention.work import attention_flops_and_bytes
from pa_tutorial.checks.calls import Function
from pa_tutorial.exercises.exercise import Exercise
from pa_tutorial.exercises.grading import called, graded, require_floats, require_tensor
from pa_tutorial.exercises.random_inputs import seeded_torch


# 1. ---------------------------------------------------------------------------------------------
def compare_rounds(times: Tensor, num_warm_up: int) -> Tensor:
    """How many times as long as A does B take?

    times        [num_rounds, 2] float64: milliseconds of A and of B in each round
    num_warm_up  how many rounds at the start don't count
    returns      [3] float64: median, lower quartile and upper quartile of the ratio
    """
    # the rounds that count
    # one number per round, from which the state of the machine cancels
    # the median and the quartiles of these
    ### BEGIN SOLUTION
    a, b = times[num_warm_up:].unbind(dim=1)
    ratios = b / a
    return ratios.quantile(torch.tensor([0.5, 0.25, 0.75], dtype=times.dtype))
    ### END SOLUTION


_ORDER = "The median comes first, then the lower and the upper quartile."
_OVER = f"B over A. {_ORDER}"
_PAIRS = (
    "Divide within a round: it saw one state of the machine. One disturbed call would move a mean. "
    + _ORDER
)
_WARM = "The first num_warm_up rounds compile and fill caches, so they don't count."
_EVEN = "Take the mean of the middle two: quantile does, but Tensor.median takes the lower one."
QUARTILES = "median|lower quartile|upper quartile"
ROUNDS_CASES = (
    # name, what it isolates, what its failure means,
    # rounds, ratio, noise, the machine's last speed over its first, disturbed calls, warm-up
    ("quiet", "all rounds are the same", _OVER, 9, 1.5, 0, 1, 0, 0),
    ("warm_up", "two slow rounds at the beginning", _WARM, 3, 1.5, 0, 1, 0, 2),
    ("drift", "a machine that becomes half as fast", _PAIRS, 25, 1.2, 0.05, 0.5, 0, 1),
    ("outliers", "every fifth call is disturbed", _PAIRS, 25, 1.2, 0.05, 1, 0.2, 1),
    ("even", "an even number of rounds", _EVEN, 12, 0.8, 0.1, 1, 0, 0),
)


def made_up_rounds(
    rounds: int, ratio: float, noise: float, slower: float, disturbed: float, warm: int, draw: int
) -> Tensor:
    """[warm + rounds, 2]: times of A and B on a machine as ROUNDS_CASES describes."""
    generator, total = seeded_torch(rounds, draw), warm + rounds
    speed = torch.linspace(1, slower, total, dtype=torch.float64)[:, None]
    chance = torch.rand(2, total, 2, generator=generator, dtype=torch.float64)
    if draw:
        ratio *= 1.2 + 2 * float(torch.rand((), generator=generator))
    times = torch.tensor([2.0, 2.0 * ratio], dtype=torch.float64) / speed
    times = times * (1 + noise * chance[0])
    times[chance[1] < disturbed] *= 5
    times[:warm] *= torch.tensor([9.0, 200.0], dtype=torch.float64)
    return times


def rounds_run(answer: Function, *how: float) -> Tensor:
    *_, num_warm_up, _draw = how
    found = called(answer, made_up_rounds(*how), num_warm_up)
    return require_tensor(found, torch.empty(3, dtype=torch.float64))[:, None]


def statistics_of_python(*how: float) -> Tensor:
    *_, num_warm_up, _draw = how
    ratios = [b / a for a, b in made_up_rounds(*how).tolist()[num_warm_up:]]
    low, middle, high = statistics.quantiles(ratios, n=4, method="inclusive")
    return torch.tensor([[middle], [low], [high]], dtype=torch.float64)


# 2. ---------------------------------------------------------------------------------------------
def under_the_roofs(
    num_heads: int,
    num_kv_heads: int,
    dtype: torch.dtype,
    gb_per_s: float,
    peak_gflop_per_s: float,
) -> tuple[float, float, bool]:
    """What limits a decode step?

    gb_per_s          what memory delivers, in 10**9 bytes per second
    peak_gflop_per_s  what the cores can compute, in 10**9 operations per second
    returns           operations per byte of K and V; the speed that the two roofs allow, in 10**9
                      operations per second; and whether memory is the lower roof
    """
    # one element of K: which operations need it, and how many bytes has it? (V is the same)
    # how fast can the cores compute if they must wait for those bytes?
    # the lower roof
    ### BEGIN SOLUTION
    per_byte = 2 * (num_heads // num_kv_heads) / dtype.itemsize
    by_memory = per_byte * gb_per_s
    return per_byte, min(by_memory, peak_gflop_per_s), by_memory < peak_gflop_per_s
    ### END SOLUTION


_INTENSITY = "Two operations per query head that shares an element, over the element's bytes."
_ROOF = "The lower of the two roofs counts: gb_per_s * operations per byte, or the peak."
_BOTH = f"{_INTENSITY} {_ROOF}"
ROOFS = "operations per byte", "allowed speed", "limited by memory"
_HALF, _FULL = torch.bfloat16, torch.float32
ROOF_CASES = (
    # name, what it isolates, what its failure means, the arguments
    ("mha_float32", "half an operation per byte", _BOTH, 16, 16, _FULL, 35, 60),
    ("mha_bfloat16", "half the bytes", _INTENSITY, 16, 16, _HALF, 35, 60),
    ("gqa_float32", "4 query heads share an element", _BOTH, 32, 8, _FULL, 35, 60),
    ("more_cores", "the same with faster cores", _ROOF, 32, 8, _FULL, 35, 900),
    ("mqa", "all query heads share one KV head", _ROOF, 32, 1, _HALF, 200, 3000),
)


def other_machine(rng: np.random.Generator, _: str, *sizes: float) -> tuple:
    """Memory and cores faster or slower by nearly the same factor: the same roof limits."""
    *heads_and_dtype, gb_per_s, peak = sizes
    faster = rng.uniform(0.5, 2)
    peak = round(peak * faster * rng.uniform(0.9, 1.1), 1)
    return None, *heads_and_dtype, round(gb_per_s * faster, 1), peak


def roofs_run(answer: Function, *sizes: float) -> Tensor:
    return torch.tensor(require_floats(answer(*sizes), ROOFS), dtype=torch.float64)[:, None]


def counted_by_torch(
    heads: int, kv_heads: int, dtype: torch.dtype, gb_per_s: float, peak: float
) -> Tensor:
    flops, _ = attention_flops_and_bytes(1, 256, heads, kv_heads, 64, dtype)
    num_bytes = 2 * torch.empty(256, kv_heads, 64, dtype=dtype, device="meta").nbytes
    seconds = num_bytes / gb_per_s, flops / peak  # in 10**-9: of reading, of computing
    answers = flops / num_bytes, flops / max(seconds), float(seconds[0] > seconds[1])
    return torch.tensor(answers, dtype=torch.float64)[:, None]


EXERCISES = (
    Exercise(
        solution=compare_rounds,
        cases=graded(ROUNDS_CASES, rounds_run, statistics_of_python, (QUARTILES,), bound=1e-6),
        is_warm_up=True,
    ),
    Exercise(
        solution=under_the_roofs,
        cases=graded(
            ROOF_CASES, roofs_run, counted_by_torch, ("|".join(ROOFS),), other_machine, bound=1e-6
        ),
        is_warm_up=True,
    ),
)
