"""Device arrays: what a program holds of an array on the GPU.

A device array has what Numba's has and nothing more: it can be indexed, reshaped and copied, while
arithmetic and NumPy's methods need a copy on the host. What np.asarray makes of it is a copy, too.
Source: numba-cuda, cudadrv/devicearray.py.
"""

import ctypes
import math
from collections.abc import Callable, Iterator, Sequence
from types import EllipsisType, SimpleNamespace
from typing import NoReturn
from weakref import WeakValueDictionary

import numpy as np

# address of a first element -> a device array that begins there
HERE: "WeakValueDictionary[int, DeviceArray]" = WeakValueDictionary()
HINT = "copy_to_host() gives a NumPy array"
NOT_WRITTEN = 0xFF  # every byte of a new device array: NaN, -1


class DeviceArray:
    """Stands for an array on the GPU. `array` has its numbers; only the simulator uses it."""

    __cuda_memory__ = __cuda_ndarray__ = True

    def __init__(self, array: np.ndarray, stream: object = 0) -> None:
        self.array, self.stream = array.view(np.ndarray), stream
        HERE[array.ctypes.data] = self

    # What it is ------------------------------------------------------------------------------

    shape = property(lambda self: self.array.shape)
    strides = property(lambda self: self.array.strides)
    dtype = property(lambda self: self.array.dtype)
    ndim = property(lambda self: self.array.ndim)
    size = property(lambda self: self.array.size)
    nbytes = property(lambda self: self.array.nbytes)

    @property
    def alloc_size(self) -> int:
        low, high = np.lib.array_utils.byte_bounds(self.array)
        return high - low

    @property
    def flags(self) -> dict[str, bool]:
        return {name: self.array.flags[name] for name in ("C_CONTIGUOUS", "F_CONTIGUOUS")}

    @property
    def device_ctypes_pointer(self) -> ctypes.c_void_p:
        return ctypes.c_void_p(self.array.ctypes.data)

    @property
    def __cuda_array_interface__(self) -> dict[str, object]:
        return {
            "shape": self.shape,
            "strides": None if self.is_c_contiguous() else self.strides,
            "data": (self.array.ctypes.data, False),
            "typestr": self.dtype.str,
            "stream": None,
            "version": 3,
        }

    def is_c_contiguous(self) -> bool:
        return self.array.flags.c_contiguous

    def is_f_contiguous(self) -> bool:
        return self.array.flags.f_contiguous

    def __len__(self) -> int:
        return self.shape[0]

    def __repr__(self) -> str:
        return f"<device array of {self.dtype} {self.shape}>"

    # Copies ----------------------------------------------------------------------------------

    def __array__(self, dtype: object = None, copy: bool | None = None) -> np.ndarray:
        if copy is False:
            raise ValueError("a device array can't become a NumPy array without a copy")
        return self.copy_to_host().astype(dtype or self.dtype, copy=False)

    def copy_to_host(self, ary: np.ndarray | None = None, stream: object = 0) -> np.ndarray:
        """A copy, or `ary` with the same numbers."""
        if any(stride < 0 for stride in self.strides):
            raise NotImplementedError(f"copy_to_host: the strides are {self.strides}")
        if ary is None:
            return np.array(self.array)
        must_match(self.array, ary)
        must_be_laid_out_alike(self.array, ary)
        ary.squeeze()[...] = self.array.squeeze()
        return ary

    def copy_to_device(self, ary: "np.ndarray | DeviceArray", stream: object = 0) -> None:
        if ary.size == 0:
            return
        must_be_contiguous("the device array", self.array)
        must_match(self.array, ary)
        if isinstance(ary, DeviceArray):  # else Numba makes a copy in this array's order
            must_be_laid_out_alike(self.array, ary)
        self.array.squeeze()[...] = numbers_of(ary).squeeze()

    # Parts and views -------------------------------------------------------------------------

    def __getitem__(self, item: object) -> object:
        found = self.array[_plain_index(item)]
        return DeviceArray(found, self.stream) if isinstance(found, np.ndarray) else found

    def __setitem__(self, item: object, value: object) -> None:
        self.array[_plain_index(item)] = numbers_of(value)

    def getitem(self, item: object, stream: object = 0) -> object:
        return self[item]

    def setitem(self, key: object, value: object, stream: object = 0) -> None:
        self[key] = value

    def bind(self, stream: object = 0) -> "DeviceArray":
        return DeviceArray(self.array, stream)

    def view(self, dtype: object) -> "DeviceArray":
        return DeviceArray(self.array.view(np.dtype(dtype)), self.stream)

    def reshape(self, *newshape: object, **options: object) -> "DeviceArray":
        return self._without_copy(self.array.reshape(*newshape, **options))

    def ravel(self, order: str = "C", stream: object = 0) -> "DeviceArray":
        return self._without_copy(self.array.ravel(order))

    def squeeze(self, axis: object = None, stream: object = 0) -> "DeviceArray":
        return DeviceArray(self.array.squeeze(axis), self.stream)

    def _without_copy(self, other: np.ndarray) -> "DeviceArray":
        if other.size and not np.may_share_memory(self.array, other):
            raise NotImplementedError("a device array that isn't contiguous can't get this shape")
        return DeviceArray(other, self.stream)

    def transpose(self, axes: Sequence[int] | None = None) -> "DeviceArray":
        """A copy, which a kernel makes on a GPU."""
        if axes and tuple(axes) == tuple(range(self.ndim)):
            return self
        if self.ndim != 2:
            raise NotImplementedError(f"a device array of {self.ndim} dimensions has no transpose")
        return DeviceArray(np.ascontiguousarray(self.array.transpose(axes)), self.stream)

    T = property(transpose)

    def split(self, section: int, stream: object = 0) -> "Iterator[DeviceArray]":
        """Parts of `section` elements each; the last may be shorter."""
        if self.ndim != 1 or not self.is_c_contiguous():
            raise ValueError("split: the device array must have one dimension and no gaps")
        return (self[first : first + section] for first in range(0, self.size, section))

    # What it doesn't have --------------------------------------------------------------------

    def __getattr__(self, name: str) -> NoReturn:
        hint = f": {HINT}, which has it" if hasattr(np.ndarray, name) else ""
        raise AttributeError(f"a device array has no {name}{hint}", name=name, obj=self)

    def _no_arithmetic(self, *_: object) -> NoReturn:
        raise TypeError(f"a device array can't be computed with outside of kernels: {HINT}")

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __neg__ = _no_arithmetic
    __truediv__ = __rtruediv__ = __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = _no_arithmetic
    __pow__ = __rpow__ = __matmul__ = __rmatmul__ = __abs__ = _no_arithmetic
    __lt__ = __le__ = __gt__ = __ge__ = _no_arithmetic


