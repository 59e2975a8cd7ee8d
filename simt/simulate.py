"""simulate makes kernel[grid, block](…), Numba's way to write a launch, run in the simulator."""

import inspect
import sys
from collections.abc import Callable, Mapping
from threading import RLock

import numpy as np

from simt.device_array import DeviceArray
from simt.jit import remembering
from simt.launch import launch
from simt.names import CUDA_MODULES, loaded, refuse_numbas_simulator
from simt.private_names import CUDADispatcher, normalize_kernel_dimensions
from simt.report import Report

OPTIONS = frozenset(inspect.getfullargspec(launch).kwonlyargs) - {"shared_bytes"}
Launcher = Callable[..., Report]
NOW: list["simulate"] = []  # those that haven't ended; the innermost is the last
LOCK = RLock()  # for blocks in several threads, which begin and end in any order


class Replaced:
    """Names that are replaced for a while, and what Numba has under them."""

    def __init__(self) -> None:
        self.numbas: dict[tuple[object, str], object] = {}  # (where, name) -> the object

    def add(self, ours: Mapping[tuple[object, str], object]) -> None:
        """Replace what isn't yet: for a second block, only what was imported since the first."""
        for where, name in ours.keys() - self.numbas.keys():
            self.numbas[where, name] = getattr(where, name)
            setattr(where, name, ours[where, name])

    def put_back(self) -> None:
        for (where, name), original in self.numbas.items():
            setattr(where, name, original)
        self.numbas.clear()


LAUNCHES = Replaced()


class simulate:
    """From now on, kernel[grid, block, stream, shared_bytes](…) runs here, with all checks.

        simulate()
        double_each[4, 32](out, a)
        print(double_each.report)

        with simulate(trace=0):  # other options, until the end of the block
            double_each[4, 32](out, a)

    Without the call to simulate, the same lines run on a GPU. `kernel.report` is the report of the
    kernel's last launch. A stream is ignored: one launch ends before the next one begins.

    Until the end of the block, `numba.cuda.jit` is replaced, too. Without a GPU, Numba can't
    decorate a kernel that has a signature, as in @cuda.jit("void(int32[:])"), so define it after
    the call to simulate; a `jit` that was imported by its name before is still Numba's. The end of
    a block also ends what `simulate()` began inside it.

    launcher  called in place of `launch`, with its arguments. If it has a method `counted`, a
              cuda.reduce enters what that returns, given the function
    options   those of `launch`, except shared_bytes, which is in the brackets

    Raises TypeError for an option that `launch` doesn't have, RuntimeError if Numba's own simulator
    has taken numba.cuda's place. A launch raises what `launch` raises,
    and Numba's own errors for brackets that Numba doesn't accept.
    """

    def __init__(self, launcher: Launcher | None = None, **options: object) -> None:
        refuse_numbas_simulator()
        unknown = sorted(options.keys() - OPTIONS)
        if unknown:
            raise TypeError(
                f"simulate has no option {unknown[0]!r}; it has {', '.join(sorted(OPTIONS))}"
            )
        self.launcher, self.options, self.is_block = launcher or innermost()[0], options, False
        self._begin()

    def __repr__(self) -> str:
        words = ", ".join(f"{name}={value!r}" for name, value in self.options.items())
        return f"kernel[grid, block](…) runs in the simulator{words and ', with '}{words}"

    def __enter__(self) -> None:
        self.is_block = True
        if self not in NOW:  # it is the object's second block
            self._begin()

    def __exit__(self, *error: object) -> None:
        with LOCK:
            if self in NOW:
                here = NOW.index(self)
                NOW[here:] = [later for later in NOW[here + 1 :] if later.is_block]
            if not NOW:
                LAUNCHES.put_back()

    def _begin(self) -> None:
        with LOCK:
            NOW.append(self)
            LAUNCHES.add(our_launches())


def innermost() -> tuple[Launcher | None, dict[str, object]]:
    """What launches in place of `launch`, and with which options."""
    return (NOW[-1].launcher, NOW[-1].options) if NOW else (None, {})


def our_launches() -> dict[tuple[object, str], object]:
    """What takes the place of Numba's own: (where, name) -> the object."""
    ours = {(kind, "configure"): configure for kind in kinds_of_kernels()}
    ours |= {(kind, "forall"): forall for kind in kinds_of_kernels()}
    return ours | {(cuda, "jit"): remembering(cuda.jit) for cuda in loaded(*CUDA_MODULES)}


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
        launcher, options = innermost()
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
