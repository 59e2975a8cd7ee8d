"""The exercise of An 8-bit cache: the decode of one byte."""

import torch
from torch import Tensor

from pa_tutorial.checks.calls import Function
from pa_tutorial.exercises.exercise import Exercise
from pa_tutorial.exercises.grading import axes_of_calls, graded, results_of
from pa_tutorial.exercises.random_inputs import seeded


# 1. ---------------------------------------------------------------------------------------------
def decode_byte(byte: int, bias: int = 7) -> float:
    """The number that a byte of a float8_e4m3fn cache stands for, before the scale.

    bias  subtracted from the stored exponent: 7 in this format (the check tries others)

    (Two bytes are NaN, 0x7F and 0xFF. They don't come up here.)
    """
    # the three fields as whole numbers
    # most numbers begin with a 1 that isn't stored; those with a stored exponent of 0 don't
    ### BEGIN SOLUTION
    sign = -1 if byte & 0x80 else 1
    exponent, mantissa = byte >> 3 & 0xF, byte & 7
    if exponent == 0:
        return sign * mantissa / 8 * 2.0 ** (1 - bias)
    return sign * (1 + mantissa / 8) * 2.0 ** (exponent - bias)
    ### END SOLUTION


_FIELDS = "The exponent is the four bits after the sign, the mantissa the last three."
_SMALL = "Without the hidden 1, each step is an eighth of what an exponent of 1 stands for."
DECODE_CASES = (
    # name, what it isolates, what its failure means, bytes, bias in the notebook
    ("ordinary", "positive numbers with a hidden 1", _FIELDS, range(8, 0x7F), 7),
    ("small", "an exponent of 0", _SMALL, range(8), 7),
    ("negative", "the sign", "The first bit changes nothing but the sign.", range(0x80, 0xFF), 7),
    ("other_bias", "a bias of 15", "The bias is an argument.", range(0x7F), 15),
)


def decode_run(answer: Function, codes: range, bias: int, draw: int) -> Tensor:
    return results_of(answer, decode_calls(codes, bias, draw))


def decode_calls(codes: range, bias: int, draw: int) -> list[tuple[int, ...]]:
    used = bias_of(bias, draw)
    return [(byte,) if used == 7 else (byte, used) for byte in drawn(codes, draw)]


def decode_axes(codes: range, bias: int, draw: int) -> tuple[str]:
    return axes_of_calls("decode_byte", decode_calls(codes, bias, draw))


def torch_float8(codes: range, bias: int, draw: int) -> Tensor:
    bits = torch.tensor(drawn(codes, draw), dtype=torch.uint8)
    return bits.view(torch.float8_e4m3fn).double() * 2.0 ** (7 - bias_of(bias, draw))


def bias_of(bias: int, draw: int) -> int:
    return bias if draw == 0 else 8 + draw % 5


def drawn(codes: range, draw: int) -> list[int]:
    return seeded(len(codes), draw).permutation(codes).tolist()


DECODE = Exercise(
    solution=decode_byte,
    cases=graded(DECODE_CASES, decode_run, torch_float8, decode_axes),
    is_warm_up=True,
)


EXERCISES = (DECODE,)
