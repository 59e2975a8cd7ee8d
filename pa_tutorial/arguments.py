"""Refusing a bad argument: a message names it, says what it was and what is allowed."""

import os
from collections.abc import Iterable, Mapping, Set
from contextlib import suppress
from operator import index

import numpy as np
import torch
from torch import Tensor

DEVICES = ("cpu", "cuda")
MOST_IN_A_MODEL = 2**16  # heads, or elements of a head: far more than any model has
FLT_MAX = float(torch.finfo(torch.float32).max)


def require(condition: bool, name: str, value: object, allowed: str) -> None:
    """Raise ValueError that names the argument, what it was and what is allowed."""
    if not condition:
        raise ValueError(f"{name} is {value}; it must be {allowed}")


def require_shape(condition: bool, name: str, tensor: Tensor, must: str) -> None:
    """Raise ValueError that names the argument, its shape and what it must be or have."""
    if not condition:
        raise ValueError(f"{name} has shape {list(tensor.shape)}; {must}")


def require_type(condition: bool, name: str, value: object, allowed: str) -> None:
    """Raise TypeError that names the argument, its type and what is allowed."""
    if not condition:
        raise TypeError(f"{name} is of type {type(value).__name__}; it must be {allowed}")


def require_bool(name: str, value: object) -> None:
    """Raise TypeError unless it is True or False: the text "no" counts as true."""
    require_type(isinstance(value, bool | np.bool_), name, value, "True or False")


def whole_number(
    name: str, value: object, least: int | None = None, most: int | None = None
) -> int:
    """The value as an int; whole numbers from NumPy and torch are accepted too.

    Raises TypeError for any other type, including bool, and ValueError for a number below `least`
    or above `most`, or one that doesn't fit into an int64.
    """
    if isinstance(value, Tensor):
        require_tensor(name, value)
    number, is_bool = None, type(value) is bool or getattr(value, "dtype", 0) is torch.bool
    with suppress(TypeError):
        number = index(value) if getattr(value, "ndim", 0) == 0 else None  # a row isn't a number
    require_type(number is not None and not is_bool, name, value, "a whole number")
    allowed = f"at least {least}" if most is None else f"{least} to {most}"
    require(least is None or number >= least, name, number, allowed)
    require(most is None or number <= most, name, number, allowed)
    if not fits_int64(number):
        raise ValueError(f"{name} is {number}; it must fit into an int64")
    return number


def fits_int64(number: int) -> bool:
    return -(2**63) <= number < 2**63


def whole_numbers(name: str, values: Iterable[int]) -> list[int]:
    """The values as ints, as in whole_number. Raises TypeError for anything without an order, and
    TypeError or ValueError, naming the place, for a value that isn't a whole number or doesn't fit
    into an int64."""
    if isinstance(values, Tensor):
        require_tensor(name, values)
    is_row = has_order(values) and getattr(values, "ndim", 1) == 1
    require_type(is_row, name, values, "one row of whole numbers")
    numbers = []
    for place, value in enumerate(values):
        is_int = type(value) is int and fits_int64(value)
        numbers.append(value if is_int else whole_number(f"{name}[{place}]", value))
    return numbers


def has_order(values: object) -> bool:
    """Whether it can be read item by item, in an order that its maker chose: sets aren't, and a
    text or a dict is usually a mistake."""
    return isinstance(values, Iterable) and not isinstance(values, str | Set | Mapping)


def require_memory(num_bytes: int, **sizes: object) -> None:
    """Raise MemoryError, naming the sizes that need num_bytes bytes, if this machine has fewer.
    If the system doesn't say how many it has (Windows), the allocation itself must fail."""
    has_pages = "SC_PHYS_PAGES" in getattr(os, "sysconf_names", ())
    most = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if has_pages else num_bytes
    if num_bytes > most:
        asked = ", ".join(f"{name} is {size}" for name, size in sizes.items())
        allowed = f"this must be at most {most:,}, the memory of this machine"
        raise MemoryError(f"{asked}, which takes {num_bytes:,} bytes; {allowed}")


def as_row(name: str, values: Iterable[int]) -> Tensor:
    """[n] int64, from a tensor, an array or a list of whole numbers. Anything else is refused."""
    if not isinstance(values, Tensor):
        return torch.tensor(whole_numbers(name, values), dtype=torch.int64)
    require_tensor(name, values)
    shape, dtype = list(values.shape), values.dtype
    is_whole = not (dtype.is_floating_point or dtype.is_complex or dtype == torch.bool)
    is_row = values.dim() == 1 and (is_whole or shape == [0])
    require(is_row, name, f"{dtype} with shape {shape}", "one row of whole numbers")
    return values.long()


