"""Which object of Numba is which: cuda.threadIdx, cuda.shared.array, float32 and the rest.

A kernel may write `cuda.syncthreads()`, or `from numba.cuda import syncthreads`; it may use
numba.cuda or its successor numba_cuda_mlir. So we look at the object itself, not at its name.
"""

import sys
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from importlib import import_module
from types import FunctionType, ModuleType

import numpy as np

from simt.arithmetic import DTYPES
from simt.intrinsics import ARRAYS, FUNCTIONS, REGISTERS, SPECIAL

CUDA_MODULES = ("numba.cuda", "numba_cuda_mlir.cuda")
MODULES = *CUDA_MODULES, *(f"{name}.fp16" for name in CUDA_MODULES)  # all that have our names
NAMES = frozenset((*FUNCTIONS, *REGISTERS, *SPECIAL, *ARRAYS))


def refuse_numbas_simulator() -> None:
    """Raise RuntimeError if Numba's own simulator has taken numba.cuda's place, as it does if
    NUMBA_ENABLE_CUDASIM is set when numba.cuda is imported; later it has no effect."""
    if ".simulator" in import_module("numba.cuda").jit.__module__:
        raise RuntimeError(
            "NUMBA_ENABLE_CUDASIM is set: Numba's own simulator has taken numba.cuda's place. "
            "Unset it and start Python again."
        )


def cuda_name(thing: object) -> str | None:
    """ "threadIdx", "atomic.add", ...; None if it isn't part of cuda, or isn't known here."""
    name, _ = _table(*map(sys.modules.get, MODULES)).get(id(thing), (None, None))
    return name


def with_halves(module: object) -> None:
    """Import cuda.fp16, if this is cuda: it takes longer than a small launch, so we import it only
    for a kernel that names it. Numba does so when it compiles."""
    if getattr(module, "__name__", None) in CUDA_MODULES:
        with suppress(ImportError):
            import_module(f"{module.__name__}.fp16")


def loaded(*names: str) -> list[ModuleType]:
    """The modules of these names that have been imported."""
    return [sys.modules[name] for name in names if name in sys.modules]


@cache
def _table(*modules: ModuleType | None) -> dict[int, tuple[str, object]]:
    """id -> name, and the object itself: while we hold it, no other object can get its id."""
    table = {}
    for module in (one for one in modules if one and one.__name__ in CUDA_MODULES):
        for name in NAMES:
            found: object = module
            for part in name.split("."):
                found = getattr(found, part, None)
            if found is not None:
                table[id(found)] = name, found
    return table


def cast_target(thing: object) -> np.dtype | None:
    """The number type meant by numba.float32, np.float32, np.dtype("float32") or "float32"."""
    if type(thing).__module__.startswith("numba"):
        thing = str(thing)  # its types have NumPy's names
    elif not isinstance(thing, np.dtype | str) and not _is_number_type(thing):
        return None
    try:
        dtype = np.dtype(thing)
    except (TypeError, ValueError):
        return None
    return dtype if dtype in DTYPES else None


def _is_number_type(thing: object) -> bool:
    return isinstance(thing, type) and issubclass(thing, np.number | np.bool_)


def names_of(function: FunctionType) -> tuple[str, ...]:
    """The names of its parameters."""
    return function.__code__.co_varnames[: function.__code__.co_argcount]


def plain_function(thing: object) -> FunctionType | None:
    """The Python function behind a @cuda.jit kernel or device function.

    None for cuda's own functions: in stock Numba (without numba-cuda, as on every Mac) shuffles
    and votes are device functions too. We know them by name, not by their code.
    """
    return None if cuda_name(thing) else getattr(thing, "py_func", None)


def function_behind(kernel: Callable) -> FunctionType:
    """The Python function of what cuda.jit returned; a plain function is its own."""
    return plain_function(kernel) or kernel
