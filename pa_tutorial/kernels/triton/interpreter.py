"""Triton's interpreter for one call: a kernel runs on CPU tensors, one program after the other.

Triton wants the choice made once for a whole process, by setting TRITON_INTERPRET=1 before it is
imported. After that nothing can be compiled, and if torch has already imported Triton, it is too
late. Here the choice is made per call: CPU tensors are interpreted, CUDA tensors compiled.

The interpreter follows any address, even one outside every tensor, so here each is checked. It
stores a bfloat16 or an 8-bit float as an integer with its bits, and would compute with those
(Triton 3.9). Here a bfloat16 can be loaded, moved, converted, rounded to nearest even, and
multiplied by tl.dot; anything else, and anything but moving an 8-bit float, is refused with its
line. One thing is made faster, see changed_once.
"""

import inspect
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, wraps
from pathlib import Path
from types import ModuleType
from unittest import mock

import numpy as np
import torch
import triton
import triton.experimental.gluon
import triton.language as tl
from torch import Tensor
from triton.runtime.errors import InterpreterError
from triton.runtime.jit import JITFunction

from pa_tutorial import private_names
from pa_tutorial.kernels.triton.inputs import checked_grid
from pa_tutorial.private_names import (
    PLACE,
    InterpretedFunction,
    InterpreterBuilder,
    TensorHandle,
    check_tensor,
    interpreter_builder,
)
from pa_tutorial.tracebacks import ShortInNotebooks


class MemoryFault(ShortInNotebooks, IndexError):
    """A kernel reads or writes outside the tensors that it was given."""


def interpret(kernel: JITFunction, grid: tuple[int, int, int], **arguments: object) -> None:
    """Run a @triton.jit kernel on tensors on the CPU. As on a GPU, NaN doesn't warn.

    Raises MemoryFault for an address outside the tensors, before it is read or written, and
    Triton's InterpreterError for other mistakes of the kernel and for arithmetic on raw bits.
    """
    grid = checked_grid(kernel, grid)
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
            raise InterpreterError(repr(cause)) from cause


MODULES = tl, tl.core, tl.math, tl.standard
interpreted = cache(InterpretedFunction)  # the function under a @triton.jit, for the interpreter


# The language ------------------------------------------------------------------------------------


@contextmanager
def interpreted_language() -> Iterator[None]:
    """Inside, the functions of triton.language work on the CPU. Afterwards everything is restored,
    including what the interpreter itself changes and doesn't always restore."""
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
    """Give a module or a class its former attributes back."""
    for name, value in list(vars(place).items()):
        if name in names and value is not names[name]:
            setattr(place, name, names[name])
        # The interpreter's own functions look up names that they added to the modules.
        if name not in names and inspect.isclass(place):  # Triton 3.7 leaves some in classes
            delattr(place, name)


@contextmanager
def changed_once() -> Iterator[None]:
    """Inside, the interpreter changes the language once per module with functions of a kernel,
    not at every call of a function, which takes a fifth of its time (Triton 3.9)."""
    change, modules = private_names.patch_lang, set()

    def change_first_time(function: Callable) -> object:
        if id(function.__globals__) in modules:
            return None
        modules.add(id(function.__globals__))
        return change(function)

    with mock.patch(PLACE["patch_lang"], change_first_time):
        yield


# Memory and 16- and 8-bit floats ----------------------------------------------------------------

# These move numbers unchanged, or are corrected below; all other operations would compute.
RAW_BITS_MAY = {
    *("load", "store", "masked_load", "masked_store", "descriptor_load", "descriptor_store"),
    *("select", "gather", "splat", "unsplat", "broadcast", "expand_dims", "reshape", "trans"),
    *("cat", "join", "split", "fabs", "bitcast", "dot"),
    *("fp_ext", "fp_trunc", "fp_to_fp", "fp_to_si", "fp_to_ui", "si_to_fp", "ui_to_fp"),
}


class CheckedBuilder(InterpreterBuilder):
    """Checks each address before it is followed, and handles bfloat16 by value."""

    ranges: dict[str, tuple[int, int]]  # the addresses of each tensor of the kernel

    def create_masked_load(
        self, pointers: TensorHandle, mask: TensorHandle, *rest: object
    ) -> TensorHandle:
        self.require_inside("reads", pointers, mask)
        return super().create_masked_load(pointers, mask, *rest)

    def create_masked_store(
        self, pointers: TensorHandle, value: TensorHandle, mask: TensorHandle, *rest: object
    ) -> None:
        self.require_inside("writes", pointers, mask)
        super().create_masked_store(pointers, value, mask, *rest)

    def require_inside(self, verb: str, pointers: TensorHandle, mask: TensorHandle) -> None:
        asked = pointers.data[mask.data].astype(np.int64)
        num_bytes = pointers.get_element_ty().primitive_bitwidth // 8
        outside = outside_of(self.ranges, asked, num_bytes)
        if outside.size:
            place = describe(int(outside[0]), self.ranges)
            raise MemoryFault(f"{verb} {place}, in program {self.grid_idx}")

    def create_dot(
        self, a: TensorHandle, b: TensorHandle, to: TensorHandle, *rest: object
    ) -> TensorHandle:
        require_values(to.dtype)
        return super().create_dot(as_values(a), as_values(b), to, *rest)

    def cast_impl(self, source: TensorHandle, to: tl.dtype) -> TensorHandle:
        values = as_values(source)
        if to.scalar == tl.bfloat16:
            return TensorHandle(bits_of(values.data.astype(np.float32)), tl.bfloat16)
        return super().cast_impl(values, to)

    def create_fp_to_fp(self, source: TensorHandle, to: tl.dtype, rounding: object) -> TensorHandle:
        require_values(to, allowed=tl.bfloat16)
        if rounding is None or rounding.name != "RTZ":
            return self.cast_impl(source, to)
        return super().create_fp_to_fp(source, to.scalar, rounding)


