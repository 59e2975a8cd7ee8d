"""What the lanes of a warp, or the threads of a block, find out about one another's numbers."""

import operator
from collections.abc import Callable
from functools import reduce

import numpy as np
import pytest

from tests.simt.ptx.small_kernels import run

DRAW = np.random.default_rng(0)
HALVES = "setp.lt.u32 %p1, %r0, 16; selp.b32 %r3, 0xFFFF, 0xFFFF0000, %p1; "
REST = "setp.lt.u32 %p1, %r0, 20; mov.u32 %r3, 0xFFFFF; @!%p1 bra END; "
# What computes the masks -> the lanes that each names.
MASKS = {"mov.u32 %r3, -1; ": [range(32)], HALVES: [range(16), range(16, 32)], REST: [range(20)]}


@pytest.mark.parametrize("masks", MASKS, ids=["all", "halves", "20 lanes"])
@pytest.mark.parametrize("bits", [32, 64])
def test_lanes_with_the_same_number_find_one_another(bits: int, masks: str) -> None:
    """The numbers of 64 bits differ in their upper half only."""
    kinds = DRAW.integers(0, 4, 32).astype(f"u{bits // 8}") << np.uint8(bits - 8)
    kinds[16:] = kinds[16] if masks == HALVES else kinds[16:]
    out, register = np.zeros((32, 4), np.uint32), {32: "%r4", 64: "%rd4"}[bits]
    body = f"mul.wide.u32 %rd8, %r0, 16; add.u64 %rd8, %rd8, %rd11; {masks}"
    body += f"mad.wide.u32 %rd9, %r0, {bits // 8}, %rd12; ld.global.b{bits} {register}, [%rd9]; "
    body += f"match.any.sync.b{bits} %r5, {register}, %r3; "
    body += f"match.all.sync.b{bits} %r6|%p2, {register}, %r3; selp.b32 %r7, 1, 0, %p2; "
    run(body + "st.global.v4.u32 [%rd8], {%r5, %r6, %r7, %r7}; END:", out, kinds)
    for lane, those in ((lane, group) for group in MASKS[masks] for lane in group):
        same = sum(1 << other for other in those if kinds[other] == kinds[lane])
        whole = sum(1 << other for other in those)
        assert out[lane].tolist()[:3] == [same, whole * (same == whole), same == whole]


EXACT = {"add": operator.add, "min": min, "max": max}
LOGIC = {"and": operator.and_, "or": operator.or_, "xor": operator.xor}


@pytest.mark.parametrize("masks", MASKS, ids=["all", "halves", "20 lanes"])
@pytest.mark.parametrize(("type_", "functions"), [("u32", EXACT), ("s32", EXACT), ("b32", LOGIC)])
def test_the_numbers_of_the_lanes_named_are_reduced(
    type_: str, functions: dict[str, Callable], masks: str
) -> None:
    items = DRAW.integers(0, 2**32, 32, np.uint32).view("i4" if type_ == "s32" else "u4")
    for name, function in functions.items():
        out = np.zeros_like(items)
        run(f"{masks}ld.global.u32 %r4, [%rd2]; redux.sync.{name}.{type_} %r5, %r4, %r3; "
            "st.global.u32 [%rd1], %r5; END:", out, items)  # fmt: skip
        for those in MASKS[masks]:
            want = reduce(function, items[those].tolist())
            assert all((want - int(found)) % 2**32 == 0 for found in out[those])


@pytest.mark.parametrize("masks", MASKS, ids=["all", "halves", "20 lanes"])
@pytest.mark.parametrize("below", [0, 5, 16, 32])
def test_a_vote_is_that_of_the_lanes_in_the_mask(below: int, masks: str) -> None:
    out = np.zeros((32, 4), np.uint32)
    body = f"mad.wide.u32 %rd5, %r0, 16, %rd11; {masks} setp.lt.u32 %p2, %r0, {below}; "
    body += "vote.sync.ballot.b32 %r4, %p2, %r3; st.global.u32 [%rd5], %r4; "
    for n, mode in enumerate(("any", "all", "uni"), 1):
        body += f"vote.sync.{mode}.pred %p3, %p2, %r3; selp.b32 %r5, 1, 0, %p3; "
        body += f"st.global.u32 [%rd5+{4 * n}], %r5; "
    run(body + "END:", out)
    for those in MASKS[masks]:
        yes = [lane for lane in those if lane < below]
        want = [sum(1 << n for n in yes), bool(yes), len(yes) == len(those)]
        assert (out[those] == [*want, len(yes) in (0, len(those))]).all()


@pytest.mark.parametrize("first", [0, 3, 40, 70])
def test_a_barrier_counts_the_threads_that_say_yes(first: int) -> None:
    """In three thread blocks of 70 threads, in turn: those from `first` on, none, all."""
    out = np.zeros((3, 70, 4), np.uint32)
    body = (
        "mov.u32 %r1, %ctaid.x; mad.lo.u32 %r2, %r1, 70, %r0; mad.wide.u32 %rd5, %r2, 16, %rd11; "
        f"mov.u32 %r3, {first}; setp.eq.u32 %p1, %r1, 1; @%p1 mov.u32 %r3, 99; "
        "setp.eq.u32 %p1, %r1, 2; @%p1 mov.u32 %r3, 0; setp.ge.u32 %p1, %r0, %r3; "
        "bar.red.popc.u32 %r4, 0, %p1; bar.red.and.pred %p2, 0, %p1; bar.red.or.pred %p3, 0, %p1; "
        "barrier.red.popc.u32 %r7, 0, !%p1; selp.b32 %r5, 1, 0, %p2; selp.b32 %r6, 1, 0, %p3; "
        "st.global.v4.u32 [%rd5], {%r4, %r5, %r6, %r7};"
    )
    for checks in (("memory", "init", "race", "sync"), ()):
        run(body, out, threads=70, grid=3, checks=checks)
        for block, yes in enumerate([70 - first, 0, 70]):
            assert (out[block] == [yes, yes == 70, yes > 0, 70 - yes]).all()


def test_the_masks_of_the_lanes_around_a_lane() -> None:
    out = np.zeros((32, 5), np.uint32)
    names = ("eq", "lt", "le", "gt", "ge")
    body = "mad.wide.u32 %rd5, %r0, 20, %rd11; " + "".join(
        f"mov.u32 %r3, %lanemask_{name}; st.global.u32 [%rd5+{4 * n}], %r3; "
        for n, name in enumerate(names)
    )
    run(body, out)
    holds = [int.__eq__, int.__lt__, int.__le__, int.__gt__, int.__ge__]
    for lane, row in enumerate(out.tolist()):
        assert row == [sum(1 << n for n in range(32) if hold(n, lane)) for hold in holds]
