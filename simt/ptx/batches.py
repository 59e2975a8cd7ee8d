"""Races while thread blocks run side by side: a quick look, which may only say that there is none.

Looking for a race exactly takes one thread block after another and a stamp for every byte, see
races.py. Correct kernels needn't pay for that. Here thread blocks run side by side, in batches; the
accesses are noted in any case, and when threads have met at a barrier, all accesses since the
barrier before are looked at together. Where one thread writes, no other may have been; that is
quick to see, because most accesses are loads from arrays that nobody writes. At the end the same
holds for thread blocks in global memory. Anything else raises Doubt. Then the launch begins again,
one thread block after another, which finds out what it was.

Kernels with atomic operations, fences or barriers of a warp don't run in batches: these order
accesses in other ways, and thread blocks that wait for one another must run in a fixed order.
"""

from collections.abc import Callable, Sequence

import numpy as np

from simt.ptx.memory import Access
from simt.ptx.parsing import Instruction, Kernel

ALONE = {"atom", "red", "membar", "fence", "cp", "volatile", "relaxed", "acquire", "release"}


class Doubt(Exception):
    """The thread blocks must run one after another to settle something."""


def may_run_in_batches(kernel: Kernel) -> bool:
    return not any(map(_is_alone, kernel.instructions))


def _is_alone(one: Instruction) -> bool:
    return bool(ALONE & set(one.words)) or one.words[:2] == ("bar", "warp")


def between_threads(accesses: Sequence[Access]) -> bool:
    """Whether some threads may race: none of these accesses are ordered by a barrier."""
    each = ([one for one in accesses if one.space == space] for space in ("global", "shared"))
    return any(_meet(those, lambda one: one.lanes.numbers) for those in each)


def between_blocks(accesses: Sequence[Access]) -> bool:
    """Whether some thread blocks may race, given all accesses of a launch."""
    return _meet([one for one in accesses if one.space == "global"], lambda one: one.blocks)


def _meet(accesses: Sequence[Access], who: Callable[[Access], np.ndarray]) -> bool:
    """Whether somebody accesses what another writes. All are accesses to one space."""
    writes = [one for one in accesses if one.kind == "write"]
    if not writes:
        return False
    low, high = min(one.low for one in writes), max(one.high for one in writes)
    near = [one for one in accesses if one.low < high and low < one.high]
    size = min(one.num_bytes for one in near)
    low = min(one.low for one in near) // size
    length = max(one.high for one in near) // size - low
    num_copies = 1
    if near[0].space == "shared":
        num_copies += max(int(one.lanes.numbers[-1]) // one.per_block for one in near)
    writer = np.full(num_copies * length, -1)

    def items(one: Access) -> np.ndarray:
        """[active, items] of its bytes, `size` in each."""
        first = one.addresses // size - low
        if one.space == "shared":
            first += one.lanes.numbers // one.per_block * length
        return first[:, None] + np.arange(one.num_bytes // size)

    for one in writes:
        writer[items(one)] = who(one)[:, None]
    for one in near:
        found = writer[items(one)]
        if ((found >= 0) & (found != who(one)[:, None])).any():
            return True
    return False
