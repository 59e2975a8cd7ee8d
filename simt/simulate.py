"""simulate makes kernel[grid, block](…), Numba's way to write a launch, run in the simulator."""

import inspect
import sys
from collections.abc import Mapping
from threading import RLock

from simt.brackets import NOW, Launcher, configure, forall, innermost
from simt.jit import remembering
from simt.launch import launch
from simt.names import CUDA_MODULES, loaded, refuse_numbas_simulator
from simt.private_names import CUDADispatcher, CUDAGUFuncVectorize, CUDAVectorize
from simt.ufuncs import GUVectorize, Vectorize

OPTIONS = frozenset(inspect.getfullargspec(launch).kwonlyargs) - {"shared_bytes"}
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
    the call to simulate; a `jit` that was imported by its name before is still Numba's. What
    @vectorize and @guvectorize make for CUDA runs here, too, even after the block. The end of a
    block also ends what `simulate()` began inside it.

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


def our_launches() -> dict[tuple[object, str], object]:
    """What takes the place of Numba's own: (where, name) -> the object."""
    ours = {(kind, "configure"): configure for kind in kinds_of_kernels()}
    ours |= {(kind, "forall"): forall for kind in kinds_of_kernels()}
    for numbas, kind in ((CUDAVectorize, Vectorize), (CUDAGUFuncVectorize, GUVectorize)):
        ours |= {(numbas, "add"): kind.add, (numbas, "build_ufunc"): kind.build_ufunc}
    return ours | {(cuda, "jit"): remembering(cuda.jit) for cuda in loaded(*CUDA_MODULES)}


def kinds_of_kernels() -> list[type]:
    """The classes of what cuda.jit returns: Numba's, and numba_cuda_mlir's if it is loaded."""
    others = sys.modules.get("numba_cuda_mlir.descriptor")
    return [CUDADispatcher, *([others.MLIRDispatcher] if others else [])]
