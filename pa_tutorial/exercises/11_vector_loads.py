"""Exercises of notebook 11: the widest load, a copy by vecs with a tail, two bfloat16 in a word."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from numba import cuda, float32, int32, uint32  # noqa: F401  # wrong answers use float32
from numba.cuda import libdevice
from torch import Tensor

from pa_tutorial.checks.running import Trial
from pa_tutorial.exercises.drawing import asked, seeded
from pa_tutorial.exercises.exercise import Exercise
from pa_tutorial.exercises.kernels import Enough, Task, trial
from pa_tutorial.exercises.vector_loads_grading import (
    DRAWN_WORDS,
    kernel_around,
    other_numbers,
    other_rows,
    two_numbers,
    widest_by_trying,
)
from pa_tutorial.kernels.geometry import divide_round_up
from pa_tutorial.kernels.vectors import vector_access
from pa_tutorial.simt.races import WARP_SIZE
from pa_tutorial.simt.traffic import SECTOR
from pa_tutorial.walk.calls import AnswerError, require_written

NOTEBOOK = "11_vector_loads"
ITEM = 4  # bytes of a float32
VEC = 4  # elements of 16 bytes

load, store, _ = vector_access(VEC)


# 1. ---------------------------------------------------------------------------------------------


def widest_load(address: int, strides: tuple[int, ...], row_bytes: int) -> int:
    """The widest load that can read every row of a tensor: 16, 8, 4, 2 or 1 bytes.

    address    of the first row, in bytes
    strides    bytes from one row to the next, along each axis: row (i, j, …) begins at
               address + i * strides[0] + j * strides[1] + …
    row_bytes  of a row; they are side by side

    All loads have this one size. Together they read a row from its first byte to its last, and
    no byte beyond it.
    """
    # 1. a load of n bytes begins at a multiple of n: what does this ask of the first row?
    # 2. and of the steps from row to row, so that *every* row can be read like this?
    # 3. and of the length of a row, so that its last load does not go beyond it?
    ### BEGIN SOLUTION
    for num_bytes in (16, 8, 4, 2):
        if all(number % num_bytes == 0 for number in (address, *strides, row_bytes)):
            return num_bytes
    return 1
    ### END SOLUTION


_FIRST = "The first load of the first row begins at `address`."
_STEPS = "Every row must begin at a multiple of the size: look at each stride by itself."
_END = "The loads of a row end exactly where the row ends."
WIDEST_CASES = (
    # name, what it isolates, what its failure means, address, strides, bytes of a row
    ("value_rows", "V of the worked example: rows of 8 tokens in float16", _FIRST,
     (512, (1024, 512, 16), 16)),
    ("key_vecs", "K at blocks of 16: each thread of a group has half of a piece", _STEPS,
     (512, (4096, 256, 16, 8), 8)),
    ("shifted", "a tensor that begins one float16 late", _FIRST, (514, (1024, 16), 16)),
    ("odd_gap", "one float16 between two sequences of q", _STEPS, (512, (258, 64), 64)),
    ("two_strides", "8 bytes one way and 24 the other: 32 together", _STEPS,
     (1024, (8, 24), 16)),
    ("a_narrower_stride", "64 bytes one way and 24 the other", _STEPS, (0, (64, 24), 16)),
    ("long_rows", "rows of 256 bytes", "One instruction brings 16 bytes at most.",
     (4096, (1024, 256), 256)),
    ("heads_of_120", "float16, plain layout: rows of 240 bytes", _STEPS, (0, (3840, 240), 240)),
    ("eight_bits_of_120", "8-bit numbers, plain layout: rows of 120 bytes", _END,
     (0, (128,), 120)),
    ("one_row", "no other rows: no strides", _FIRST, (36, (), 12)),
    ("single_bytes", "an odd address", "One byte can be read from anywhere.", (7, (16,), 16)),
)  # fmt: skip


def widest_load_trials(draw: int = 0) -> list[Trial]:
    def run(questions: list[tuple], function: Callable | None) -> dict[str, Tensor]:
        answers = []
        for [sizes] in questions:
            answer = widest_load if function is None else function
            found = require_written(answer(*sizes))
            if not isinstance(found, int | np.integer) or isinstance(found, bool):
                raise AnswerError(f"it returned {found!r:.60}; it must return 16, 8, 4, 2 or 1")
            answers.append(int(found))
        return {"out": torch.tensor(answers)}

    def expected(questions: list[tuple]) -> dict[str, Tensor]:
        return {"out": torch.tensor([widest_by_trying(*sizes) for [sizes] in questions])}

    return [
        Trial(
            name=name,
            isolates=isolates,
            meaning=meaning,
            run=partial(run, questions),
            references={"trying": partial(expected, questions)},
            bounds={"out": 0.0},
            axes=("answer",),
        )
        for name, isolates, meaning, questions in asked(WIDEST_CASES, draw, DRAWN_WORDS, other_rows)
    ]


WIDEST = Exercise(
    notebook=NOTEBOOK,
    text="""\
