"""What a program asks of a GPU outside its kernels: device arrays, streams, events, devices.

    with simulated():
        program()      # written for numba.cuda or numba_cuda_mlir.cuda, unchanged

The device is this process: a device array is a NumPy array, work is done when it is asked for, so
streams and events have nothing to wait for. HOST has the stand-ins under Numba's names.
"""

import functools
import math
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from time import perf_counter
from types import ModuleType, SimpleNamespace
from unittest import mock

import numpy as np

from pa_tutorial.simt.brackets import simulate
from pa_tutorial.simt.gpus import H100, MAX_THREADS, WARP_SIZE
from pa_tutorial.simt.names import CUDA_MODULES
from pa_tutorial.simt.signatures import remembering

NOT_WRITTEN = 0xFF  # every byte of a new device array: NaN, -1


class DeviceArray(np.ndarray):
    """A NumPy array that stands for one on the GPU. It can be indexed and sliced as one."""

    stream = 0

    @property
    def alloc_size(self) -> int:
        return self.nbytes

    def copy_to_host(self, ary: np.ndarray | None = None, stream: object = 0) -> np.ndarray:
        """A copy, or `ary` with the same numbers."""
        if ary is None:
            return np.array(self, subok=False)
        _must_match(self, ary)
        ary[...] = self
        return ary

    def copy_to_device(self, ary: np.ndarray, stream: object = 0) -> None:
        _must_match(self, np.asarray(ary))
        self[...] = ary

    def is_c_contiguous(self) -> bool:
        return self.flags.c_contiguous

    def is_f_contiguous(self) -> bool:
        return self.flags.f_contiguous

    def bind(self, stream: object = 0) -> "DeviceArray":
        return self

    def split(self, section: int, stream: object = 0) -> "Iterator[DeviceArray]":
        """Parts of `section` elements each; the last may be shorter."""
        return (self[first : first + section] for first in range(0, self.size, section))


def _must_match(mine: np.ndarray, other: np.ndarray) -> None:
    if (mine.shape, mine.dtype) != (other.shape, other.dtype):
        raise ValueError(
            f"a device array of {mine.dtype} {mine.shape} and a host array of {other.dtype} "
            f"{other.shape}: a copy needs the same type and shape"
        )


def to_device(
    obj: object, stream: object = 0, copy: bool = True, to: DeviceArray | None = None
) -> DeviceArray:
    """A copy of an array on the device, or `to` with its numbers."""
    if to is not None:
        to.copy_to_device(np.asarray(obj), stream)
        return to
    return np.array(obj, copy=copy or None, subok=False).view(DeviceArray)


def device_array(
    shape: int | tuple[int, ...], dtype: object = np.float64, strides: object = None,
    order: str = "C", stream: object = 0,
) -> DeviceArray:  # fmt: skip
    """A new device array that holds nothing yet."""
    if strides is not None:
        raise NotImplementedError("the simulator does not know device_array with strides")
    dtype = np.dtype(dtype)
    data = np.full(math.prod(np.atleast_1d(shape)) * dtype.itemsize, NOT_WRITTEN, np.uint8)
    return data.view(dtype).reshape(shape, order=order).view(DeviceArray)


def device_array_like(ary: np.ndarray, stream: object = 0) -> DeviceArray:
    order = "F" if ary.flags.f_contiguous and not ary.flags.c_contiguous else "C"
    return device_array(ary.shape, ary.dtype, order=order)


def host_array(
    shape: int | tuple[int, ...], dtype: object = np.float64, strides: object = None,
    order: str = "C", **options: object,
) -> DeviceArray:  # fmt: skip
    """Pinned, mapped and managed arrays: host and device see the same bytes."""
    return device_array(shape, dtype, strides, order)


def host_array_like(ary: np.ndarray, **options: object) -> DeviceArray:
    return device_array_like(ary)


def auto_device(obj: object, stream: object = 0, copy: bool = True) -> tuple[DeviceArray, bool]:
    is_there = isinstance(obj, DeviceArray)
    return (obj if is_there else to_device(obj)), not is_there


class Stream:
    """Work is done when it is asked for, so there is nothing to wait for."""

    handle = 0

    def __int__(self) -> int:
        return 0

    def synchronize(self) -> None:
        pass

    @contextmanager
    def auto_synchronize(self) -> "Iterator[Stream]":
        yield self

    def add_callback(self, callback: Callable, arg: object = None) -> None:
        callback(self, 0, arg)


