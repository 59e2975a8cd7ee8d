"""Which object of Numba is which: cuda.threadIdx, cuda.shared.array, float32 and the rest.

A kernel may say `cuda.syncthreads()`, or `from numba.cuda import syncthreads`; it may use
numba.cuda or its successor numba_cuda_mlir. What counts is the object itself.
"""

import sys
from functools import cache

import numpy as np

from pa_tutorial.simt.intrinsics import ARRAYS, FUNCTIONS, REGISTERS, SPECIAL

CUDA_MODULES = ("numba.cuda", "numba_cuda_mlir.cuda")
NAMES = frozenset((*FUNCTIONS, *REGISTERS, *SPECIAL, *ARRAYS))


def cuda_name(thing: object) -> str | None:
    """ "threadIdx", "atomic.add", ...; None if it is nothing of cuda's that is known here."""
    loaded = tuple(name for name in CUDA_MODULES if name in sys.modules)
    return _table(loaded).get(id(thing))


@cache
def _table(modules: tuple[str, ...]) -> dict[int, str]:
    table = {}
    for module in modules:
        for name in NAMES:
            found: object = sys.modules[module]
            for part in name.split("."):
                found = getattr(found, part, None)
            if found is not None:
                table[id(found)] = name
    return table


def cast_target(thing: object) -> np.dtype | None:
    """The type that numba.float32, np.float32 or np.dtype("float32") stands for."""
    if isinstance(thing, type) and issubclass(thing, np.generic):
        return np.dtype(thing)
    if isinstance(thing, np.dtype):
        return thing
    from numba.core import types
    from numba.np.numpy_support import as_dtype

    if isinstance(thing, types.Type):
        return (
            np.dtype(as_dtype(thing)) if isinstance(thing, types.Number | types.Boolean) else None
        )
    if type(thing).__module__.startswith("numba") and hasattr(thing, "bitwidth"):
        return np.dtype(str(thing))  # the types of numba_cuda
    return None


def plain_function(thing: object) -> object | None:
    """The Python function behind a @cuda.jit kernel or device function."""
    return getattr(thing, "py_func", None)
