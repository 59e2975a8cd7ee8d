"""What the Triton kernels can take, and the sizes of their tiles."""

from collections.abc import Callable, Sequence

from torch import Tensor

from pa_tutorial.arguments import require, require_dense, require_type, whole_number, whole_numbers
from pa_tutorial.attention.step import DecodeStep, require_for_kernel
from pa_tutorial.paging.quantization import AS_INTEGERS
from simt.gpus import MAX_GRID_YZ

MIN_TILE = 16  # of a dimension that tl.dot sums over
KEY_BYTES = 8192  # of the keys of a tile, by default
MOST_TOKENS = 64  # of a tile, by default
# Name -> its allowed values, and how a message describes them. A partition size plus the length of
# a sequence must fit into 32 bits; Triton limits a tile to 2**20 numbers.
SIZES = {
    "partition_size": (range(1, 2**30 + 1), f"1 to {2**30}"),
    "tile_size": ([2**i for i in range(4, 11)], f"a power of two, {MIN_TILE} to 1024"),
    "num_warps": ([2**i for i in range(6)], "1, 2, 4, 8, 16 or 32"),
    "num_stages": (range(1, 2**31), "at least 1"),
}


def next_power_of_two(n: int) -> int:
    return 1 << (n - 1).bit_length()


def padded(head_size: int) -> int:
    """The length of a tile that holds a whole head."""
    return max(MIN_TILE, next_power_of_two(head_size))


def usual_tile(head_size: int, itemsize: int) -> int:
    """Tokens of a tile: on a GPU three tiles of K and of V must fit into shared memory."""
    return min(MOST_TOKENS, max(MIN_TILE, KEY_BYTES // (padded(head_size) * itemsize)))


def stored(cache: Tensor) -> Tensor:
    """The same memory; an 8-bit cache as the integers that the kernel decodes, because Triton's
    own e4m3 needs sm_89."""
    return cache.detach().view(AS_INTEGERS.get(cache.dtype, cache.dtype))


def require_triton_inputs(step: DecodeStep) -> None:
    """Raise TypeError or ValueError, naming the argument, unless the kernels can read the step."""
    require_for_kernel(step, "plain", reads_float8=True)
    step.require_strides(k_dims=2, v_dims=2)
    require_dense("block_tables", step.block_tables, 1)
    require_dense("seq_lens", step.seq_lens, 1)
    allowed = f"at most {MAX_GRID_YZ}: axis y of a grid"
    require(len(step.q) <= MAX_GRID_YZ, "len(q)", len(step.q), allowed)


def checked_grid(kernel: Callable, grid: Sequence[int]) -> tuple[int, ...]:
    """The grid as ints. Raises TypeError or ValueError unless it is one, and a @triton.jit kernel
    goes with it."""
    require_type(hasattr(kernel, "arg_names"), "kernel", kernel, "a @triton.jit function")
    sizes = tuple(whole_numbers("grid", grid))
    require(len(sizes) == 3 and min(sizes) >= 1, "grid", grid, "three sizes, each at least 1")
    return sizes


def checked_size(name: str, size: int) -> int:
    """The size as an int. Raises TypeError or ValueError if the kernels can't take it."""
    values, allowed = SIZES[name]
    size = whole_number(name, size)
    require(size in values, name, size, allowed)
    return size
