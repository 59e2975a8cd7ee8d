"""What `cuda.…` means inside a kernel, apart from warp functions (warp.py).

A function that a kernel calls takes the frame (which lanes are active) and the place (the number
of the expression in the kernel), then what the kernel passes.
"""

from collections.abc import Callable

import numpy as np

from simt.access import aligned_lanes, check, load, locate, store
from simt.arithmetic import (
    FLOAT32,
    FLOAT64,
    Misuse,
    Value,
    cast,
    dtype_of,
    keeps_type,
    merge,
    plain,
    truth,
)
from simt.gpus import WARP_SIZE
from simt.half import HALF_FUNCTIONS
from simt.lanes import Frame, Lanes
from simt.memory import Array
from simt.warp import WARP_FUNCTIONS

AXES = "xyz"


def position(frame: Frame, register: str, axis: str) -> Value:
    """threadIdx.x and the like: int32, as in Numba."""
    gang = frame.gang
    if register == "threadIdx":
        return gang.thread_idx[axis]
    if register == "blockIdx":
        return gang.block_idx[axis]
    sizes = gang.machine.block if register == "blockDim" else gang.machine.grid
    return np.int32(sizes[AXES.index(axis)])


def laneid(frame: Frame) -> np.ndarray:
    return (frame.gang.threads % WARP_SIZE).astype(np.int32)


def warpsize(frame: Frame) -> np.int32:
    return np.int32(WARP_SIZE)


def grid(frame: Frame, place: int, ndim: int) -> Value:
    """Index of the thread in the whole grid: int64, or a tuple of them."""
    gang = frame.gang
    index = tuple(
        gang.thread_idx[axis] + gang.block_idx[axis].astype(np.int64) * gang.machine.block[i]
        for i, axis in enumerate(AXES[:ndim])
    )
    return index[0] if ndim == 1 else index


def gridsize(frame: Frame, place: int, ndim: int) -> int | tuple[int, ...]:
    machine = frame.gang.machine
    sizes = tuple(machine.grid[i] * machine.block[i] for i in range(ndim))
    return sizes[0] if ndim == 1 else sizes


# Barriers ------------------------------------------------------------------------------------


class Grid:
    """What cuda.cg.this_grid() returns: its threads meet at its sync()."""

    def __str__(self) -> str:
        return "the grid"


THIS_GRID = Grid()


def syncthreads(frame: Frame, place: int) -> None:
    frame.gang.barrier(frame, place)


def _counting(answer: Callable[[int, int], int]) -> Callable:
    def barrier(frame: Frame, place: int, predicate: Value) -> np.int32:
        if dtype_of(predicate).kind not in "iu":
            raise Misuse(f"the predicate must be an integer, not {dtype_of(predicate)}")
        frame.gang.barrier(frame, place, truth(predicate))
        return np.int32(answer(*frame.gang.block.votes))

    return barrier


# Atomics -------------------------------------------------------------------------------------


def _atomic(name: str, combine: Callable[[Value, Value], Value]) -> Callable:
    """One lane after another reads, combines and writes; each lane gets back what it read."""

    def atomic(
        frame: Frame, place: int, array: Array, index: object, value: Value, is_used: bool = True
    ) -> np.ndarray | None:
        def update(old: Value, lane: int) -> Value:
            return combine(old, values[lane])

        if array.dtype not in types:
            raise Misuse(f"atomic.{name} has no form for {array.dtype}")
        values = np.broadcast_to(cast(value, array.dtype), frame.gang.width)
        places, lanes = _places(frame, place, array, index, name, is_used)
        ufunc = None if is_used else _ufunc(name, array.dtype)
        if ufunc is None:
            return _one_by_one(frame, array, places, lanes, update)
        ufunc.at(array.flat, places, values[lanes.numbers])
        return None

    types = ATOMIC_TYPES.get(name, ATOMIC_TYPES["add"])
    return atomic


def _ufunc(name: str, dtype: np.dtype) -> np.ufunc | None:
    """What computes an operation for all lanes. For floats, max and min have rules for NaN."""
    return None if name in ("max", "min") and dtype.kind == "f" else UFUNCS.get(name)


