"""Twins: what an intrinsic does, written in Python for the simulator.

An intrinsic gives the compiler instructions that Python can't express, such as a load of 16
bytes. The simulator can't look inside, so each intrinsic needs a twin registered for it.
"""

from collections.abc import Callable

import numpy as np

from simt.access import load_vector, store_vector
from simt.lanes import Frame
from simt.memory import Array

TWINS: dict[object, Callable] = {}
# intrinsic -> the numbers of the arguments it may write to; one that isn't here may write to all
WRITTEN: dict[object, tuple[int, ...]] = {}


class LaneAccess:
    """What a twin may do: move vectors, for all active lanes, as one access per lane."""

    def __init__(self, frame: Frame, place: int) -> None:
        self._frame, self._place = frame, place

    def load(self, array: Array, index: object, count: int) -> tuple[np.ndarray, ...]:
        """Loads `count` neighbours along the last index, from one aligned address."""
        return load_vector(self._frame, array, _indices(index), count, self._place)

    def store(self, array: Array, index: object, values: tuple) -> None:
        """Stores as many neighbours as there are values."""
        store_vector(self._frame, array, _indices(index), values, self._place)


def twin(
    intrinsic: object, writes: tuple[int, ...] | None = None
) -> Callable[[Callable], Callable]:
    """Registers the decorated function as what `intrinsic` does.

    It is called as function(access, *arguments), where access is a LaneAccess; a number is either
    one for all lanes or a NumPy array with one per lane.

    writes  numbers of the arguments that it may write to, counted without access; None: any.
            Reads of arrays that are never written aren't remembered, which makes a run faster.
    """

    def register(function: Callable) -> Callable:
        TWINS[intrinsic] = function
        if writes is not None:
            WRITTEN[intrinsic] = writes
        return function

    return register


def _indices(index: object) -> tuple:
    return index if isinstance(index, tuple) else (index,)