class MappedArray(np.ndarray):
    """A mapped or managed array: host and device see the same bytes."""

    stream = 0
    array = property(lambda self: self.view(np.ndarray))
    copy_to_host, copy_to_device = DeviceArray.copy_to_host, DeviceArray.copy_to_device


def numbers_of(value: object) -> object:
    """A device array's own numbers, not a copy; anything else as it is.

    Objects of other libraries count, too, if they say that they are where one of ours is.
    """
    if isinstance(value, DeviceArray):
        return value.array
    interface = getattr(value, "__cuda_array_interface__", None)
    if interface is None or interface["data"][0] not in HERE:
        return value
    interface = interface | {"version": 3}  # NumPy's, for what another library's object wraps
    return np.asarray(SimpleNamespace(__array_interface__=interface, owner=value))


def must_match(mine: np.ndarray, other: np.ndarray | DeviceArray) -> None:
    """Raise TypeError or ValueError unless both have the same numbers, but for axes of size 1."""
    error = ValueError if mine.dtype == other.dtype else TypeError
    if error is TypeError or mine.squeeze().shape != other.squeeze().shape:
        raise error(
            f"a device array of {mine.dtype} {mine.shape} and an array of {other.dtype} "
            f"{other.shape}: a copy needs the same type and shape"
        )