def cas(
    frame: Frame,
    place: int,
    array: Array,
    index: object,
    expected: Value,
    value: Value,
    is_used: bool = True,
) -> np.ndarray:
    """Compare and swap: stores the value if the item holds the expected one."""
    if array.dtype.kind not in "iu":
        raise Misuse(f"atomic.cas works on integers, not {array.dtype}")
    width = frame.gang.width
    wanted = np.broadcast_to(cast(expected, array.dtype), width)
    values = np.broadcast_to(cast(value, array.dtype), width)

    def update(old: Value, lane: int) -> Value:
        return values[lane] if old == wanted[lane] else old

    places, lanes = _places(frame, place, array, index, "cas", is_used)
    return _one_by_one(frame, array, places, lanes, update)


def compare_and_swap(
    frame: Frame, place: int, array: Array, expected: Value, value: Value, is_used: bool = True
) -> np.ndarray:
    """Of the first item."""
    return cas(frame, place, array, (0,) * array.ndim, expected, value, is_used)


def _places(
    frame: Frame, place: int, array: Array, index: object, name: str, is_used: bool
) -> tuple[np.ndarray, Lanes]:
    """Where in array.flat these lanes have the items that they update."""
    indices = index if isinstance(index, tuple) else (index,)
    if len(indices) != array.ndim:
        raise Misuse(f"{array.name} has {array.ndim} dimensions, the index has {len(indices)}")
    array.must_be_writable()
    items, lanes = locate(frame, array, indices, place, "atomic")
    items = np.broadcast_to(items, frame.gang.width)
    if array.fields and frame.gang.machine.memory:  # unlike others, it may lie at any byte
        size = array.dtype.itemsize
        lanes = aligned_lanes(frame, array, items, lanes, size, place, "atomic")
    if lanes.count:
        frame.gang.note_atomic(array, items, lanes, name, is_used)
        check(frame, array, items, lanes, place, "atomic")
    return array.places(items, lanes), lanes


def _one_by_one(
    frame: Frame,
    array: Array,
    places: np.ndarray,
    lanes: Lanes,
    update: Callable[[Value, int], Value],
) -> np.ndarray:
    """What each lane gets back."""
    before = np.zeros(frame.gang.width, array.dtype)
    for lane, here in zip(lanes.numbers, places, strict=True):
        before[lane] = old = array.flat[here]
        array.flat[here] = update(old, lane)
    return before


# Hints to the caches change nothing here --------------------------------------------------------


def _load(frame: Frame, place: int, array: Array, index: tuple[Value, ...]) -> Value:
    return load(frame, array, index, place)


def _store(frame: Frame, place: int, array: Array, index: tuple[Value, ...], value: Value) -> None:
    store(frame, array, index, value, place)


# Bits and fused multiply-add -----------------------------------------------------------------


def _on_bits(
    function: Callable[[int, int], int], result: Callable[[np.dtype], np.dtype]
) -> Callable:
    """A function of the bits of an integer and of their number."""

    def apply(frame: Frame, place: int, value: Value) -> Value:
        dtype = dtype_of(value)
        if dtype.kind not in "iu":
            raise Misuse(f"needs an integer, not {dtype}")
        bits = 8 * dtype.itemsize
        unsigned = np.atleast_1d(np.asarray(value)).astype(f"u{dtype.itemsize}")
        found = [function(int(v), bits) for v in unsigned]
        numbers = np.array(found, np.uint64).astype(result(dtype))
        return numbers if isinstance(value, np.ndarray) else plain(numbers[0])

    return apply


def fma(frame: Frame, place: int, a: Value, b: Value, c: Value) -> Value:
    """a * b + c, rounded once (float64: nearly so, computed in the widest float available)."""
    dtypes = [dtype_of(v) for v in (a, b, c)]
    single = all(d == FLOAT32 for d in dtypes)
    wide = np.float64 if single else np.longdouble
    a, b, c = (v if dtype_of(v).kind in "f" else cast(v, FLOAT64) for v in (a, b, c))
    exact = np.asarray(a).astype(wide) * np.asarray(b).astype(wide) + np.asarray(c).astype(wide)
    return plain(exact.astype(FLOAT32 if single else FLOAT64)[()])


def brev(frame: Frame, place: int, value: Value) -> Value:
    """The bits in reverse order: 64 of them for uint64, else 32, as in Numba."""
    dtype = np.dtype(np.uint64 if dtype_of(value) == np.uint64 else np.uint32)
    reverse = _on_bits(lambda bits, width: int(f"{bits:0{width}b}"[::-1], 2), lambda own: own)
    return reverse(frame, place, cast(value, dtype))


