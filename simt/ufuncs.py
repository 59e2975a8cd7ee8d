"""@vectorize and @guvectorize for CUDA, with kernels that run in the simulator.

How arguments are broadcast, and which signature they get, is Numba's own code. Its kernels, in
which each thread calls the function once, have no text that the simulator can read, so we write our
own. Source: numba-cuda, deviceufunc.py and vectorizers.py.
"""

import linecache
from collections.abc import Sequence
from contextlib import nullcontext
from types import FunctionType, SimpleNamespace

import numpy as np
from numba import cuda
from numba.core.types import Array, Type, void

from simt import private_names as numbas
from simt.arguments import require_type
from simt.brackets import simulated_kernel
from simt.device_array import DeviceArray, as_cuda_array, device_array, is_cuda_array, to_device
from simt.jit import remembering
from simt.source import Unsupported, source_of
from simt.successor_types import as_numbas


class OnDevice:
    """What Numba's code asks of a GPU."""

    is_device_array = staticmethod(is_cuda_array)
    as_device_array = staticmethod(as_cuda_array)
    to_device = staticmethod(to_device)
    allocate_device_array = staticmethod(device_array)


class Call(OnDevice, numbas.CUDAUFuncMechanism):
    """One call of a ufunc."""

    def _broadcast(self, arys: list[np.ndarray | DeviceArray]) -> list[np.ndarray | DeviceArray]:
        """Raises ValueError where Numba, without an error, repeats an array along wrong axes."""
        num_axes = max(array.ndim for array in arys)
        if any(array.ndim < num_axes and array.size > 1 for array in arys):
            raise ValueError(
                f"the arguments' shapes are {', '.join(str(array.shape) for array in arys)}, which "
                f"Numba's ufuncs for CUDA get wrong: give each argument {num_axes} axes"
            )
        return super()._broadcast(arys)

    def broadcast_device(self, ary: DeviceArray, shape: tuple[int, ...]) -> DeviceArray:
        return DeviceArray(np.broadcast_to(ary.array, shape))


class Ufunc(numbas.CUDAUFuncDispatcher):
    """What @vectorize makes: ufunc(a, b, out=…, stream=…) and ufunc.reduce(a)."""

    def __call__(self, *args: object, **kws: object) -> np.ndarray | DeviceArray:
        return Call.call(self.functions, args, kws)

    def reduce(self, arg: np.ndarray | DeviceArray, stream: object = 0) -> object:
        """One number. A device array is overwritten, as by Numba."""
        no_stream = SimpleNamespace(auto_synchronize=nullcontext)
        return super().reduce(to_device(arg), stream or no_stream)


class GUfuncCall(OnDevice, numbas.CUDAGUFuncCallSteps):
    """One call of a generalized ufunc."""


class GUfunc(numbas.CUDAGeneralizedUFunc):
    """What @guvectorize makes: gufunc(a, b, out=…, stream=…)."""

    _call_steps = GUfuncCall

    def _broadcast_scalar_input(self, ary: DeviceArray, shape: int) -> DeviceArray:
        return DeviceArray(np.broadcast_to(ary.array.reshape(()), shape))

    def _broadcast_add_axis(self, ary: DeviceArray, newshape: tuple[int, ...]) -> DeviceArray:
        return DeviceArray(np.broadcast_to(ary.array, newshape))


class Vectorize(numbas.CUDAVectorize):
    """Makes a ufunc of a function, with a kernel for each signature.

    `simulate` gives its methods to Numba's class.
    """

    def add(self, sig: object = None) -> None:
        types, result = numbas.normalize_signature(as_numbas(sig))
        if result is None:
            raise Unsupported(
                f"the simulator doesn't support the signature {sig} in @vectorize: begin it with "
                "the type of the result, as in float32(float32, float32)"
            )
        arrays = [f"a{i}" for i in range(len(types))]
        call = f"out[i] = function({', '.join(f'{a}[i]' for a in arrays)})"
        kernel = kernel_of(self.py_func, result(*types), [*arrays, "out"], call)
        self.kernelmap[dtypes_of(types)] = *dtypes_of([result]), simulated_kernel(cuda.jit(kernel))

    def build_ufunc(self) -> Ufunc:
        return Ufunc(self.kernelmap, self.py_func)


class GUVectorize(numbas.CUDAGUFuncVectorize):
    """The same for a function that gets parts of arrays, and writes its results into the last."""

    def add(self, sig: object = None) -> None:
        types, result = numbas.normalize_signature(as_numbas(sig))
        num_axes = [len(axes) for axes in (*self.inputsig, *self.outputsig)]
        if result not in (None, void) or not fit(types, num_axes, len(self.inputsig)):
            raise TypeError(
                f"signature is {sig}; it must have the arrays of {self.signature} and no result"
            )
        arrays = [f"a{i}" for i in range(len(types))]
        parts = ", ".join(map(part, arrays, num_axes, types))
        function = kernel_of(self.py_func, void(*types), arrays, f"function({parts})")
        stacks = [
            one.copy(ndim=n + 1) if isinstance(one, Array) else one[:]
            for one, n in zip(types, num_axes, strict=True)
        ]
        kernel = simulated_kernel(remembering(cuda.jit)(void(*stacks))(function))
        ins, outs = types[: len(self.inputsig)], types[len(self.inputsig) :]
        self.kernelmap[dtypes_of(ins)] = dtypes_of(outs), kernel

    def build_ufunc(self) -> GUfunc:
        engine = numbas.GUFuncEngine(self.inputsig, self.outputsig)
        return GUfunc(self.kernelmap, engine, self.py_func)


def fit(types: Sequence[Type], num_axes: Sequence[int], num_inputs: int) -> bool:
    """Numba takes an array of one item, or a number that is only read, for ()."""
    sizes = [one.ndim if isinstance(one, Array) else 0 for one in types]
    same = len(sizes) == len(num_axes) and all(sizes[num_inputs:])
    return same and all(size in (n, n or 1) for size, n in zip(sizes, num_axes, strict=True))


def part(array: str, num_axes: int, declared: Type) -> str:
    """What the function gets of an array: an item, or the part that begins with it."""
    if num_axes == 0 and isinstance(declared, Array):
        return f"{array}[i : i + 1]"
    return f"{array}[{', '.join(['i', *num_axes * [':']])}]"


def dtypes_of(types: Sequence[Type]) -> tuple[np.dtype, ...]:
    return tuple(np.dtype(str(getattr(one, "dtype", one))) for one in types)


def kernel_of(
    function: FunctionType, signature: object, arrays: list[str], statement: str
) -> FunctionType:
    """A kernel for as many threads as the last array has items: thread i executes the statement,
    which calls the function."""
    require_type(isinstance(function, FunctionType), "function", function, "defined with def")
    source_of(function)  # raises Unsupported if there is none
    device = remembering(cuda.jit)(signature, device=True)(function)
    name = function.__name__ if function.__name__.isidentifier() else "ufunc"  # of a lambda
    text = (
        f"def {name}({', '.join(arrays)}):\n"
        "    i = cuda.grid(1)\n"
        f"    if i < {arrays[-1]}.shape[0]:\n"
        f"        {statement}\n"
    )
    file = f"<{name}: {statement}>"
    linecache.cache[file] = len(text), None, text.splitlines(keepends=True), file
    names = {"cuda": cuda, "function": device, "__name__": __name__}
    exec(compile(text, file, "exec"), names, made := {})
    return made[name]
