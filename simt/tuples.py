"""Tuples: arrays in them, named tuples, and CUDA's vector types, which are named tuples here."""

import re
from collections import namedtuple
from collections.abc import Iterable, Iterator, Mapping
from functools import cache

import numpy as np

from simt.arithmetic import Misuse, cast

VECTOR = re.compile(r"(u?int\d+|float\d+)x([1-4])")


def like(old: tuple, parts: Iterable[object]) -> tuple:
    """A tuple of the same kind, with other parts."""
    return old._make(parts) if hasattr(old, "_make") else tuple(parts)


def is_tuple(thing: object) -> bool:
    """Is it a tuple in a kernel? Raises Misuse for a vector, of which Numba takes no parts."""
    if isinstance(thing, tuple) and isinstance(getattr(type(thing), "dtype", None), np.dtype):
        fields = ", ".join(f".{name}" for name in thing._fields)
        raise Misuse(f"cuda.{type(thing).__name__} isn't a tuple: it has only {fields}")
    return isinstance(thing, tuple)


def flattened(values: Mapping[object, object]) -> dict[object, object]:
    """The values, and instead of a tuple its parts, with names such as a[0]."""
    return {part: value for name in values for part, value in _parts(name, values[name])}


def _parts(name: object, value: object) -> Iterator[tuple[object, object]]:
    if not isinstance(value, tuple):
        yield name, value
        return
    for i, part in enumerate(value):
        yield from _parts(f"{name}[{i}]", part)


def refilled(name: str, value: object, parts: Mapping[str, object]) -> object:
    """A value with other parts, by the names that `flattened` gave them."""
    if not isinstance(value, tuple):
        return parts[name]
    return like(value, [refilled(f"{name}[{i}]", one, parts) for i, one in enumerate(value)])


def vector_type(thing: object) -> type | None:
    """What cuda.float32x4 and its like stand for, with dtype; None for anything else."""
    found = VECTOR.fullmatch(thing.__name__) if hasattr(thing, "aliases") else None
    return found and _vector(np.dtype(found[1]), int(found[2]))


@cache
def _vector(dtype: np.dtype, count: int) -> type:
    """One class for each of them, so that vectors of two types are never merged."""
    vector = namedtuple(f"{dtype}x{count}", [*"xyzw"[:count]])
    vector.dtype = dtype
    return vector


def as_vector(vector: type, values: Iterable[object]) -> tuple:
    """A vector of numbers and of other vectors of its type."""
    numbers: list[object] = []
    for value in values:
        is_vector = isinstance(value, tuple) and getattr(value, "dtype", None) is vector.dtype
        numbers += value if is_vector else [value]
    if len(numbers) != len(vector._fields):
        raise Misuse(
            f"cuda.{vector.__name__} takes {len(vector._fields)} numbers, not {len(numbers)}"
        )
    return vector._make(cast(number, vector.dtype) for number in numbers)
