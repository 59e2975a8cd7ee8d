"""What Numba compiles into a function besides its own text.

It looks up globals, variables of the enclosing function, members of modules and device functions
when it compiles: with a signature, when the function is decorated, or else when it is first
launched or called with arguments of these types. A GPU goes on with what was found then, so a later
change is an error here.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from types import CodeType
from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from simt.arithmetic import plain
from simt.device_array import numbers_of
from simt.names import cast_target, plain_function
from simt.signatures import declared
from simt.source import Unsupported


@dataclass(frozen=True)
class Body:
    """What is compiled in of a device function. We don't keep the function itself, which would keep
    its module alive, and so the kernel."""

    code: CodeType
    defaults: object
    signatures: tuple


class Use(NamedTuple):
    """A value that is compiled in, the name that the text gives it, and the function it is in."""

    function: str
    name: str
    value: object


@dataclass(frozen=True)
class Compiled:
    """A function as Numba compiled it.

    moment  when that was
    uses    all that was compiled in, also in the device functions that it calls
    arrays  copies of the global arrays on the host that the function itself uses, by name
    """

    moment: str
    uses: list[Use]
    arrays: Mapping[str, np.ndarray]

    def require_same(self, uses: Iterable[Use], kernel: str) -> None:
        """Raise Unsupported if a launch of this kernel would compile in something else today."""
        for then, now in zip(self.uses, uses, strict=False):
            if not _is_same(then.value, now.value):
                raise Unsupported(_words(then, now, self.moment, kernel))


# A kernel or device function -> what it was compiled for -> what was compiled in
COMPILED: WeakKeyDictionary[Callable, dict[tuple, Compiled]] = WeakKeyDictionary()


def is_on_device(array: object) -> bool:
    return not isinstance(array, np.ndarray)


def compiled_form(value: object) -> object:
    """The body of a device function, else the value itself."""
    function = plain_function(value)
    if function is None:
        return value
    code = function.__code__.replace(co_firstlineno=1, co_linetable=b"")
    return Body(code, content(function.__defaults__), tuple(declared(value)))


def _is_same(then: object, now: object) -> bool:
    return then is now or content(then) == content(now)


def content(value: object) -> object:
    """Equal for two values if Numba compiles the same from them: a cell that is run again unchanged
    defines new functions with the old code."""
    value = compiled_form(value)
    if isinstance(value, Body):
        return value
    if isinstance(value, tuple):
        return tuple(map(content, value))
    array = numbers_of(value)
    if isinstance(array, np.ndarray):
        there = array.__array_interface__["data"][0], array.strides
        return array.dtype.str, array.shape, there if is_on_device(value) else array.tobytes()
    text = _text(value)
    return id(value) if text is None else text


def _text(value: object) -> str | None:
    """A number, a tuple or a type as text; None for others."""
    if isinstance(value, IntEnum):
        return str(int(value))
    if isinstance(value, np.generic):
        value = plain(value)  # np.int64(4) compiles to the same as 4
    if value is None or isinstance(value, bool | int | float | complex | str | np.generic):
        return repr(value)
    if isinstance(value, tuple):
        parts = list(map(_text, value))
        return None if None in parts else f"({', '.join(parts)})"
    dtype = cast_target(value)
    return None if dtype is None else str(dtype)


def _words(then: Use, now: Use, moment: str, kernel: str) -> str:
    old, new = _text(then.value), _text(now.value)
    both = old is not None and new is not None
    change = f"is {new}, and was {old} when" if both else "has changed since"
    again = "the kernel" if now.function == kernel else f"{now.function} and the kernel"
    passes = both and cast_target(now.value) is None
    return (
        f"{now.name} {change} {moment}. Numba compiled it then, so a GPU would still use "
        f"{old if both else 'the old one'}. Define {again} again"
        f"{f', or pass {now.name} as an argument' if passes else ''}."
    )
