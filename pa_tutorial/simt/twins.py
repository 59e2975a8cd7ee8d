"""Twins: what an intrinsic does, said in Python for the simulator.

An intrinsic gives the compiler instructions that Python cannot write, such as a load of 16
bytes. The simulator cannot look inside, so whoever writes one registers a twin beside it.
"""

from collections.abc import Callable

import numpy as np

from pa_tutorial.simt.access import load_vector, store_vector
from pa_tutorial.simt.lanes import Frame
from pa_tutorial.simt.memory import Array

TWINS: dict[object, Callable] = {}
# intrinsic -> which of its arguments, by number, it may write to; all, if it is not here
WRITTEN: dict[object, tuple[int, ...]] = {}


class LaneAccess:
    """What a twin may do: move vectors, for all lanes at work, as one access each."""

    def __init__(self, frame: Frame, place: int) -> None:
        self._frame, self._place = frame, place

    def load(self, array: Array, index: object, count: int) -> tuple[np.ndarray, ...]:
        """`count` neighbours along the last index, from one aligned address."""
        return load_vector(self._frame, array, _indices(index), count, self._place)

    def store(self, array: Array, index: object, values: tuple) -> None:
        """Writes as many neighbours as there are values."""
        store_vector(self._frame, array, _indices(index), values, self._place)


def twin(
    intrinsic: object, writes: tuple[int, ...] | None = None
) -> Callable[[Callable], Callable]:
    """Registers the decorated function as what `intrinsic` does.

    It is called as function(access, *arguments) with access a LaneAccess; numbers are one for
    all lanes, or NumPy arrays with one for each.

    writes  numbers of the arguments that it may write to, counted without access; None: any.
            Reads of arrays that nobody writes are not remembered, which makes a run faster.
    """

    def register(function: Callable) -> Callable:
        TWINS[intrinsic] = function
        if writes is not None:
            WRITTEN[intrinsic] = writes
        return function

    return register


def _indices(index: object) -> tuple:
    return index if isinstance(index, tuple) else (index,)
