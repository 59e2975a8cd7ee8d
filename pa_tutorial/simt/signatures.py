"""Kernels with a signature: @cuda.jit("void(int32[:], int32)").

Numba compiles such a kernel at once, for the GPU that it finds; without one, the decorator fails.
So importing this file gives numba.cuda a `jit` that remembers signatures, and lets Numba compile
for them only where there is a GPU. Kernels decorated before the import don't benefit. `ptx`
compiles a device function for the arguments that it is called with.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from types import FunctionType

from numba import cuda, typeof
from numba.core.types import Type, void
from numba.cuda import is_available  # itself: `simulated` replaces the name in numba.cuda

from pa_tutorial.private_names import is_signature, normalize_signature
from pa_tutorial.simt.arithmetic import cast, plain
from pa_tutorial.simt.memory import Array
from pa_tutorial.simt.names import cast_target
from pa_tutorial.simt.successor_types import as_numbas


def remembering(numba_jit: Callable) -> Callable:
    """cuda.jit, but it also keeps the signatures that it gets as an attribute of the function."""

    @wraps(numba_jit)
    def jit(func_or_sig: object = None, *args: object, **options: object) -> Callable:
        given = func_or_sig if isinstance(func_or_sig, list) else [func_or_sig]
        signatures = list(map(as_numbas, given))
        if not all(is_signature(one) for one in signatures):
            return numba_jit(func_or_sig, *args, **options)
        declared = [normalize_signature(one) for one in signatures]

        def decorate(function: FunctionType) -> Callable:
            function.declared = declared
            now = func_or_sig if is_available() else None
            return numba_jit(now, *args, **options)(function)

        return decorate

    return jit


if not hasattr(cuda.jit, "__wrapped__"):
    cuda.jit = remembering(cuda.jit)


def declared(function: FunctionType) -> Sequence[tuple[tuple[Type, ...], Type | None]]:
    """For each signature of a function, the types of its arguments and of its result."""
    return getattr(function, "declared", ())


def types_of(function: FunctionType, values: Iterable[object]) -> tuple[Type, ...]:
    """The types that the arguments of a launch have in the kernel.

    Raises TypeError if they match none of its signatures.
    """
    from pa_tutorial.private_names import CUDATypingContext

    types = tuple(typeof(value) for value in values)
    allowed = [void(*arguments) for arguments, _ in declared(function)]
    if not allowed:
        return types
    chosen = CUDATypingContext().resolve_overload(function.__name__, allowed, types, {})
    if chosen is None:
        raise TypeError(
            f"{function.__name__} was given {', '.join(map(str, types))}; its signature allows "
            + " or ".join(", ".join(map(str, one.args)) for one in allowed)
        )
    return chosen.args


def as_declared(value: object, declared: Type) -> object:
    """A number, or each number of a tuple, converted to its declared type; arrays unchanged."""
    if isinstance(value, tuple):
        return tuple(map(as_declared, value, declared.types))
    dtype = None if value is None or isinstance(value, Array) else cast_target(declared)
    return value if dtype is None else plain(cast(value, dtype))
