"""simulate makes kernel[grid, block](…), Numba's way to write a launch, run in the simulator."""

import inspect
import sys
from collections.abc import Callable

import numpy as np

from simt.device_array import DeviceArray
from simt.launch import launch
from simt.names import refuse_numbas_simulator
from simt.private_names import CUDADispatcher, normalize_kernel_dimensions
from simt.report import Report

OPTIONS = frozenset(inspect.getfullargspec(launch).kwonlyargs) - {"shared_bytes"}
# The innermost `simulate` is the last: what launches in place of `launch`, and with which options.
NOW: list[tuple[Callable[..., Report] | None, dict[str, object]]] = [(None, {})]


class simulate:
    """From now on, kernel[grid, block, stream, shared_bytes](…) runs here, with all checks.

        simulate()
        double_each[4, 32](out, a)
        print(double_each.report)

        with simulate(trace=0):  # other options, until the end of the block
            double_each[4, 32](out, a)

    Without the call to simulate, the same lines run on a GPU. `kernel.report` is the report of the
    kernel's last launch. A stream is ignored: one launch ends before the next one begins.

    launcher  called in place of `launch`, with its arguments. If it has a method `counted`, a
              cuda.reduce enters what that returns, given the function
    options   those of `launch`, except shared_bytes, which is in the brackets

    Raises TypeError for an option that `launch` doesn't have, RuntimeError if Numba's own simulator
    has taken numba.cuda's place. A launch raises what `launch` raises,
    and Numba's own errors for brackets that Numba doesn't accept.
    """

    def __init__(self, launcher: Callable[..., Report] | None = None, **options: object) -> None:
        refuse_numbas_simulator()
        unknown = sorted(options.keys() - OPTIONS)
        if unknown:
            raise TypeError(
                f"simulate has no option {unknown[0]!r}; it has {', '.join(sorted(OPTIONS))}"
            )
        self.options = options
        self.before = [(kind, kind.configure, kind.forall) for kind in kinds_of_kernels()]
        for kind, *_ in self.before:
            kind.configure, kind.forall = configure, forall
        NOW.append((launcher or NOW[-1][0], options))

    def __repr__(self) -> str:
        words = ", ".join(f"{name}={value!r}" for name, value in self.options.items())
        return f"kernel[grid, block](…) runs in the simulator{words and ', with '}{words}"

    def __enter__(self) -> None:
        pass

    def __exit__(self, *error: object) -> None:
        NOW.pop()
        for kind, *methods in self.before:
            kind.configure, kind.forall = methods


def kinds_of_kernels() -> list[type]:
    """The classes of what cuda.jit returns: Numba's, and numba_cuda_mlir's if it is loaded."""
    others = sys.modules.get("numba_cuda_mlir.descriptor")
    return [CUDADispatcher, *([others.MLIRDispatcher] if others else [])]


def configure(
    kernel: CUDADispatcher, griddim: object, blockdim: object, stream: object = 0,
    sharedmem: int = 0,
) -> Callable[..., None]:  # fmt: skip
    """A method for Numba's kernels that replaces the one that prepares a launch on a GPU."""
    grid, block = normalize_kernel_dimensions(griddim, blockdim)

    def launched(*args: object) -> None:
        launcher, options = NOW[-1]
        kernel.report = None
        args = map(of_hint, args)
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


def of_hint(argument: object) -> object:
    """cuda.In, Out and InOut say what has to be copied: a kernel can't change what is only In."""
    kind, value = type(argument).__name__, getattr(argument, "value", None)
    if kind not in ("In", "Out", "InOut") or not isinstance(value, np.ndarray | DeviceArray):
        return argument
    return value.copy() if kind == "In" and isinstance(value, np.ndarray) else value
