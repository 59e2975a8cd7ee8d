"""kernel[grid, block](…), Numba's way to write a launch, as the simulator understands it."""

from collections.abc import Callable
from types import MethodType
from typing import Any

from simt.launch import launch
from simt.private_names import CUDADispatcher, normalize_kernel_dimensions
from simt.report import Report

Launcher = Callable[..., Report]
NOW: list[Any] = []  # each `simulate` that hasn't ended; the innermost is the last


def innermost() -> tuple[Launcher | None, dict[str, object]]:
    """What launches in place of `launch`, and with which options."""
    return (NOW[-1].launcher, NOW[-1].options) if NOW else (None, {})


def configure(
    kernel: CUDADispatcher, griddim: object, blockdim: object, stream: object = 0,
    sharedmem: int = 0,
) -> Callable[..., None]:  # fmt: skip
    """A method for Numba's kernels that replaces the one that prepares a launch on a GPU."""
    grid, block = normalize_kernel_dimensions(griddim, blockdim)

    def launched(*args: object) -> None:
        launcher, options = innermost()
        kernel.report = None
        start = launcher or launch
        kernel.report = start(kernel, grid, block, *args, shared_bytes=sharedmem, **options)

    return launched


def forall(
    kernel: CUDADispatcher, ntasks: int, tpb: int = 0, stream: object = 0, sharedmem: int = 0
) -> Callable[..., None]:
    """A method for Numba's kernels: enough thread blocks for ntasks threads. Numba asks the GPU
    for a good block size; here it is 128."""
    block = tpb or 128
    if ntasks < 1:
        return lambda *args: None
    return kernel[-(-ntasks // block), block, stream, sharedmem]


def simulated_kernel(kernel: CUDADispatcher) -> CUDADispatcher:
    """Numba's kernel, which from now on is launched in the simulator only."""
    kernel.configure, kernel.forall = MethodType(configure, kernel), MethodType(forall, kernel)
    return kernel
