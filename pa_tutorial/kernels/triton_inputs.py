"""What the Triton kernels can take, and the sizes of their tiles."""

import torch
from torch import Tensor

from pa_tutorial.arguments import require, require_dense
from pa_tutorial.attention.step import MAX_GRID_YZ, DecodeStep

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
MIN_TILE = 16  # of a dimension over which tl.dot adds up
KEY_BYTES = 8192  # of the keys of a tile, where nobody says how many there shall be
MOST_TOKENS = 64  # of a tile, where nobody says how many
MAX_TILE = 1024  # tokens: Triton has a limit of 2**20 numbers for a tile
MOST_OF_A_PARTITION = 2**30  # with the length of a sequence it must have 32 bits


def next_power_of_two(n: int) -> int:
    return 1 << (n - 1).bit_length()


def padded(head_size: int) -> int:
    """The length of a tile that has a whole head."""
    return max(MIN_TILE, next_power_of_two(head_size))


def usual_tile(head_size: int, itemsize: int) -> int:
    """Tokens of a tile: on a GPU three tiles of K and of V must fit into shared memory."""
    return min(MOST_TOKENS, max(MIN_TILE, KEY_BYTES // (padded(head_size) * itemsize)))


def require_triton_inputs(step: DecodeStep, newest: dict[str, Tensor] | None) -> None:
    """Raise TypeError or ValueError, naming the argument, unless the kernels can read all.

    newest  k_new and v_new by name, if they are beside the cache: then seq_lens is what the caller
            calls context_lens, and may be 0
    """
    lens_name, least = ("seq_lens", 1) if newest is None else ("context_lens", 0)
    newest = newest or {}
    q, k_cache, v_cache = step.q, step.k_cache, step.v_cache
    step.require_readable(None, lens_name, newest)
    allowed = "of 4 dimensions: the plain layout"
    require(k_cache.dim() == 4, "k_cache.shape", list(k_cache.shape), allowed)
    step.require_shapes(lens_name)
    require(q.dtype in DTYPES, "q.dtype", q.dtype, f"one of {', '.join(map(str, DTYPES))}")
    for name, tensor in newest.items():
        shape = [len(q), k_cache.shape[1], q.shape[2]]
        require(list(tensor.shape) == shape, f"{name}.shape", list(tensor.shape), shape)
        require_dense(name, tensor, 3)
    for name, tensor in {"k_cache": k_cache, "v_cache": v_cache, **newest}.items():
        require(tensor.dtype == q.dtype, f"{name}.dtype", tensor.dtype, f"{q.dtype}, as q")
    step.require_strides(k_dims=2, v_dims=2)
    require_dense("block_tables", step.block_tables, 1)
    require_dense(lens_name, step.seq_lens, 1)
    step.require_for_grid()
    step.require_numbers(lens_name, least)


def require_sizes(partition_size: int, tile_size: int, num_warps: int, num_stages: int) -> None:
    """Raise TypeError or ValueError for a size that the kernels cannot have."""
    sizes = {
        "partition_size": partition_size,
        "tile_size": tile_size,
        "num_warps": num_warps,
        "num_stages": num_stages,
    }
    for name, size in sizes.items():
        if not isinstance(size, int) or isinstance(size, bool):
            raise TypeError(f"{name} is of type {type(size).__name__}; it must be an int")
    is_size = 1 <= partition_size <= MOST_OF_A_PARTITION
    require(is_size, "partition_size", partition_size, f"1 to {MOST_OF_A_PARTITION}")
    is_tile = MIN_TILE <= tile_size <= MAX_TILE and tile_size == next_power_of_two(tile_size)
    require(is_tile, "tile_size", tile_size, f"a power of two, {MIN_TILE} to {MAX_TILE}")
    is_power = num_warps >= 1 and num_warps == next_power_of_two(num_warps)
    require(is_power and num_warps <= 32, "num_warps", num_warps, "1, 2, 4, 8, 16 or 32")
    require(num_stages >= 1, "num_stages", num_stages, "at least 1")


def require_partitions(max_num_partitions: int, partition_size: int) -> None:
    """Raise ValueError for more partitions than a grid can have."""
    if max_num_partitions > MAX_GRID_YZ:
        raise ValueError(
            f"partition_size is {partition_size}, which makes {max_num_partitions:,} partitions; "
            f"there may be {MAX_GRID_YZ:,}: axis z of a grid"
        )
