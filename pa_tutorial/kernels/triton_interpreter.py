"""Triton's interpreter for one call: a kernel runs on CPU tensors, one program after the other.

Triton wants the choice made once, for a whole process: TRITON_INTERPRET=1 before it is imported.
Then nothing can be compiled any more, and if torch has imported Triton before, the choice comes
too late. Here it is made for each call: CPU tensors are interpreted, CUDA tensors compiled.
"""

import inspect
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from types import ModuleType
from unittest import mock

import numpy as np
import triton.experimental.gluon  # noqa: F401  the interpreter imports it; inside would be too late
import triton.language as tl
from triton.runtime.interpreter import InterpretedFunction, InterpreterBuilder, TensorHandle
from triton.runtime.jit import JITFunction

MODULES = (tl, tl.core, tl.math, tl.standard)
create_dot = InterpreterBuilder.create_dot


def interpret(kernel: JITFunction, grid: tuple[int, int, int], **arguments: object) -> None:
    """Run a @triton.jit kernel on tensors on the CPU. As on a GPU, NaN is no reason to warn."""
    exact = mock.patch.object(InterpreterBuilder, "create_dot", dot_of_values)
    with interpreted_language(), exact, np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "All-NaN", RuntimeWarning)
        interpreted(kernel.fn)[grid](**arguments)


@cache
def interpreted(function: Callable) -> InterpretedFunction:
    """What is below a @triton.jit, for the interpreter."""
    return InterpretedFunction(function)


@contextmanager
def interpreted_language() -> Iterator[None]:
    """Inside, the functions of triton.language work on the CPU. Afterwards all is as it was: what
    the interpreter itself changes there, it does not put back everywhere."""
    classes = [value for value in vars(tl.core).values() if inspect.isclass(value)]
    before = [(place, dict(vars(place))) for place in (*MODULES, *classes)]
    for module in (tl, tl.standard):  # tl.sum, tl.max and others are @triton.jit functions too
        for name, value in list(vars(module).items()):
            if isinstance(value, JITFunction):
                setattr(module, name, interpreted(value.fn))
    try:
        yield
    finally:
        for place, names in before:
            put_back(place, names)


def put_back(place: ModuleType | type, names: dict[str, object]) -> None:
    """Give a module or a class the attributes that it had."""
    for name, value in list(vars(place).items()):
        if name not in names:
            # The interpreter's own functions look up names that they have put into the modules.
            if inspect.isclass(place):
                delattr(place, name)
        elif value is not names[name]:
            setattr(place, name, names[name])


def dot_of_values(
    builder: InterpreterBuilder, a: TensorHandle, b: TensorHandle, *others: object
) -> TensorHandle:
    """tl.dot. The interpreter keeps a bfloat16 as an integer with its bits, and would multiply
    these (Triton 3.9)."""
    return create_dot(builder, as_values(a), as_values(b), *others)


def as_values(handle: TensorHandle) -> TensorHandle:
    """A bfloat16 tile as float32, of which it is the upper half."""
    if handle.dtype.scalar != tl.bfloat16:
        return handle
    return TensorHandle((handle.data.astype(np.uint32) << 16).view(np.float32), tl.float32)
