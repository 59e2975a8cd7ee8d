"""numba.cuda without a GPU: `from simt import cuda` for `from numba import cuda`.

Launches run in the simulator with all checks (`kernel.report` has the last report), and what a
program calls outside kernels, such as to_device and streams, is the simulator's. What kernels use
is numba.cuda's own.
"""

from collections.abc import Callable
from types import MethodType

from numba import cuda

from simt.host import HOST
from simt.jit import remembering
from simt.simulate import configure, forall


def jit(*args: object, **options: object) -> Callable:
    """numba.cuda.jit, but kernels with a signature need no GPU, and all kernels are launched in the
    simulator, even where there is a GPU."""
    made = remembering(cuda.jit)(*args, **options)
    if hasattr(made, "py_func"):
        return simulated_kernel(made)
    return lambda function: simulated_kernel(made(function))


def simulated_kernel(kernel: Callable) -> Callable:
    kernel.configure, kernel.forall = MethodType(configure, kernel), MethodType(forall, kernel)
    return kernel


def __getattr__(name: str) -> object:
    return HOST[name] if name in HOST else getattr(cuda, name)
