"""Kernels with a signature: which they have, and what that makes of the arguments of a launch.

A signature that our `jit` (jit.py) was given is remembered here. Of what Numba's own `jit` has
compiled, we ask Numba. compile_ptx compiles a device function for the arguments that it is called
with.
"""

from collections.abc import Callable, Iterable, Sequence
from weakref import WeakKeyDictionary

import numpy as np
from numba import typeof
from numba.core import types
from numba.core.types import Type, void

from simt.arithmetic import cast, plain
from simt.memory import Array
from simt.names import cast_target, function_behind
from simt.private_names import normalize_signature
from simt.successor_types import as_numbas
from simt.tuples import like

Signature = tuple[tuple[Type, ...], Type | None]  # the types of the arguments, and of the result
# What cuda.jit returned -> the signature, or the list of signatures, that it was given
DECLARED: WeakKeyDictionary[Callable, Signature | list[Signature]] = WeakKeyDictionary()

MISREAD = ". Numba doesn't check arrays for a single signature, so a GPU would misread their bytes"


def declared(function: Callable) -> Sequence[Signature]:
    """The signatures of what cuda.jit returned."""
    if function not in DECLARED and is_compiled(function):
        signatures = [normalize_signature(as_numbas(one)) for one in function.nopython_signatures]
        is_single = function.specialized and len(signatures) == 1
        DECLARED[function] = signatures[0] if is_single else signatures
    found = DECLARED.get(function, [])
    return found if isinstance(found, list) else [found]


def is_compiled(function: Callable) -> bool:
    """Has Numba's own `jit` compiled it for its signatures? That takes a GPU."""
    return hasattr(function, "specialized") and not function._can_compile


def types_of(kernel: Callable, values: Iterable[object]) -> tuple[Type, ...]:
    """The types that the arguments of a launch have in the kernel.

    Raises TypeError if they match none of its signatures.
    """
    given, signatures = tuple(map(_type_of, values)), declared(kernel)
    if not signatures:
        return given
    chosen = _chosen(kernel, given)
    if chosen is not None and all(map(_can_be_passed, given, chosen)):
        return chosen
    allowed = " or ".join(", ".join(map(str, one)) for one, _ in signatures)
    misread = any(map(_is_misread, given, chosen or ()))
    raise TypeError(
        f"{function_behind(kernel).__name__} was given {', '.join(map(str, given))}; its signature "
        f"allows {allowed}{MISREAD if misread else ''}"
    )


def _type_of(value: object) -> Type:
    """An array without dimensions stands for a record (see kernel_arguments.py)."""
    is_record = isinstance(value, np.ndarray) and value.ndim == 0 and value.dtype.names
    return typeof(value[()] if is_record else value)


def _chosen(kernel: Callable, given: tuple[Type, ...]) -> tuple[Type, ...] | None:
    """The types of the signature that Numba takes: of a list, the best; a single one, always."""
    from simt.private_names import CUDATypingContext

    allowed = [arguments for arguments, _ in declared(kernel)]
    if not isinstance(DECLARED[kernel], list):
        return allowed[0] if len(allowed[0]) == len(given) else None
    overloads, name = [void(*arguments) for arguments in allowed], function_behind(kernel).__name__
    best = CUDATypingContext().resolve_overload(name, overloads, given, {})
    return best and best.args


def _can_be_passed(given: Type, wanted: Type) -> bool:
    """Does a kernel that was compiled for one type get the same value from another?

    Numba passes numbers through ctypes, which takes no float for an integer. It doesn't look at the
    type of an array, whose bytes the kernel takes for what its signature says.
    """
    if isinstance(wanted, types.Array):
        return isinstance(given, types.Array) and _can_be_read(given, wanted)
    if isinstance(wanted, types.BaseTuple):
        same_length = isinstance(given, types.BaseTuple) and len(given) == len(wanted)
        return same_length and all(map(_can_be_passed, given, wanted))
    if isinstance(given, types.Integer | types.Boolean):
        return isinstance(wanted, types.Number | types.Boolean)
    return given == wanted or (isinstance(given, types.Float) and isinstance(wanted, types.Float))


def _is_misread(given: Type, wanted: Type) -> bool:
    """Is it an array that Numba would pass, though its bytes mean something else?"""
    both = isinstance(given, types.Array) and isinstance(wanted, types.Array)
    return both and not _can_be_read(given, wanted)


def _can_be_read(given: types.Array, wanted: types.Array) -> bool:
    """The bytes of integers are the same with and without a sign, and a strided array may be read
    by its low bytes."""
    if given.ndim != wanted.ndim or wanted.layout not in ("A", given.layout):
        return False
    if given.dtype == wanted.dtype:
        return True
    old, new = cast_target(given.dtype), cast_target(wanted.dtype)
    integers = old is not None and new is not None and old.kind in "biu" and new.kind in "iu"
    narrower = integers and new.itemsize < old.itemsize and wanted.layout == "A"
    return narrower or (integers and new.itemsize == old.itemsize)


def as_passed(value: object, wanted: Type) -> object:
    """An argument as a kernel with a signature sees it."""
    if not isinstance(value, Array):
        return as_declared(value, wanted)
    dtype = cast_target(wanted.dtype)
    if dtype is None or dtype == value.dtype:  # None: records
        return value
    parts = value.dtype.itemsize // dtype.itemsize
    strides = tuple(parts * stride for stride in value.strides)
    start, more = parts * value.start, (value.name, value.phase, value.read_only)
    return Array(value.memory, dtype, value.shape, strides, start, *more)


def as_declared(value: object, declared: Type) -> object:
    """A number, or each number of a tuple, converted to its declared type; arrays unchanged."""
    if isinstance(value, tuple):
        return like(value, map(as_declared, value, declared.types))
    dtype = None if value is None or isinstance(value, Array) else cast_target(declared)
    return value if dtype is None else plain(cast(value, dtype))