def require_heads(num_heads: int, num_kv_heads: int) -> None:
    num_heads = whole_number("num_heads", num_heads, 1, MOST_IN_A_MODEL)
    num_kv_heads = whole_number("num_kv_heads", num_kv_heads)
    require(
        num_kv_heads >= 1 and num_heads % num_kv_heads == 0,
        "num_kv_heads",
        num_kv_heads,
        f"a divisor of num_heads, which is {num_heads}",
    )


def require_tensor(name: str, tensor: Tensor) -> None:
    """Raise TypeError or ValueError unless this is a tensor whose memory holds its numbers."""
    allowed = "a torch.Tensor or None" if name == "alibi_slopes" else "a torch.Tensor"
    require_type(isinstance(tensor, Tensor), name, tensor, allowed)
    require(tensor.device.type in DEVICES, f"{name}.device", tensor.device, "cpu or cuda")
    require(tensor.layout == torch.strided, f"{name}.layout", tensor.layout, "torch.strided")
    negative = "a view whose memory holds its numbers with the opposite sign"
    require(not tensor.is_neg(), name, negative, f"{name}.resolve_neg()")


def require_readable(name: str, tensor: Tensor) -> None:
    """Raise TypeError or ValueError unless this is a tensor that holds at least one number."""
    require_tensor(name, tensor)
    require_shape(tensor.numel() > 0, name, tensor, "every size must be at least 1")


def require_floats(**tensors: Tensor) -> None:
    """Raise TypeError or ValueError unless each is a tensor of real numbers."""
    for name, tensor in tensors.items():
        require_tensor(name, tensor)
        if not tensor.is_floating_point():
            raise ValueError(f"{name}.dtype is {tensor.dtype}; it must be of real numbers")


def require_dtype(dtype: torch.dtype) -> None:
    """Raise ValueError unless it is a dtype of torch for real numbers."""
    is_float = isinstance(dtype, torch.dtype) and dtype.is_floating_point
    require(is_float, "dtype", dtype, "a dtype of torch for real numbers")


def require_device(device: torch.device | str) -> None:
    """Raise ValueError unless torch can allocate there."""
    try:
        kind = torch.empty(0, device=device).device.type
    except (AssertionError, RuntimeError, TypeError, ValueError):
        kind = None
    require(kind in DEVICES, "device", device, "cpu, or a cuda device of this machine")


def require_below(name: str, numbers: Tensor, end: int, holds: str = "holds") -> None:
    """Raise ValueError unless all numbers are from 0 to end - 1."""
    wrong = numbers[(numbers < 0) | (numbers >= end)]
    if len(wrong):
        raise ValueError(f"{name} {holds} {wrong[0]}; it must be 0 to {end - 1}")


def require_dense(name: str, tensor: Tensor, dims: int) -> None:
    """Raise ValueError unless the last `dims` dimensions are in order in memory, without gaps."""
    if dims == tensor.dim() and tensor.is_contiguous():  # fast in the usual case
        return
    dense = torch.empty(tensor.shape[-dims:], device="meta")
    same = strides(tensor)[-dims:] == strides(dense)
    allowed = f"{dense.stride()}: the last {dims} dimensions without gaps"
    require(same, f"{name}.stride()[-{dims}:]", tensor.stride()[-dims:], allowed)


def strides(tensor: Tensor) -> tuple[int, ...]:
    """Strides; 0 for dimensions of size 1."""
    sizes = zip(tensor.shape, tensor.stride(), strict=True)
    return tuple(stride if n > 1 else 0 for n, stride in sizes)


def real_number(name: str, value: object) -> float:
    """The value as a float or int; NumPy's are accepted too. TypeError for any other type."""
    is_number = isinstance(value, int | float | np.integer | np.floating)
    require_type(is_number and not isinstance(value, bool), name, value, "a real number")
    return value if isinstance(value, int) else float(value)  # an int like 10**400 isn't a float


def float32_scale(scale: float) -> np.float32:
    """The scale as a kernel takes it; with a float64, a GPU would compute float64 scores.

    Raises TypeError for anything but a number, ValueError for one out of float32's range.
    """
    value = real_number("scale", scale)
    require(-FLT_MAX <= value <= FLT_MAX, "scale", scale, "finite, as a float32")
    return np.float32(value)