class Event:
    def __init__(self, timing: bool = True) -> None:
        self.time = 0.0

    def record(self, stream: object = 0) -> None:
        self.time = perf_counter()

    def query(self) -> bool:
        return True

    def wait(self, stream: object = 0) -> None:
        pass

    def synchronize(self) -> None:
        pass

    def elapsed_time(self, later: "Event") -> float:
        """Milliseconds on this computer, which say nothing about a GPU."""
        return 1000 * (later.time - self.time)


class Device:
    """The simulator as a device; its sizes are an H100's."""

    id = 0
    name = b"pa_tutorial.simt"
    compute_capability = (9, 0)
    supports_float16 = True
    MAX_THREADS_PER_BLOCK = MAX_THREADS
    WARP_SIZE = WARP_SIZE
    MULTIPROCESSOR_COUNT = H100.num_multiprocessors
    MAX_SHARED_MEMORY_PER_BLOCK = 48 * 1024

    def __enter__(self) -> "Device":
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def reset(self) -> None:
        pass


class Context:
    device = Device()

    def synchronize(self) -> None:
        pass

    def get_memory_info(self) -> SimpleNamespace:
        return SimpleNamespace(free=H100.dram_bytes, total=H100.dram_bytes)


class Devices(list):
    """cuda.gpus"""

    @property
    def current(self) -> Device:
        return self[0]


class Reduce:
    """cuda.reduce: a function of two numbers, applied to all elements of an array."""

    def __init__(self, functor: Callable) -> None:
        self.functor = functor

    def __call__(
        self, arr: np.ndarray, size: int | None = None, res: np.ndarray | None = None,
        init: object = 0, stream: object = 0,
    ) -> object:  # fmt: skip
        numbers = np.asarray(arr)[:size]
        result = functools.reduce(self.functor, numbers, numbers.dtype.type(init))
        if res is None:
            return result
        res[0] = result
        return None


def _does_nothing(*arguments: object, **options: object) -> None:
    pass


def _nothing_around(*arguments: object, **options: object) -> nullcontext:
    return nullcontext(arguments)


def detect() -> bool:
    print("Found 1 CUDA device: the simulator of pa_tutorial, without a GPU.")
    return True


CONTEXT = Context()
HOST: dict[str, object] = {
    "to_device": to_device,
    "device_array": device_array,
    "device_array_like": device_array_like,
    **dict.fromkeys(("pinned_array", "mapped_array", "managed_array"), host_array),
    **dict.fromkeys(("pinned_array_like", "mapped_array_like"), host_array_like),
    "_auto_device": auto_device,
    "as_cuda_array": lambda obj, sync=True: np.asarray(obj).view(DeviceArray),
    "is_cuda_array": lambda obj: isinstance(obj, DeviceArray),
    **dict.fromkeys(("pinned", "mapped", "profiling", "defer_cleanup"), _nothing_around),
    **dict.fromkeys(("synchronize", "close", "profile_start", "profile_stop"), _does_nothing),
    **dict.fromkeys(
        ("stream", "default_stream", "legacy_default_stream", "per_thread_default_stream"), Stream
    ),
    "external_stream": lambda pointer: Stream(),
    "event": Event,
    "event_elapsed_time": Event.elapsed_time,
    "is_available": lambda: True,
    "detect": detect,
    "gpus": Devices([CONTEXT.device]),
    "list_devices": lambda: Devices([CONTEXT.device]),
    "current_context": lambda device_id=0: CONTEXT,
    **dict.fromkeys(("get_current_device", "select_device"), lambda device_id=0: CONTEXT.device),
    "require_context": lambda function: function,
    **dict.fromkeys(("Reduce", "reduce"), Reduce),
}


def cuda_modules() -> list[ModuleType]:
    """numba.cuda and numba_cuda_mlir.cuda, as far as they are loaded."""
    return [sys.modules[name] for name in CUDA_MODULES if name in sys.modules]


@contextmanager
def simulated(**options: object) -> Iterator[None]:
    """Inside, programs that were not written for this package run without a GPU.

    `kernel[grid, block](…)` runs in the simulator, and what numba.cuda and numba_cuda_mlir.cuda
    have outside kernels, such as to_device, is replaced by HOST. Import the program inside, or at
    least call it through `cuda.…`: a name that was imported before keeps its meaning.

    options  those of `launch`, except shared_bytes
    """
    with ExitStack() as stack:
        for module in cuda_modules():
            for name in HOST.keys() & vars(module).keys():
                stack.enter_context(mock.patch.object(module, name, HOST[name]))
            if not hasattr(module.jit, "__wrapped__"):
                stack.enter_context(mock.patch.object(module, "jit", remembering(module.jit)))
        stack.enter_context(simulate(**options))
        yield
