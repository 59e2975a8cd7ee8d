"""Arguments of a launch, as the kernel sees them: arrays with addresses, numbers, tuples."""

import ctypes
from collections.abc import Callable, Collection, Mapping, Sequence
from types import FunctionType

import numpy as np

from simt.arithmetic import DTYPES, TYPES, plain
from simt.device_array import numbers_of
from simt.machine import Machine
from simt.memory import Array, Memory, contiguous, root_extent
from simt.names import function_behind, names_of


def convert(
    machine: Machine,
    arguments: dict[str, object],
    found: dict[str, np.ndarray],
    may_be_written: Collection[str],
    others: Mapping[object, tuple[str, np.ndarray]],
) -> tuple[dict[str, Array], dict[object, Array]]:
    """Arrays as the kernel sees them. Those that share bytes share one Memory.

    found           the arguments that are arrays, as NumPy arrays
    may_be_written  names of arguments; a memory that none of them views, nor what is in them, is
                    read-only
    others          global device arrays, with their names; they may be written
    """
    extents = [_extent(arguments[name], found[name]) for name in found]
    extents += [root_extent(array) for _, array in others.values()]
    memories = _memories(machine, extents)
    machine.memories = [memory for _, memory in memories]
    converted = {name: _view(name, array, memories) for name, array in found.items()}
    for _, memory in memories:
        views = (name for name in found if converted[name].memory is memory)
        memory.only_read = not any(name.split("[")[0] in may_be_written for name in views)
    viewed = {key: _view(name, array, memories) for key, (name, array) in others.items()}
    for array in viewed.values():
        array.memory.only_read = False
    return converted, viewed


def function_of(kernel: Callable) -> FunctionType:
    """The plain function of a kernel; TypeError for anything that can't be launched."""
    function = function_behind(kernel)
    if not hasattr(function, "__code__"):
        raise TypeError(
            f"kernel is a {type(function).__name__}; it must be a @cuda.jit kernel or its plain "
            "function, without [grid, block]"
        )
    if getattr(kernel, "targetoptions", {}).get("device"):
        raise TypeError(
            f"kernel is {function.__name__}, a device function: only a kernel can call it"
        )
    return function


def named(function: FunctionType, values: Sequence[object]) -> dict[str, object]:
    """The arguments of a launch, by name."""
    names = names_of(function)
    if len(values) != len(names):
        raise TypeError(
            f"{function.__name__} takes {len(names)} arguments ({', '.join(names)}); "
            f"it got {len(values)}"
        )
    return dict(zip(names, map(_on_the_gpu, values), strict=True))


def is_output(value: object) -> bool:
    """Is it cuda.Out(array)? On a GPU, the kernel doesn't get what the array held."""
    return type(value).__module__.endswith("cuda.args") and type(value).__name__ == "Out"


def _on_the_gpu(value: object) -> object:
    """What cuda.In, cuda.Out or cuda.InOut wraps; of In, a copy, which nobody gets back."""
    if not type(value).__module__.endswith("cuda.args"):
        return value
    is_copied = type(value).__name__ == "In" and isinstance(value.value, np.ndarray)
    return value.value.copy() if is_copied else value.value


def arrays_of(arguments: dict[str, object]) -> dict[str, np.ndarray]:
    """The arrays and torch tensors among them, as NumPy arrays over the same memory."""
    arrays = {name: _as_numpy(name, value) for name, value in arguments.items()}
    return {name: array for name, array in arrays.items() if array is not None}


def _as_numpy(name: str, value: object) -> np.ndarray | None:
    """An array argument; None for anything else."""
    value = numbers_of(value)
    if isinstance(value, np.void) and value.dtype.names:
        return _over_record(value)
    if type(value).__module__.startswith("torch") and hasattr(value, "data_ptr"):
        if value.device.type != "cpu":
            raise TypeError(f"{name} is on {value.device}; the simulator needs it on the CPU")
        try:
            value = value.detach().numpy()
        except (TypeError, RuntimeError) as error:
            why = f"{name}: {error}"
            if "ScalarType" in str(error):
                why = (
                    f"{name} is {value.dtype}, which NumPy doesn't have; pass its bits: "
                    f"{name}.view(torch.uint{8 * value.itemsize})"
                )
            raise TypeError(why) from None
    on_gpu = hasattr(value, "copy_to_host") or hasattr(value, "__cuda_array_interface__")
    if on_gpu and not isinstance(value, np.ndarray):
        raise TypeError(f"{name} is on the GPU; the simulator needs it on the CPU: copy_to_host()")
    if not isinstance(value, np.ndarray):
        return None
    if isinstance(value, np.ma.MaskedArray):
        raise TypeError(f"{name} is a masked array; pass its .data or .filled()")
    if value.dtype.names and value.ndim == 0:
        raise TypeError(f"{name} is an array without dimensions; pass its record, {name}[()]")
    if value.dtype not in DTYPES and not value.dtype.names:
        allowed = "integers and floats of at most 64 bits, or complex numbers of two floats"
        allowed += ", in the byte order of this machine"
        raise TypeError(f"{name} holds {value.dtype.str}; a kernel computes with {allowed}")
    if any(stride % value.itemsize for stride in value.strides):
        raise TypeError(f"{name} has strides {value.strides}, not multiples of its itemsize")
    return value


