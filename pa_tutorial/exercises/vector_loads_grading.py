"""How answers of notebook 11 are graded: every start of a load, and a kernel around a function."""

from collections.abc import Callable
from itertools import product

import numpy as np
from numba import cuda
from torch import Tensor

from pa_tutorial.exercises.drawing import seeded
from pa_tutorial.exercises.kernels import require_device_function
from pa_tutorial.kernels.vectors import vector_access
from pa_tutorial.simt import Unsupported
from pa_tutorial.walk.calls import AnswerError

SIZES = (16, 8, 4, 2, 1)  # bytes that one instruction can load
TRIED = 4  # rows along each axis
DRAWN_WORDS = {  # of widest_load, where the words of the notebook name its numbers
    "value_rows": "V: rows of a few tokens in float16",
    "key_vecs": "K: each thread of a group has a part of a piece",
    "shifted": "a tensor that begins a little late",
    "odd_gap": "a small gap between two sequences of q",
    "two_strides": "two strides that make a multiple of 16 together",
    "a_narrower_stride": "a large stride and one that limits",
    "long_rows": "rows of 64 bytes and more",
}


def other_rows(rng: np.random.Generator, name: str, _: tuple) -> tuple[tuple]:
    """Another question for a case of widest_load: address, strides, bytes of a row."""
    n = int(rng.choice((2, 4, 8)))  # what the case may allow
    a, b, few = (16 * int(k) for k in rng.integers(1, 9, 3))
    start, row = 16 * a, 16 * b  # multiples of 256, so that they limit nothing
    sizes = {
        "value_rows": (start, (few * 8 * n, few * n, n), n),
        "key_vecs": (start, (16 * few, 256, 16, n), n),
        "shifted": (start + n, (4 * row, row), row),
        "odd_gap": (start, (4 * row + n, row), row),
        "two_strides": (start, (n, few - n), 16),
        "a_narrower_stride": (start, (2 * few, few + n), 16),
        "long_rows": (start, (4 * few * 4, few * 4), few * 4),
        "heads_of_120": (start + n, (16 * 240, 240), 240),
        "eight_bits_of_120": (start, (few + 112,), 120),
        "one_row": (start + n, (), few + n),
        "single_bytes": (start + n - 1, (row,), row),
    }
    return (sizes[name],)


def other_numbers(name: str, draw: int) -> np.ndarray:
    """Other numbers for a case of two_bfloat16, in pairs: element 0 and element 1 of each word."""
    rng = seeded(len(name), draw)
    signs = rng.permuted([[-1, -1, 1, 1]] * 2, axis=1).T  # in both halves
    pairs = signs * rng.integers(1, 64, (4, 2)) / 4
    if name == "only_element_1":
        pairs[:, 0] = 0
    elif name == "only_element_0":
        pairs[:, 1] = 0
    elif name == "powers_of_two":
        pairs = 2.0 ** rng.permutation(np.arange(-6, 10))[:8]
    elif name == "small_and_large":
        pairs = signs * 10 ** rng.permutation([-30, 30, *rng.uniform(-30, 30, 6)]).reshape(4, 2)
    elif name == "many":
        pairs = rng.standard_normal(512)
    return pairs.ravel()


def widest_by_trying(address: int, strides: tuple[int, ...], row_bytes: int) -> int:
    """The largest size for which every load of the first rows is aligned, and none goes beyond."""

    def fits(num_bytes: int) -> bool:
        rows = (
            address + sum(i * stride for i, stride in zip(index, strides, strict=True))
            for index in product(range(TRIED), repeat=len(strides))
        )
        starts = (row + begin for row in rows for begin in range(0, row_bytes, num_bytes))
        return row_bytes % num_bytes == 0 and all(start % num_bytes == 0 for start in starts)

    return next(size for size in SIZES if fits(size))


def kernel_around(answer: Callable) -> Callable:
    """kernel(out, words): a thread takes four words at once, and writes their eight numbers."""
    two_bfloat16 = require_device_function(answer)
    load, _, _ = vector_access(4)

    @cuda.jit
    def take_apart(out, words):
        for vec in range(cuda.threadIdx.x, words.size // 4, cuda.blockDim.x):
            loaded = load(words, 4 * vec)
            for w in range(4):
                out[8 * vec + 2 * w], out[8 * vec + 2 * w + 1] = two_bfloat16(loaded[w])

    return take_apart


def two_numbers(
    run: Callable[[Callable | None], dict[str, Tensor]], answer: Callable | None
) -> dict[str, Tensor]:
    """run(answer), of the kernel above. AnswerError where it does not get two numbers."""
    try:
        return run(answer)
    except Unsupported as error:
        if "in take_apart" not in str(error):  # a line of the answer, not of the grader
            raise
        raise AnswerError("it must return two numbers: element 0 and element 1") from None
