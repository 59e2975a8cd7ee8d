"""How answers of notebook 11 are graded: every start of a load, and a kernel around a function."""

from collections.abc import Callable
from itertools import product

from numba import cuda
from torch import Tensor

from pa_tutorial.exercises.kernels import require_device_function
from pa_tutorial.kernels.vectors import vector_access
from pa_tutorial.ladder import AnswerError
from pa_tutorial.simt import Unsupported

SIZES = (16, 8, 4, 2, 1)  # bytes that one instruction can load
TRIED = 4  # rows along each axis


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
