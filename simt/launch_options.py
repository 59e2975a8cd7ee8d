"""What a launch may ask for: sizes that GPUs have, and mistakes that can be looked for."""

import math
from collections.abc import Sequence

import numpy as np

from simt.gpus import H100, MAX_GRID_YZ, MAX_THREADS, WARP_SIZE
from simt.machine import CHECKS, ORDERS

Order = str | int | Sequence[int]
Size = int | tuple[int, ...]
MAX_SHARED = H100.max_shared_bytes_per_block  # other GPUs have less
MAX_BLOCK_Z = 64  # threads of a thread block along z
MAX_BLOCKS = 1 << 20  # these take minutes; a GPU can run more


def three_sizes(name: str, size: Size) -> tuple[int, int, int]:
    sizes = size if isinstance(size, tuple) else (size,)
    if not 1 <= len(sizes) <= 3 or not all(isinstance(n, int | np.integer) for n in sizes):
        raise TypeError(f"{name} is {size!r}; it must be one to three whole numbers")
    if min(sizes) < 1:
        raise ValueError(f"{name} is {size!r}; every number must be at least 1")
    return (*(int(n) for n in sizes), 1, 1)[:3]


def require_limits(
    grid: tuple[int, int, int], block: tuple[int, int, int], shared_bytes: int
) -> None:
    """Refuse what no GPU runs, and a grid that takes too long here. Source: CUDA C++ Programming
    Guide, compute capabilities."""
    if math.prod(block) > MAX_THREADS or block[2] > MAX_BLOCK_Z:
        raise ValueError(
            f"block is {block}: at most {MAX_THREADS} threads, and {MAX_BLOCK_Z} along z, are "
            "allowed"
        )
    if max(grid[1:]) > MAX_GRID_YZ:
        raise ValueError(f"grid is {grid}: at most {MAX_GRID_YZ} along y and z are allowed")
    if math.prod(grid) > MAX_BLOCKS:
        raise ValueError(f"grid is {grid}: the simulator runs at most {MAX_BLOCKS:,} thread blocks")
    if not isinstance(shared_bytes, int | np.integer):
        raise TypeError(f"shared_bytes is {shared_bytes!r}; it must be a whole number")
    if not 0 <= shared_bytes <= MAX_SHARED:
        raise ValueError(f"shared_bytes is {shared_bytes}; it must be between 0 and {MAX_SHARED}")


def require_shared_fits(static_bytes: int, shared_bytes: int) -> None:
    """Refuse what is too much in sum, though each part is allowed."""
    if static_bytes + shared_bytes > MAX_SHARED:
        raise ValueError(
            f"shared_bytes is {shared_bytes}, and the kernel's static shared arrays take "
            f"{static_bytes} bytes; together they may take {MAX_SHARED}"
        )


def require_grid_fits(
    grid: tuple[int, int, int], block: tuple[int, int, int], shared_bytes: int
) -> None:
    """Refuse thread blocks that wait for one another, but don't fit on the largest GPU at once."""
    at_once = H100.resident_blocks(math.prod(block), 1, shared_bytes)
    most = H100.num_multiprocessors * min(at_once.values())
    if math.prod(grid) > most:
        raise ValueError(
            f"grid is {grid}: all thread blocks that wait in grid.sync() must fit on the GPU at "
            f"once; an {H100.name} has room for {most:,} of this size"
        )


def known_checks(checks: str | Sequence[str]) -> tuple[str, ...]:
    """The checks, as a tuple. Raises ValueError for one that there isn't."""
    checks = as_tuple(checks)
    unknown = [check for check in checks if check not in CHECKS]
    if unknown:
        raise ValueError(f"checks: {unknown[0]!r} is not one of {', '.join(CHECKS)}")
    return checks


def known_order(order: Order, block: tuple[int, int, int]) -> str | int | tuple[int, ...]:
    """The order, a list of warps as a tuple. Raises ValueError for one that there isn't."""
    if isinstance(order, int) or order in ORDERS:
        return order
    warps = range(-(-math.prod(block) // WARP_SIZE))
    is_list = isinstance(order, list | tuple) and len(order) == len(warps)
    if not is_list or any(warp not in order for warp in warps):
        orders, every = ", ".join(ORDERS), f"a list of the warps 0 to {warps[-1]}"
        raise ValueError(f"order is {order!r}; it must be one of {orders}, a seed, or {every}")
    return tuple(order)


def as_tuple(one_or_more: object) -> tuple:
    return (one_or_more,) if isinstance(one_or_more, int | str) else tuple(one_or_more)
