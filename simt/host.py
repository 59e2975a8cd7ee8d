"""What a program asks of a GPU outside its kernels: device arrays, streams, events, devices.

    with simulated():
        program()      # written for numba.cuda or numba_cuda_mlir.cuda, unchanged

The device is this process: a device array holds a NumPy array, and work is done when it is asked
for, so streams and events have nothing to wait for. HOST has the stand-ins under Numba's names.
"""

import functools
from collections import namedtuple
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from time import perf_counter
from typing import ClassVar

import numpy as np

from simt.brackets import innermost
from simt.device_array import (
    DeviceArray,
    MappedArray,
    as_cuda_array,
    device_array,
    device_array_like,
    is_cuda_array,
    like,
    to_device,
    unwritten_array,
)
from simt.gpus import H100, MAX_GRID_YZ, MAX_THREADS, WARP_SIZE
from simt.launch_options import MAX_BLOCK_Z, MAX_SHARED
from simt.names import CUDA_MODULES, loaded
from simt.simulate import LOCK, Replaced, simulate

SUCCESSOR = "numba_cuda_mlir"


def mapped(*arrays: np.ndarray, stream: object = 0) -> nullcontext:
    """A context with device arrays over the same bytes: one by itself, several as a list."""
    there = [DeviceArray(array, stream) for array in arrays]
    return nullcontext(there[0] if len(there) == 1 else there)


def mapped_array(*arguments: object, **options: object) -> MappedArray:
    return unwritten_array(*arguments, **options).view(MappedArray)


def device_memset(dst: DeviceArray, val: int, size: int, stream: object = 0) -> None:
    """Sets the first `size` bytes."""
    dst.ravel().view(np.uint8)[:size] = val


def counted(kernel: Callable) -> AbstractContextManager:
    """Around what is no launch: the command, if it runs the program, counts it as one."""
    return getattr(innermost()[0], "counted", _nothing_around)(kernel)


def _does_nothing(*arguments: object, **options: object) -> None:
    pass


class Stream:
    """Work is done when it is asked for, so there is nothing to wait for."""

    handle = 0
    synchronize = _does_nothing

    def __int__(self) -> int:
        return 0

    @contextmanager
    def auto_synchronize(self) -> "Iterator[Stream]":
        yield self

    def add_callback(self, callback: Callable, arg: object = None) -> None:
        callback(self, 0, arg)


class Event:
    wait = synchronize = _does_nothing

    def __init__(self, timing: bool = True) -> None:
        self.time = 0.0

    def record(self, stream: object = 0) -> None:
        self.time = perf_counter()

    def query(self) -> bool:
        return True

    def elapsed_time(self, later: "Event") -> float:
        """Milliseconds on this computer, which say nothing about a GPU."""
        return 1000 * (later.time - self.time)


class Device:
    """The simulator as a device; its sizes are an H100's."""

    id = 0
    name = b"simt"
    compute_capability = (9, 0)
    supports_float16 = True
    MAX_THREADS_PER_BLOCK = MAX_THREADS
    WARP_SIZE = WARP_SIZE
    MULTIPROCESSOR_COUNT = H100.num_multiprocessors
    MAX_BLOCK_DIM_X, MAX_BLOCK_DIM_Y, MAX_BLOCK_DIM_Z = MAX_THREADS, MAX_THREADS, MAX_BLOCK_Z
    MAX_GRID_DIM_X, MAX_GRID_DIM_Y, MAX_GRID_DIM_Z = 2**31 - 1, MAX_GRID_YZ, MAX_GRID_YZ
    MAX_SHARED_MEMORY_PER_BLOCK = 48 * 1024
    MAX_SHARED_MEMORY_PER_BLOCK_OPTIN = MAX_SHARED
    __exit__ = reset = _does_nothing

    def __enter__(self) -> "Device":
        return self

    def get_primary_context(self) -> "Context":
        return CONTEXT


MemoryInfo = namedtuple("MemoryInfo", "free,total")


class Context:
    """`deallocations` is empty: what a program drops is freed at once."""

    device = Device()
    deallocations: ClassVar[list] = []
    synchronize = reset = _does_nothing

    def get_memory_info(self) -> MemoryInfo:
        return MemoryInfo(free=H100.dram_bytes, total=H100.dram_bytes)


class Devices(list):
    """cuda.gpus"""

    @property
    def current(self) -> Device:
        return self[0]


class Reduce:
    """cuda.reduce: a function of two numbers, applied to all elements of an array, in Python."""

    def __init__(self, functor: Callable) -> None:
        self.functor = functor

    def __call__(
        self, arr: np.ndarray, size: int | None = None, res: np.ndarray | None = None,
        init: object = 0, stream: object = 0,
    ) -> object:  # fmt: skip
        if arr.ndim != 1:
            raise TypeError(f"arr has {arr.ndim} dimensions; cuda.reduce takes one")
        numbers = np.asarray(arr)[:size]
        with counted(self.functor), np.errstate(all="ignore"):  # integers wrap silently
            result = functools.reduce(self.functor, numbers, numbers.dtype.type(init))
        if res is None:
            return result
        res[0] = result
        return None


def _nothing_around(*arguments: object, **options: object) -> nullcontext:
    return nullcontext(arguments)


def detect() -> bool:
    print("Found 1 CUDA device: simt, a simulator, without a GPU.")
    return True


CONTEXT = Context()
HOST: dict[str, object] = {
    **{one.__name__: one for one in (to_device, device_array, as_cuda_array, is_cuda_array)},
    "device_array_like": device_array_like,
    "pinned_array": unwritten_array,
    "pinned_array_like": like(unwritten_array),
    **dict.fromkeys(("mapped_array", "managed_array"), mapped_array),
    "mapped_array_like": like(mapped_array),
    "mapped": mapped,
    **dict.fromkeys(("pinned", "profiling", "defer_cleanup"), _nothing_around),
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


def our_names() -> dict[tuple[object, str], object]:
    """What to replace in numba.cuda and numba_cuda_mlir.cuda, as far as they are loaded, and by
    what: (where, name) -> the object."""
    ours: dict[tuple[object, str], object] = {}
    for module in loaded(*CUDA_MODULES, f"{SUCCESSOR}.numba_cuda"):
        ours |= {(module, name): HOST[name] for name in HOST.keys() & vars(module).keys()}
    for module in loaded("numba.cuda.cudadrv.driver", f"{SUCCESSOR}.numba_cuda.cudadrv.driver"):
        ours[module, "device_memset"] = device_memset
    return ours


NAMES = Replaced()
BLOCKS: list[simulate] = []  # those of `simulated` that haven't ended


@contextmanager
def simulated(**options: object) -> Iterator[None]:
    """Inside, programs that were not written for this package run without a GPU.

    `kernel[grid, block](…)` runs in the simulator, and what numba.cuda and numba_cuda_mlir.cuda
    have outside kernels, such as to_device, is replaced by HOST. Import the program inside, or at
    least call it through `cuda.…`: a name that was imported before keeps its meaning. It holds for
    all threads, until the last block has ended.

    options  those of `launch`, except shared_bytes
    """
    block = simulate(**options)
    with block:
        with LOCK:
            BLOCKS.append(block)
            NAMES.add(our_names())
        try:
            yield
        finally:
            with LOCK:
                BLOCKS.remove(block)
                if not BLOCKS:
                    NAMES.put_back()