How wide may a load be? Before a kernel with wide loads is launched, somebody must answer this
from the address and the strides of a tensor. The grader tries every load of the first rows.""",
    solution=widest_load,
    trials=widest_load_trials,
)


# 2. ---------------------------------------------------------------------------------------------


@cuda.jit
def copy_by_vecs(out, a):
    """A copy, by one thread block, 16 bytes at a time.

    a, out  [n] float32; n is 1 or more, and both begin at a multiple of 16 bytes; a is only read

    load(a, i) is a tuple: a[i] to a[i + 3], read by one request. store(out, i, values) writes
    such a tuple. The thread block has 32, 64, … threads.
    """
    # 1. how many whole vecs of 4 elements are there? Neighbouring threads take neighbouring vecs
    # 2. if there are more vecs than threads, a thread has several
    # 3. 0 to 3 elements are left: they are copied by one request for all of them
    ### BEGIN SOLUTION
    num_vecs = a.size // 4
    for vec in range(cuda.threadIdx.x, num_vecs, cuda.blockDim.x):
        store(out, 4 * vec, load(a, 4 * vec))
    i = 4 * num_vecs + cuda.threadIdx.x
    if i < a.size:
        out[i] = a[i]
    ### END SOLUTION


_TAIL = "Behind the last whole vec, 1 to 3 elements are left: they are copied one by one."
_VECS = "A warp reads 512 bytes with one request: vec t for thread t, then go on by all threads."
COPY_CASES = (
    # name, what it isolates, what its failure means, threads, elements
    ("one_request", "128 elements: one vec for each lane", _VECS, (32, 128)),
    ("several_turns", "32 threads, 4 vecs each", _VECS, (32, 512)),
    ("several_warps", "128 threads, 1,024 elements", _VECS, (128, 1024)),
    ("tail_of_3", "131 elements", _TAIL, (64, 131)),
    ("tail_of_1", "513 elements, a vec more than there are threads", _TAIL, (128, 513)),
    ("only_a_tail", "3 elements: no whole vec", _TAIL, (32, 3)),
    ("half_a_warp", "16 vecs and 2 elements", _TAIL, (32, 66)),
)  # fmt: skip


def copy_by_vecs_trials(draw: int = 0) -> list[Trial]:
    def task(num_threads: int, size: int) -> Task:
        a = seeded(size, draw).standard_normal(size, dtype=np.float32)
        tail = size % VEC
        sectors = divide_round_up(size * ITEM, SECTOR) + tail  # they may be touched again
        requests = divide_round_up(size // VEC, WARP_SIZE) + (tail > 0)
        enough = dict.fromkeys((0, 1), Enough(sectors, requests))
        warps = min(num_threads // WARP_SIZE, max(requests - (tail > 0), 1))
        return Task(num_threads, (a,), a, enough, warps)

    return [trial(*words, task(*sizes), copy_by_vecs, ("element",)) for *words, sizes in COPY_CASES]


COPY = Exercise(
    notebook=NOTEBOOK,
    text="""\
