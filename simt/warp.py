"""What the lanes of a warp do together: shuffles, votes, syncwarp.

Each takes a mask of the lanes that take part. The rules (CUDA C++ Programming Guide, "Warp Shuffle
Functions"): a caller must be in its own mask; every lane of the mask that hasn't returned must
make the same call with the same mask; a shuffle may only read from a lane that calls.
"""

from collections.abc import Callable, Iterator

import numpy as np

from simt.arithmetic import FLOAT32, FLOAT64, INT64, Misuse, Value, dtype_of, truth
from simt.gpus import ALL_LANES, WARP_SIZE
from simt.lanes import Frame

SHUFFLED = frozenset((np.dtype(np.int32), INT64, FLOAT32, FLOAT64))


def groups(frame: Frame, mask: Value) -> Iterator[tuple[int, int, np.ndarray]]:
    """(warp, mask, callers): the active lanes that passed the same mask.

    callers are lanes of the gang.
    """
    lanes, first = frame.lanes, frame.gang.first
    callers = lanes.numbers
    warps = (callers + first) // WARP_SIZE
    if isinstance(mask, np.ndarray):
        masks = mask.astype(np.int64)[callers] & ALL_LANES
    else:
        masks = np.full(len(callers), int(mask) & ALL_LANES)
    for warp in np.unique(warps):
        of_warp = warps == warp
        for one in np.unique(masks[of_warp]):
            yield int(warp), int(one), callers[of_warp & (masks == one)]


def members(mask: int) -> np.ndarray:
    """The lanes of a warp that a mask names, in ascending order."""
    return np.flatnonzero((mask >> np.arange(WARP_SIZE)) & 1)


def check_mask(frame: Frame, place: int, mask: Value, what: str) -> None:
    """Checks that every caller is in its mask, and that every lane in the mask calls."""
    gang, machine = frame.gang, frame.gang.machine
    if not machine.sync:
        return
    if type(mask) is int and mask & ALL_LANES == ALL_LANES and _whole_warps(frame):
        return
    for warp, one, callers in groups(frame, mask):
        start = warp * WARP_SIZE - gang.first  # lane of the gang that is lane 0 of the warp
        for caller in callers:
            if not one >> int(caller - start) & 1:
                why = f"calls {what} with the mask {one:#x}, which doesn't include it"
                gang.find("sync", place, caller, why)
        named = start + members(one)
        named = named[named < gang.width]
        absent = np.setdiff1d(named[gang.alive.flags[named]], callers)
        if len(absent):
            other = gang.first + int(absent[0])
            why = (
                f"calls {what} with the mask {one:#x}, which includes {machine.thread_name(other)}"
            )
            more = {"other_block": gang.block.index, "other_thread": other}
            gang.find("sync", place, callers[0], f"{why}, but that thread doesn't call it", **more)


def _whole_warps(frame: Frame) -> bool:
    """Do all lanes of a warp that haven't returned call, or none of them?"""
    gang, lanes = frame.gang, frame.lanes
    if lanes.count == gang.alive.count:
        return True
    if gang.width % WARP_SIZE:
        return False  # perhaps: look closer
    missing = gang.alive.flags & ~lanes.flags
    calls, lacks = (flags.reshape(-1, WARP_SIZE).any(axis=1) for flags in (lanes.flags, missing))
    return not np.any(calls & lacks)


def note(frame: Frame, place: int, kind: str, *source_lanes: np.ndarray) -> None:
    """Records what the lanes do together, if their thread block is traced."""
    if frame.gang.recorder is not None:
        frame.gang.recorder.event(frame, place, kind, *source_lanes)


def syncwarp(frame: Frame, place: int, mask: Value = ALL_LANES) -> None:
    """Orders the memory accesses of the lanes in the mask."""
    check_mask(frame, place, mask, "syncwarp")
    note(frame, place, "syncwarp")
    order_memory(frame, mask)


def order_memory(frame: Frame, mask: Value) -> None:
    gang = frame.gang
    for warp, one, callers in groups(frame, mask):
        lanes = callers - (warp * WARP_SIZE - gang.first)
        gang.block.ordering.syncwarp(warp, lanes[(one >> lanes) & 1 == 1])


def _must_be(what: str, value: Value, kinds: str) -> None:
    if dtype_of(value).kind not in kinds:
        allowed = "an integer or a truth value" if "b" in kinds else "an integer"
        raise Misuse(f"{what} must be {allowed}, not {dtype_of(value)}")