def refusing(original: Callable) -> Callable:
    """The operation, refused for numbers that are stored as bits."""

    @wraps(original)
    def operation(builder: InterpreterBuilder, *arguments: object) -> object:
        for argument in arguments:
            if isinstance(argument, TensorHandle):
                require_values(argument.dtype)
        return original(builder, *arguments)

    return operation


for name, operation in vars(InterpreterBuilder).items():
    if name.startswith("create_") and name.removeprefix("create_") not in RAW_BITS_MAY:
        setattr(CheckedBuilder, name, refusing(operation))


@contextmanager
def checked_builder(arguments: dict[str, object]) -> Iterator[None]:
    """Inside, each load, store and computation of a kernel is checked first."""

    def check(reduction: object, tiles: tuple[tl.tensor, ...]) -> None:
        for tile in tiles:
            require_values(tile.dtype)
        check_tensor(reduction, tiles)

    CheckedBuilder.ranges = {n: range_of(t) for n, t in arguments.items() if isinstance(t, Tensor)}
    interpreter_builder.__class__ = CheckedBuilder
    try:
        with mock.patch(PLACE["check_tensor"], check):  # of tl.reduce and tl.associative_scan
            yield
    finally:
        interpreter_builder.__class__ = InterpreterBuilder


def range_of(tensor: Tensor) -> tuple[int, int]:
    """The address of the first element, and the one just past the last, gaps included."""
    start = tensor.data_ptr()
    last = sum((n - 1) * stride for n, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return start, start + (last + 1) * tensor.element_size() if tensor.numel() else start


def outside_of(ranges: dict[str, tuple[int, int]], asked: np.ndarray, num_bytes: int) -> np.ndarray:
    """The addresses at which num_bytes bytes aren't all within one of the tensors."""
    if not asked.size:
        return asked
    first, last = asked.min(), asked.max() + num_bytes
    if any(start <= first and last <= end for start, end in ranges.values()):
        return asked[:0]  # nearly always, all are in one tensor
    inside = [(start <= asked) & (asked + num_bytes <= end) for start, end in ranges.values()]
    return asked[~np.any(inside, axis=0)]


def describe(address: int, ranges: dict[str, tuple[int, int]]) -> str:
    """How far an address is from the nearest tensor. An element that begins inside and ends past
    the end counts as directly after it."""
    distance, name, is_before = min(
        (max(start - address, address - end, 0), name, address < start)
        for name, (start, end) in ranges.items()
    )
    far = f"{distance:,} bytes" if distance else "directly"
    side = "before the first" if is_before else "after the last"
    return f"{far} {side} element of {name}"


def require_values(dtype: tl.dtype, allowed: tl.dtype | None = None) -> None:
    """Raise TypeError, with the kernel's line, for tiles of a type that NumPy doesn't have."""
    kind = dtype.scalar
    if kind == allowed or not (kind == tl.bfloat16 or str(kind).startswith("fp8")):
        return
    ours = str(Path(triton.__file__).parent), __file__
    at = next(f for f in reversed(traceback.extract_stack()) if not f.filename.startswith(ours))
    how = ".to(tl.float32)" if kind == tl.bfloat16 else "in torch, before the call"
    raise TypeError(
        f"line {at.lineno}, `{at.line}`: Triton's interpreter would compute with the bits of "
        f"{kind}, not with its values; convert them first, {how}"
    )


def as_values(tile: TensorHandle) -> TensorHandle:
    """A bfloat16 tile as float32, of which it is the upper half."""
    require_values(tile.dtype, allowed=tl.bfloat16)
    if tile.dtype.scalar != tl.bfloat16:
        return tile
    return TensorHandle((tile.data.astype(np.uint32) << 16).view(np.float32), tl.float32)


def bits_of(values: np.ndarray) -> np.ndarray:
    """float32 numbers as the bits of bfloat16, rounded to nearest even, as on a GPU."""
    return torch.from_numpy(np.array(values)).bfloat16().view(torch.uint16).numpy()