def _over_record(record: np.void) -> np.ndarray:
    """An array without dimensions over the bytes of a record, which a kernel may change."""
    there = record.__array_interface__["data"][0]
    data = (ctypes.c_uint8 * record.nbytes).from_address(there)
    return np.ndarray((), record.dtype, data)


def _extent(value: object, array: np.ndarray) -> tuple[int, int]:
    """The first byte of the allocation that an argument views, and one past its last."""
    if not hasattr(value, "untyped_storage"):
        return root_extent(array)
    storage = value.untyped_storage()  # of a torch tensor
    return storage.data_ptr(), storage.data_ptr() + storage.nbytes()


def _memories(machine: Machine, extents: list[tuple[int, int]]) -> list[tuple[int, Memory]]:
    """(first byte, memory) of each allocation; overlapping extents are one allocation.

    Addresses follow the order of the arguments, so they are the same in every run.
    """
    joined: list[list[int]] = []
    for low, high in sorted(extents):
        if joined and low < joined[-1][1]:
            joined[-1][1] = max(joined[-1][1], high)
        else:
            joined.append([low, high])
    memories = []
    first_use = [low for low, _ in extents]
    for low, high in sorted(joined, key=lambda ends: _first_in(first_use, *ends)):
        data = np.frombuffer((ctypes.c_uint8 * (high - low)).from_address(low), np.uint8)
        address = machine.allocate(high - low)
        memories.append((low, Memory(data, "global", address, written=True)))
    return memories


def _first_in(numbers: list[int], low: int, high: int) -> int:
    """Index of the first number in [low, high); an empty range counts as holding low."""
    return next(i for i, number in enumerate(numbers) if low <= number < max(high, low + 1))


def _view(name: str, array: np.ndarray, memories: list[tuple[int, Memory]]) -> Array:
    pointer = array.__array_interface__["data"][0]
    low, memory = max((m for m in memories if m[0] <= pointer), key=lambda m: m[0])
    offset, itemsize = pointer - low, array.itemsize
    strides = tuple(stride // itemsize for stride in array.strides)
    first, phase = divmod(offset, itemsize)
    read_only = not array.flags.writeable
    return Array(memory, array.dtype, array.shape, strides, first, name, phase, read_only)


def constant_array(machine: Machine, name: str, value: np.ndarray) -> Array:
    """A global array, which a kernel gets as a constant: a copy as it is now, read-only."""
    copy = np.ascontiguousarray(value).reshape(value.shape)
    data = np.frombuffer(copy.tobytes(), np.uint8)
    memory = Memory(data, "global", machine.allocate(data.size), written=True)
    memory.only_read = True
    return Array(memory, value.dtype, value.shape, contiguous(value.shape), 0, name, 0, True)


def forget(name: str, arguments: dict[str, object]) -> None:
    """Marks this argument as unwritten."""
    array = arguments.get(name)
    if not isinstance(array, Array):
        raise ValueError(f"unwritten: {name!r} isn't an array argument of the kernel")
    memory = array.memory
    if memory.written is None:
        memory.written = np.ones(memory.num_cells, bool)
    steps = [np.arange(n) * stride for n, stride in zip(array.shape, array.strides, strict=True)]
    items = np.asarray(array.start + sum(np.ix_(*steps)))
    memory.written[array.cells(items.ravel())] = False


def plain_number(name: str, value: object) -> object:
    """An argument that isn't an array. Raises TypeError or OverflowError for others."""
    if value is None:
        return None
    if isinstance(value, tuple):
        return tuple(plain_number(f"{name}[{i}]", part) for i, part in enumerate(value))
    if type(value) in TYPES:
        try:
            return plain(value)
        except OverflowError as error:
            raise OverflowError(f"{name}: {error}") from None
    if _as_numpy(name, value) is not None:
        raise TypeError(
            f"{name} is an array in a tuple, which the simulator doesn't support; pass each array "
            "as an argument"
        )
    raise TypeError(
        f"{name} is a {type(value).__name__}; a kernel takes NumPy arrays, torch CPU tensors, "
        "records, numbers and tuples of numbers"
    )