def must_be_laid_out_alike(mine: np.ndarray, other: np.ndarray | DeviceArray) -> None:
    """Raise ValueError for arrays that can't be copied in one piece."""
    if mine.squeeze().strides != other.squeeze().strides:
        raise ValueError(
            f"a device array with strides {mine.strides} and an array with strides "
            f"{other.strides}: a copy needs the same strides"
        )


def must_be_contiguous(name: str, array: np.ndarray) -> None:
    """Raise ValueError for an array with gaps. (Axes along which it repeats don't count.)"""
    if array.size == 0:
        return
    core = array[tuple(slice(None) if stride else 0 for stride in array.strides)]
    if not (core.flags.c_contiguous or core.flags.f_contiguous):
        raise ValueError(
            f"{name} isn't contiguous (strides {array.strides}), so Numba can't copy it in one "
            "piece: use np.ascontiguousarray"
        )


def _plain_index(item: object) -> tuple:
    """Numbers and slices; TypeError for an index that only NumPy's arrays take."""
    parts = item if isinstance(item, tuple) else (item,)
    for part in parts:
        if isinstance(part, bool) or not isinstance(part, int | np.integer | slice | EllipsisType):
            raise TypeError(
                f"a device array takes numbers and slices as an index, not {part!r}: {HINT}"
            )
    return parts


# How a program makes one -------------------------------------------------------------------------


def to_device(
    obj: object, stream: object = 0, copy: bool = True, to: DeviceArray | None = None
) -> DeviceArray:
    """A copy of an array on the device, or `to` with its numbers."""
    if to is not None:
        to.copy_to_device(obj if isinstance(obj, DeviceArray) else np.asarray(obj), stream)
        return to
    if isinstance(obj, DeviceArray):
        return obj
    array = np.asarray(obj)
    must_be_contiguous("obj", array)
    if not copy:
        return device_array_like(array, stream=stream)
    return DeviceArray(np.array(array, subok=False), stream)


def device_array(
    shape: int | tuple[int, ...], dtype: object = np.float64, strides: object = None,
    order: str = "C", stream: object = 0,
) -> DeviceArray:  # fmt: skip
    """A new device array that holds nothing yet."""
    return DeviceArray(unwritten_array(shape, dtype, strides, order), stream)


def unwritten_array(
    shape: int | tuple[int, ...], dtype: object = np.float64, strides: object = None,
    order: str = "C", **options: object,
) -> np.ndarray:  # fmt: skip
    """A new array that holds nothing yet; pinned_array for the host alone."""
    if strides is not None:
        raise NotImplementedError("the simulator doesn't support arrays with given strides")
    dtype = np.dtype(dtype)
    data = np.full(math.prod(np.atleast_1d(shape)) * dtype.itemsize, NOT_WRITTEN, np.uint8)
    return data.view(dtype).reshape(shape, order=order)


def like(make: Callable) -> Callable:
    """cuda.…_array_like"""

    def array_like(ary: np.ndarray | DeviceArray, **options: object) -> object:
        is_fortran = ary.flags["F_CONTIGUOUS"] and not ary.flags["C_CONTIGUOUS"]
        return make(ary.shape, ary.dtype, order="F" if is_fortran else "C", **options)

    return array_like


device_array_like = like(device_array)


def is_cuda_array(obj: object) -> bool:
    return hasattr(obj, "__cuda_array_interface__")


def as_cuda_array(obj: object, sync: bool = True) -> DeviceArray:
    if not is_cuda_array(obj):
        raise TypeError(f"obj is a {type(obj).__name__}, not on the device: use cuda.to_device")
    return obj if isinstance(obj, DeviceArray) else DeviceArray(numbers_of(obj))
