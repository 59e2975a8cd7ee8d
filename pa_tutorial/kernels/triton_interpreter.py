"""Triton's interpreter for one call: a kernel runs on CPU tensors, one program after the other.

Triton wants the choice made once, for a whole process: TRITON_INTERPRET=1 before it is imported.
Then nothing can be compiled any more, and if torch has imported Triton before, the choice comes
too late. Here it is made for each call: CPU tensors are interpreted, CUDA tensors compiled.

Two things are put right. The interpreter follows any address, also one outside every tensor: here
each is checked. And it multiplies the bits of bfloat16 numbers: here their values. One thing is
made quicker, see changed_once.
"""

import inspect
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partialmethod
from types import ModuleType
from unittest import mock

import numpy as np
import triton.experimental.gluon  # noqa: F401  the interpreter imports it; inside would be too late
import triton.language as tl
from torch import Tensor
from triton.runtime.errors import InterpreterError
from triton.runtime.jit import JITFunction

from pa_tutorial import private_names
from pa_tutorial.kernels.cuda_launch import flat
from pa_tutorial.private_names import PLACE, InterpretedFunction, TensorHandle, create_dot
from pa_tutorial.tracebacks import ShortInNotebooks


class MemoryFault(ShortInNotebooks, IndexError):
    """A kernel reads or writes outside the tensors that it was given."""


def interpret(kernel: JITFunction, grid: tuple[int, int, int], **arguments: object) -> None:
    """Run a @triton.jit kernel on tensors on the CPU. As on a GPU, NaN is no reason to warn.

    Raises MemoryFault for an address outside the tensors: nothing is read or written there.
    """
    warn = warnings.catch_warnings()
    language, builder = interpreted_language(), checked_builder(arguments)
    with warn, np.errstate(all="ignore"), language, changed_once(), builder:
        warnings.filterwarnings("ignore", "All-NaN", RuntimeWarning)
        try:
            interpreted(kernel.fn)[grid](**arguments)
        except InterpreterError as error:
            cause = error
            while isinstance(cause, InterpreterError) and cause.__cause__:
                cause = cause.__cause__
            if isinstance(cause, MemoryFault):
                raise MemoryFault(f"{kernel.fn.__name__} {cause}") from None
            raise


MODULES = tl, tl.core, tl.math, tl.standard
interpreted = cache(InterpretedFunction)  # what is below a @triton.jit, for the interpreter


# The language ------------------------------------------------------------------------------------


@contextmanager
def interpreted_language() -> Iterator[None]:
    """Inside, the functions of triton.language work on the CPU. Afterwards all is as it was: what
    the interpreter itself changes there, it does not put back everywhere."""
    classes = [value for value in vars(tl.core).values() if inspect.isclass(value)]
    before = [(place, dict(vars(place))) for place in (*MODULES, *classes)]
    try:
        # tl.sum and tl.max are @triton.jit functions, and a kernel may call others.
        of_kernel = property(lambda function: interpreted(function.fn))
        with mock.patch.object(JITFunction, "__call__", of_kernel):
            yield
    finally:
        for place, names in before:
            put_back(place, names)


def put_back(place: ModuleType | type, names: dict[str, object]) -> None:
    """Give a module or a class the attributes that it had."""
    for name, value in list(vars(place).items()):
        if name in names and value is not names[name]:
            setattr(place, name, names[name])
        # The interpreter's own functions look up names that they have put into the modules.
        if name not in names and inspect.isclass(place):  # Triton 3.7 leaves some in classes
            delattr(place, name)


@contextmanager
def changed_once() -> Iterator[None]:
    """Inside, the interpreter changes the language once for each module with functions of a
    kernel, not at every call of a function: that takes a fifth of its time (Triton 3.9)."""
    change, modules = private_names.patch_lang, set()

    def change_first_time(function: Callable) -> object:
        if id(function.__globals__) in modules:
            return None
        modules.add(id(function.__globals__))
        return change(function)

    with mock.patch(PLACE["patch_lang"], change_first_time):
        yield


# Memory and bfloat16 -----------------------------------------------------------------------------


@contextmanager
def checked_builder(arguments: dict[str, object]) -> Iterator[None]:
    """Inside, what a kernel loads and stores is checked, and tl.dot knows bfloat16."""
    ranges = {name: range_of(t) for name, t in arguments.items() if isinstance(t, Tensor)}
    load, store = private_names.create_masked_load, private_names.create_masked_store
    changed = {
        "create_masked_load": partialmethod(access, load, "reads", ranges),
        "create_masked_store": partialmethod(access, store, "writes", ranges),
        "create_dot": dot_of_values,
    }
    with mock.patch.multiple(private_names.InterpreterBuilder, **changed):
        yield


def range_of(tensor: Tensor) -> tuple[int, int]:
    """The addresses from the first element to behind the last, gaps included."""
    start = tensor.data_ptr()
    return start, start + flat(tensor).nbytes if tensor.numel() else start


def access(
    builder: private_names.InterpreterBuilder,
    original: Callable,
    verb: str,
    ranges: dict[str, tuple[int, int]],
    pointers: TensorHandle,
    *arguments: object,
) -> TensorHandle | None:
    """A load (mask, other, …) or a store (value, mask, …) whose addresses are looked at first."""
    mask = arguments[0] if verb == "reads" else arguments[1]
    asked = pointers.data[mask.data].astype(np.int64)
    num_bytes = pointers.get_element_ty().primitive_bitwidth // 8
    outside = outside_of(ranges, asked, num_bytes)
    if outside.size:
        raise MemoryFault(
            f"{verb} {describe(int(outside[0]), ranges)}, in program {builder.grid_idx}"
        )
    return original(builder, pointers, *arguments)


def outside_of(ranges: dict[str, tuple[int, int]], asked: np.ndarray, num_bytes: int) -> np.ndarray:
    """Those of the addresses at which so many bytes are not all in one of the tensors."""
    if not asked.size:
        return asked
    first, last = asked.min(), asked.max() + num_bytes
    if any(start <= first and last <= end for start, end in ranges.values()):
        return asked[:0]  # as nearly always: all in one tensor
    inside = [(start <= asked) & (asked + num_bytes <= end) for start, end in ranges.values()]
    return asked[~np.any(inside, axis=0)]


def describe(address: int, ranges: dict[str, tuple[int, int]]) -> str:
    """How far an address is from the nearest tensor. An element that begins inside and ends behind
    counts as directly behind."""
    distance, name, is_before = min(
        (max(start - address, address - end, 0), name, address < start)
        for name, (start, end) in ranges.items()
    )
    far = f"{distance:,} bytes" if distance else "directly"
    side = "before the first" if is_before else "behind the last"
    return f"{far} {side} element of {name}"


def dot_of_values(
    builder: private_names.InterpreterBuilder, a: TensorHandle, b: TensorHandle, *arguments: object
) -> TensorHandle:
    """tl.dot. The interpreter keeps a bfloat16 as an integer with its bits, and would multiply
    these (Triton 3.9)."""
    return create_dot(builder, as_values(a), as_values(b), *arguments)


def as_values(handle: TensorHandle) -> TensorHandle:
    """A bfloat16 tile as float32, of which it is the upper half."""
    if handle.dtype.scalar != tl.bfloat16:
        return handle
    return TensorHandle((handle.data.astype(np.uint32) << 16).view(np.float32), tl.float32)