A copy with loads and stores of 16 bytes. The number of elements need not be a multiple of 4. No
byte beyond the end may be touched, and no sector twice, except for the tail. And no request may
be wasted: 512 bytes for each, and one more for the tail, the elements that are left.""",
    solution=copy_by_vecs,
    trials=copy_by_vecs_trials,
)


# 3. ---------------------------------------------------------------------------------------------


@cuda.jit(device=True)
def two_bfloat16(word):
    """The two bfloat16 of a word, as float32: (element 0, element 1).

    word  uint32: 4 bytes as they were loaded; the byte with the lower address is the lowest

    libdevice.int_as_float(bits) is the float32 that has these bits. bits: an int32; int32(…) makes
    one of a uint32.
    """
    # 1. which 16 bits of the word are element 0?
    # 2. a bfloat16 is the upper half of a float32: what is the lower half?
    # 3. bring each element's bits to their place, and return both numbers
    ### BEGIN SOLUTION
    first = libdevice.int_as_float(int32(word << 16))
    second = libdevice.int_as_float(int32(word & 0xFFFF0000))
    return first, second
    ### END SOLUTION


_UPPER = "Element 1 has the higher address: it is the upper half of the word, and stays there."
_LOWER = "Element 0 is the lower half of the word: its bits are moved, and no number is converted."
_BOTH = "The bits of element 0 must not be left in the lower half of element 1."
_BITS = "Bits are moved, and then read as a float32: no number is converted."
WORD_CASES = (
    # name, what it isolates, what its failure means, numbers
    ("only_element_1", "element 0 of each word is zero", _UPPER, [0, 1, 0, -1.5, 0, 2.5, 0, -3]),
    ("only_element_0", "element 1 of each word is zero", _LOWER, [1, 0, -1.5, 0, 2.5, 0, -3, 0]),
    ("powers_of_two", "8 numbers, one load of 16 bytes", _BOTH, [1, 2, 4, 8, 0.5, 0.25, 16, 32]),
    ("signs", "the highest bit of each half", _BITS, [-1, 1, -2, -3, 3, -0.5, 7, -7]),
    ("small_and_large", "1e-30 to 1e30", _BITS, [1e-30, -1e30, 1e20, 1e-20, 3.5, -1e-10, 1e10, 0]),
    ("many", "512 numbers of N(0, 1), two for each lane and load", _BITS,
     np.random.default_rng(0).standard_normal(512)),
)  # fmt: skip


def two_bfloat16_trials(draw: int = 0) -> list[Trial]:
    def task(name: str, numbers: object) -> Task:
        if draw:
            numbers = other_numbers(name, draw)
        kept = torch.tensor(np.asarray(numbers, np.float32)).to(torch.bfloat16)
        words = kept.view(torch.uint16).numpy().view(np.uint32)
        return Task(WARP_SIZE, (words,), kept.double().numpy(), {})

    trials = [
        trial(*words, task(words[0], numbers), two_bfloat16, ("element",), kernel_of=kernel_around)
        for *words, numbers in WORD_CASES
    ]
    return [replace(each, run=partial(two_numbers, each.run)) for each in trials]


WORD = Exercise(
    notebook=NOTEBOOK,
    text="""\
`ld.global.v4.u32` brings four words, whatever is in them. With bfloat16 there are two numbers in
each. Neither Python nor NumPy knows this type, but you know its bits: a bfloat16 is the upper half
of a float32. Write the device function that takes a word apart. The grader's kernel loads four
words at once and calls it for each.""",
    solution=two_bfloat16,
    trials=two_bfloat16_trials,
)


EXERCISES = (WIDEST, COPY, WORD)