def selp(frame: Frame, place: int, condition: Value, a: Value, b: Value) -> Value:
    if "c" in (dtype_of(a).kind, dtype_of(b).kind):
        raise Misuse("selp doesn't take complex numbers")
    return plain(merge(b, a, np.asarray(truth(condition)))[()])


def _fence(scope: str) -> Callable:
    return lambda frame, place: frame.gang.fence(frame.lanes, scope)


def nanosleep(frame: Frame, place: int, nanoseconds: Value) -> None:
    """Time doesn't pass here."""


ATOMICS: dict[str, Callable] = {
    "add": lambda old, value: old + value,
    "sub": lambda old, value: old - value,
    "and_": lambda old, value: old & value,
    "or_": lambda old, value: old | value,
    "xor": lambda old, value: old ^ value,
    "inc": lambda old, value: 0 if old >= value else old + 1,
    "dec": lambda old, value: value if old == 0 or old > value else old - 1,
    "exch": lambda old, value: value,
    # Numba stores a value only if it is larger (or smaller). A comparison with NaN is never true.
    "max": lambda old, value: value if value > old else old,
    "min": lambda old, value: value if value < old else old,
    "nanmax": np.fmax,
    "nanmin": np.fmin,
}
# Those that do the same to integers in any order
UFUNCS = {"add": np.add, "sub": np.subtract, "max": np.maximum, "min": np.minimum}
UFUNCS |= {"and_": np.bitwise_and, "or_": np.bitwise_or, "xor": np.bitwise_xor}
# What an array that they change may hold; those that aren't here are like add.
ATOMIC_TYPES = {
    "add": frozenset(map(np.dtype, ("i4", "i8", "u4", "u8", "f4", "f8"))),
    **dict.fromkeys(
        ("and_", "or_", "xor", "exch"), frozenset(map(np.dtype, ("i4", "i8", "u4", "u8")))
    ),
    **dict.fromkeys(("inc", "dec"), frozenset(map(np.dtype, ("u4", "u8")))),
}
FUNCTIONS: dict[str, Callable] = {
    "grid": grid,
    "gridsize": gridsize,
    "syncthreads": syncthreads,
    "syncthreads_count": _counting(lambda present, true: true),
    "syncthreads_and": _counting(lambda present, true: true == present),
    "syncthreads_or": _counting(lambda present, true: true > 0),
    "cg.this_grid": lambda frame, place: THIS_GRID,
    **{f"atomic.{name}": _atomic(name, combine) for name, combine in ATOMICS.items()},
    "atomic.cas": cas,
    "atomic.compare_and_swap": compare_and_swap,
    **dict.fromkeys(("ldca", "ldcg", "ldcs", "ldlu", "ldcv"), _load),
    **dict.fromkeys(("stcg", "stcs", "stwb", "stwt"), _store),
    "const.array_like": lambda frame, place, array: array,
    "threadfence_block": _fence("block"),
    **dict.fromkeys(("threadfence", "threadfence_system"), _fence("grid")),
    "nanosleep": nanosleep,
    "selp": selp,
    "cbrt": lambda frame, place, value: keeps_type(np.cbrt)(value),
    "fma": fma,
    "popc": _on_bits(lambda value, bits: value.bit_count(), lambda dtype: dtype),
    "ffs": _on_bits(
        lambda value, bits: (value & -value).bit_length(), lambda dtype: np.dtype(np.uint32)
    ),
    "clz": _on_bits(lambda value, bits: bits - value.bit_length(), lambda dtype: dtype),
    "brev": brev,
    **HALF_FUNCTIONS,
    **WARP_FUNCTIONS,
}
FENCES = frozenset(name for name in FUNCTIONS if name.startswith("threadfence"))
REGISTERS = frozenset(("threadIdx", "blockIdx", "blockDim", "gridDim"))
SPECIAL: dict[str, Callable[[Frame], Value]] = {"laneid": laneid, "warpsize": warpsize}
WRITERS = ("atomic.", "st")  # their first argument is an array, their second an index
INDEXED = frozenset(
    name for name in FUNCTIONS if name.startswith((*WRITERS, "ld")) and not name.endswith("swap")
)
ARRAYS = frozenset(("shared.array", "local.array"))
