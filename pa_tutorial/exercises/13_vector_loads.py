"""Exercises of notebook 13: the decode of one byte, and a copy by vecs, with a tail."""

import numpy as np
import torch
from numba import cuda
from torch import Tensor

from pa_tutorial.checks.calls import Function, require_written
from pa_tutorial.exercises.exercise import Exercise
from pa_tutorial.exercises.grading import graded
from pa_tutorial.exercises.kernel_grading import ITEM, Enough, Task, on_tasks
from pa_tutorial.exercises.random_inputs import seeded
from pa_tutorial.kernels.geometry import divide_round_up
from pa_tutorial.kernels.vectors import vector_access
from simt.gpus import WARP_SIZE
from simt.traffic import SECTOR


# 1. ---------------------------------------------------------------------------------------------
def decode_byte(byte: int, bias: int = 7) -> float:
    """The number that a byte of a float8_e4m3fn cache stands for, before the scale.

    bias  subtracted from the stored exponent: 7 in this format (the check tries others)

    (Two bytes are NaN, 0x7F and 0xFF. They don't come up here.)
    """
    # cut the byte into fields, from the left: 1 bit of sign, 4 of exponent, 3 of mantissa (eighths)
    # a stored exponent above 0: a hidden 1 goes before the eighths, and the bias gives the power
    # a stored exponent of 0: no hidden 1, and the power is the same as for a stored 1
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
    # name, what it isolates, what its failure means, bytes
    ("ordinary", "positive numbers with a hidden 1", _FIELDS, range(8, 0x7F)),
    (
        "small",
        "an exponent of 0",
        "Without the hidden 1, all steps are equal: an eighth of what an exponent of 1 stands for.",
        range(8),
    ),
    ("negative", "the sign", "The first bit changes nothing but the sign.", range(0x80, 0xFF)),
)


def decode_run(answer: Function, codes: range, draw: int) -> Tensor:
    bias = bias_of(draw)
    found = [float(require_written(answer(byte, bias))) for byte in drawn(codes, draw)]
    return torch.tensor([found], dtype=torch.float64)


def torch_float8(codes: range, draw: int) -> Tensor:
    bits = torch.tensor([drawn(codes, draw)], dtype=torch.uint8)
    return bits.view(torch.float8_e4m3fn).double() * 2.0 ** (7 - bias_of(draw))


def bias_of(draw: int) -> int:
    return 7 if draw == 0 else 8 + draw % 5


def drawn(codes: range, draw: int) -> list[int]:
    return seeded(len(codes), draw).permutation(codes).tolist()


DECODE = Exercise(
    solution=decode_byte,
    cases=graded(DECODE_CASES, decode_run, torch_float8, ("call", "byte")),
    is_warm_up=True,
)


# 2. ---------------------------------------------------------------------------------------------
VEC = 4  # elements of 16 bytes

load_4, store_4, _ = vector_access(VEC)


@cuda.jit
def copy_by_vecs(out, a):
    """A copy, by one thread block, 16 bytes at a time.

    a, out  [n] float32; n is 1 or more, and both begin at a multiple of 16 bytes; a is only read

    load_4(a, i) is a tuple: a[i] to a[i + 3], read by one transaction. store_4(out, i, values)
    writes such a tuple. The thread block has 32, 64, … threads.
    """
    # 1. how many whole vecs of 4 elements are there? Neighbouring threads take neighbouring vecs
    # 2. if there are more vecs than threads, a thread has several
    # 3. 0 to 3 elements are left: they are copied by one transaction for all of them
    ### BEGIN SOLUTION
    num_vecs = a.size // 4
    for vec in range(cuda.threadIdx.x, num_vecs, cuda.blockDim.x):
        store_4(out, 4 * vec, load_4(a, 4 * vec))
    i = 4 * num_vecs + cuda.threadIdx.x
    if i < a.size:
        out[i] = a[i]
    ### END SOLUTION


_TAIL = "After the last whole vec, 1 to 3 elements are left: a thread copies each of them."
_VECS = (
    "A warp reads 512 bytes with one transaction: vec t for thread t, then go on by all threads."
)
COPY_CASES = (
    # name, what it isolates, what its failure means, threads, elements
    ("one_transaction", "128 elements: one vec for each lane", _VECS, 32, 128),
    ("several_turns", "32 threads, 4 vecs each", _VECS, 32, 512),
    ("several_warps", "128 threads, 1,024 elements", _VECS, 128, 1024),
    ("tail_of_3", "131 elements", _TAIL, 64, 131),
    ("tail_of_1", "513 elements, a vec more than there are threads", _TAIL, 128, 513),
    ("only_a_tail", "3 elements: no whole vec", _TAIL, 32, 3),
    ("half_a_warp", "16 vecs and 2 elements", _TAIL, 32, 66),
)


def copy_task(draw: int, num_threads: int, size: int) -> Task:
    a = seeded(size, draw).standard_normal(size, dtype=np.float32)
    tail = size % VEC
    sectors = divide_round_up(size * ITEM, SECTOR) + tail  # they may be touched again
    transactions = divide_round_up(size // VEC, WARP_SIZE) + (tail > 0)
    enough = dict.fromkeys((0, 1), Enough(sectors, transactions))
    warps = min(num_threads // WARP_SIZE, max(transactions - (tail > 0), 1))
    return Task(num_threads, (a,), a, enough, warps)


COPY = Exercise(
    solution=copy_by_vecs,
    cases=on_tasks(COPY_CASES, copy_task, ("element",)),
)


EXERCISES = (DECODE, COPY)
