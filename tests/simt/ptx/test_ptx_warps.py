"""What the lanes of a warp find out about one another's numbers."""

import operator
from collections.abc import Callable, Iterable, Iterator
from functools import partial, reduce

import numpy as np
import pytest

from tests.simt.ptx.small_kernels import run

LANES = range(32)
DRAW = np.random.default_rng(0)
HALVES = "setp.lt.u32 %p1, %r0, 16; selp.b32 %r3, 0xFFFF, 0xFFFF0000, %p1; "
REST = "setp.lt.u32 %p1, %r0, 20; mov.u32 %r3, 0xFFFFF; @!%p1 bra END; "
# What computes the masks -> the lanes that each names.
MASKS = {"mov.u32 %r3, -1; ": [LANES], HALVES: [range(16), range(16, 32)], REST: [range(20)]}


def mask(lanes: Iterable[int]) -> int:
    return sum(1 << lane for lane in lanes)


def are_same(numbers: Iterable) -> bool:
    return len({*numbers}) == 1


def signed(number: int) -> int:
    return number - (number >> 31 << 32)


REDUCED = {
    **{"add.u32": sum, "min.u32": min, "max.u32": max, "add.s32": sum},
    **{"min.s32": partial(min, key=signed), "max.s32": partial(max, key=signed)},
    **{"and.b32": partial(reduce, operator.and_), "or.b32": partial(reduce, operator.or_)},
    "xor.b32": partial(reduce, operator.xor),
}


def cases() -> Iterator[tuple[str, Callable[[int, dict[int, int]], int]]]:
    """An instruction, and what it gives a lane, of the numbers of all lanes that are named. The
    lane's number is %r4, and the upper half of %rd4; %p4 says whether it is large."""
    for name, function in REDUCED.items():
        yield f"redux.sync.{name} %r5, %r4, %r3", lambda _, all_, f=function: f(all_.values())
    for bits, own in ((32, "%r4"), (64, "%rd4")):
        yield (f"match.any.sync.b{bits} %r5, {own}, %r3",
               lambda lane, all_: mask(n for n in all_ if all_[n] == all_[lane]))  # fmt: skip
        yield (f"match.all.sync.b{bits} %r5|%p2, {own}, %r3; @!%p2 add.u32 %r5, %r5, 5",
               lambda _, all_: mask(all_) if are_same(all_.values()) else 5)  # fmt: skip
    yield ("vote.sync.ballot.b32 %r5, %p4, %r3",
           lambda _, all_: mask(n for n in all_ if all_[n] >> 31))  # fmt: skip
    for mode, function in (("any", any), ("all", all), ("uni", are_same)):
        yield (f"vote.sync.{mode}.pred %p2, %p4, %r3; selp.b32 %r5, 1, 0, %p2",
               lambda _, all_, f=function: f(number >> 31 for number in all_.values()))  # fmt: skip
    for holds in (operator.eq, operator.lt, operator.le, operator.gt, operator.ge):
        yield (f"mov.u32 %r5, %lanemask_{holds.__name__}",
               lambda lane, _, f=holds: mask(n for n in LANES if f(n, lane)))  # fmt: skip


@pytest.mark.parametrize("masks", MASKS, ids=["all", "halves", "20 lanes"])
@pytest.mark.parametrize("kinds", [[0], [2**32 - 1], DRAW.integers(0, 2**32, 4, np.uint32)])
def test_each_lane_gets_what_the_lanes_that_are_named_make(kinds: list, masks: str) -> None:
    items = DRAW.choice(np.array(kinds, np.uint32), 32)
    items[16:] = items[16] if masks == HALVES else items[16:]
    for instruction, exact in cases():
        out = np.zeros_like(items)
        run(f"{masks}ld.global.u32 %r4, [%rd2]; mov.b64 %rd4, {{7, %r4}}; setp.ge.u32 %p4, %r4, "
            f"0x80000000; {instruction}; st.global.u32 [%rd1], %r5; END:", out, items)  # fmt: skip
        for named in MASKS[masks]:
            all_ = {lane: int(items[lane]) for lane in named}
            want = [exact(lane, all_) % 2**32 for lane in named]
            assert out[named].tolist() == want, instruction
