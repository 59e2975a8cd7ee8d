"""numba.cuda without a GPU: `from simt import cuda` for `from numba import cuda`.

Launches run in the simulator with all checks (`kernel.report` has the last report), and what a
program calls outside kernels, such as to_device and streams, is the simulator's. What kernels use
is numba.cuda's own. The states of random number generators come from cuda.random here, because
numba.cuda.random's go to a GPU.
"""

from collections.abc import Callable
from importlib import import_module
from types import SimpleNamespace

import numba
from numba import cuda

from simt.brackets import simulated_kernel
from simt.host import HOST, simulated
from simt.jit import remembering
from simt.simulate import simulate


def jit(*args: object, **options: object) -> Callable:
    """numba.cuda.jit, but kernels with a signature need no GPU, and all kernels are launched in the
    simulator, even where there is a GPU."""
    made = remembering(cuda.jit)(*args, **options)
    if hasattr(made, "py_func"):
        return simulated_kernel(made)
    return lambda function: simulated_kernel(made(function))


def _for_cuda(numbas: Callable) -> Callable:
    """numba.vectorize or numba.guvectorize, but the target is CUDA, in the simulator."""

    def decorator(*args: object, **options: object) -> Callable:
        make = numbas(*args, **{"target": "cuda"} | options)

        def decorate(function: Callable) -> Callable:
            with simulate():  # where Numba's classes make our ufuncs
                return make(function)

        return decorate

    return decorator


vectorize, guvectorize = map(_for_cuda, (numba.vectorize, numba.guvectorize))


def __getattr__(name: str) -> object:
    if name == "random":
        numbas = import_module("numba.cuda.random")
        own = {"create_xoroshiro128p_states": simulated()(numbas.create_xoroshiro128p_states)}
        return SimpleNamespace(**(vars(numbas) | own))
    return HOST[name] if name in HOST else getattr(cuda, name)