def _shuffle(name: str, source: Callable[[np.ndarray, Value], np.ndarray]) -> Callable:
    """A shuffle; `source` says which lane of its warp each lane reads from."""

    def shuffle(frame: Frame, place: int, lanes: Value, value: Value, d: Value) -> Value:
        if dtype_of(value) not in SHUFFLED:
            raise Misuse(f"{name} moves int32, int64, float32 and float64, not {dtype_of(value)}")
        _must_be(f"the mask of {name}", lanes, "iu")
        _must_be(f"the third argument of {name}", d, "iu")
        gang, here = frame.gang, frame.lanes
        check_mask(frame, place, lanes, name)
        if gang.machine.shuffles_order_memory:
            order_memory(frame, lanes)
        lane = gang.threads % WARP_SIZE
        wanted = source(lane, d)
        wanted = np.where((wanted < 0) | (wanted >= WARP_SIZE), lane, wanted)
        sources = np.arange(gang.width) - lane + wanted
        note(frame, place, "shuffle", wanted)
        exists = sources < gang.width
        sources = np.where(exists, sources, np.arange(gang.width))
        masks = np.asarray(lanes).astype(np.int64)
        unnamed = (masks >> wanted) & 1 == 0
        silent = here.where(~exists | ~here.flags[sources] | unnamed)
        if silent.count and gang.machine.sync:
            reader = silent.numbers[0]
            asked = gang.machine.thread_name(
                int(gang.threads[reader] - lane[reader] + wanted[reader])
            )
            why = "isn't in its mask" if unnamed[reader] else "doesn't take part"
            gang.find("sync", place, reader, f"reads with {name} from {asked}, which {why}")
        if not isinstance(value, np.ndarray):
            return value
        return np.where(here.flags[sources], value[sources], value)

    return shuffle


def _vote(combine: Callable[[np.ndarray, np.ndarray], int], dtype: np.dtype) -> Callable:
    """A vote; `combine` turns the callers' predicates into one answer."""

    def vote(frame: Frame, place: int, mask: Value, predicate: Value) -> np.ndarray:
        _must_be("the mask of a vote", mask, "iu")
        _must_be("the predicate of a vote", predicate, "biu")
        check_mask(frame, place, mask, "a vote")
        note(frame, place, "vote")
        gang = frame.gang
        yes = np.broadcast_to(truth(predicate), gang.width)
        answer = np.zeros(gang.width, dtype)
        for _, _, callers in groups(frame, mask):
            lanes = (callers + gang.first) % WARP_SIZE
            answer[callers] = combine(yes[callers], lanes)
        return answer

    return vote


def _ballot(yes: np.ndarray, lanes: np.ndarray) -> int:
    return np.uint32(np.sum(np.uint64(1) << lanes[yes].astype(np.uint64))).astype(np.int32)


def activemask(frame: Frame, place: int) -> np.ndarray:
    """The lanes of the warp that are active here."""
    gang = frame.gang
    warps = np.arange(gang.width) // WARP_SIZE
    bits = np.where(frame.lanes.flags, np.int64(1) << (gang.threads % WARP_SIZE), 0)
    return np.bincount(warps, bits)[warps].astype(np.uint32)


def lanemask_lt(frame: Frame, place: int) -> np.ndarray:
    """The lanes below each lane."""
    return ((np.int64(1) << frame.gang.threads % WARP_SIZE) - 1).astype(np.uint32)


def match_any_sync(frame: Frame, place: int, mask: Value, value: Value) -> np.ndarray:
    """The lanes with the same value, for each lane."""
    check_mask(frame, place, mask, "a match")
    note(frame, place, "vote")
    return _matches(frame, mask, value)


def _matches(frame: Frame, mask: Value, value: Value) -> np.ndarray:
    values = np.array(np.broadcast_to(value, frame.gang.width))
    values = values.view(f"u{values.itemsize}")  # of floats, too, the bits are compared
    answer = np.zeros(frame.gang.width, np.int32)
    for _, _, callers in groups(frame, mask):
        lanes = (callers + frame.gang.first) % WARP_SIZE
        for caller in callers:
            answer[caller] = _ballot(values[callers] == values[caller], lanes)
    return answer


def match_all_sync(
    frame: Frame, place: int, mask: Value, value: Value
) -> tuple[np.ndarray, np.ndarray]:
    """The calling lanes and True where all of them have one value, else 0 and False."""
    same = match_any_sync(frame, place, mask, value)
    all_ = same == _matches(frame, mask, 0)
    return np.where(all_, same, np.int32(0)), all_


# A shuffle takes the low 5 bits of the lane number. Source: PTX ISA, "shfl.sync".
WARP_FUNCTIONS: dict[str, Callable] = {
    "syncwarp": syncwarp,
    "shfl_sync": _shuffle("shfl_sync", lambda lane, source: lane * 0 + source % WARP_SIZE),
    "shfl_up_sync": _shuffle("shfl_up_sync", lambda lane, delta: lane - delta % WARP_SIZE),
    "shfl_down_sync": _shuffle("shfl_down_sync", lambda lane, delta: lane + delta % WARP_SIZE),
    "shfl_xor_sync": _shuffle("shfl_xor_sync", lambda lane, bits: lane ^ bits % WARP_SIZE),
    "ballot_sync": _vote(_ballot, np.int32),
    "all_sync": _vote(lambda yes, _: yes.all(), np.bool_),
    "any_sync": _vote(lambda yes, _: yes.any(), np.bool_),
    "eq_sync": _vote(lambda yes, _: yes.all() or not yes.any(), np.bool_),
    "activemask": activemask,
    "lanemask_lt": lanemask_lt,
    "match_any_sync": match_any_sync,
    "match_all_sync": match_all_sync,
}
