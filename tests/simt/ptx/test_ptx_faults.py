"""Wrong programs, and text that can't be run: each is named, with its line."""

import operator
import re
from collections.abc import Callable
from itertools import accumulate

import numpy as np
import pytest

from simt.machine import CHECKS
from simt.ptx import PtxError, PtxFault, PtxReport, parse, run_ptx
from tests.simt.ptx.small_kernels import run, text_of

TO_SHARED = "mov.u32 %r1, s; shl.b32 %r2, %r0, 2; add.s32 %r1, %r1, %r2;"  # s[t]
STORE = TO_SHARED + "st.shared.u32 [%r1], %r0;"
NEIGHBOUR = "xor.b32 %r4, %r1, 4; ld.shared.u32 %r3, [%r4];"  # s[t ^ 1]
COPY = TO_SHARED + "cp.async.ca.shared.global [%r1], [%rd1], 4;"
FIRST_HALF = "setp.lt.u32 %p1, %r0, 16;"
MASK_OF_HALF = FIRST_HALF + "selp.b32 %r3, 0xFFFF, 0xFFFF0000, %p1;"
# What is said of a program -> the program.
WRONG = {
    "4 bytes before the start of argument 0": "st.global.u32 [%rd1+-4], %r0;",
    "address 0x0 is a null pointer": "mov.u64 %rd3, 0; ld.global.u32 %r3, [%rd3];",
    "address 0xfffffffffffffffc is 4 bytes before a null pointer":
        "mov.u64 %rd3, 0; st.u32 [%rd3+-4], %r0;",
    "in argument 0, and goes past its end": "ld.global.v2.u32 {%r3, %r4}, [%rd11+124];",
    "thread 16 of thread block 0, address 0x100 is outside the 256 bytes of shared memory":
        "mov.u32 %r1, s; mad.lo.s32 %r1, %r0, 16, %r1; st.shared.u32 [%r1], %r0;",
    "memory: thread 1 of thread block 0, address 0x4 is misaligned for 8 bytes":
        TO_SHARED + "ld.shared.v2.u32 {%r3, %r4}, [%r1];",
    # near the end of all numbers
    "memory: thread 0 of thread block 0, address 0x7ffffffffffffff0":
        "mov.u64 %rd5, 0x7ffffffffffffff0; ld.shared.v4.u32 {%r1, %r2, %r3, %r4}, [%rd5];",
    "init: thread 0 of thread block 0, address 0x0 is read, and was never written":
        TO_SHARED + "ld.shared.u32 %r3, [%r1];",
    "sync: a barrier that not all threads reach: thread 16 of thread block 0 waits at line":
        FIRST_HALF + "@!%p1 bra OTHER; bar.sync 0; bra END; OTHER: bar.sync 0; END:",
    "sync: thread 16 of thread block 0 isn't here, but its lane is in the mask":
        FIRST_HALF + "@%p1 shfl.sync.bfly.b32 %r3, %r0, 1, 31, -1; bar.sync 0;",
    # lane 16 has ended; then it is outside the mask
    "reads from lane 16, which isn't here or isn't in the mask":
        FIRST_HALF + "@%p1 bra ON; ret; ON: shfl.sync.bfly.b32 %r3, %r0, 16, 31, -1;",
    "sync: thread 0 of thread block 0 reads from lane 16":
        MASK_OF_HALF + "shfl.sync.bfly.b32 %r4, %r0, 16, 31, %r3;",
    "sync: thread 16 of thread block 0 isn't in the mask that it names":
        "vote.sync.ballot.b32 %r3, 1, 0xFFFF;",
    "sync: thread 0 of thread block 0 and thread 16 of thread block 0 have different masks":
        FIRST_HALF + "selp.b32 %r3, -1, 0xFFFF0000, %p1; bar.warp.sync %r3;",
    # a matrix product
    "sync: thread 16 of thread block 0 isn't here":
        FIRST_HALF + "@%p1 mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 "
        "{%f1, %f2, %f3, %f4}, {%r1, %r2}, {%r3}, {%f1, %f2, %f3, %f4};",
    # a wait for too few groups; then a copy that isn't in a group
    "init: thread 0 of thread block 0, address 0x0 is read, and the thread that copies it":
        COPY + "cp.async.commit_group; cp.async.wait_group 1; ld.shared.u32 %r3, [%r1];",
    "the thread that copies it (cp.async) hasn't waited":
        COPY + "cp.async.wait_group 0; ld.shared.u32 %r3, [%r1];",
    # a barrier before the wait
    "race: thread 0 of thread block 0 does a read where thread 1 did a write":
        COPY + "bar.sync 0; cp.async.wait_all;" + NEIGHBOUR,
    # halves of a warp that each wait for themselves
    "race: thread 0 of thread block 0 does a read where thread 16 did a write":
        STORE + MASK_OF_HALF + "bar.warp.sync %r3; xor.b32 %r4, %r1, 64; ld.shared.u32 %r5, [%r4];",
    # a plain load beside strong stores
    "race: thread 0 of thread block 0 does a read where thread 31 did an atomic":
        "st.relaxed.gpu.global.u32 [%rd11], 5; ld.global.u32 %r3, [%rd11];",
    "sync: still running after 1,000 basic blocks":
        "AGAIN: bar.sync 0; add.u32 %r1, %r1, 1; setp.ge.u32 %p1, %r1, 0; @%p1 bra AGAIN;",
    "the kernel stopped itself": "trap;",
}  # fmt: skip


@pytest.mark.parametrize(("what", "body"), WRONG.items(), ids=WRONG)
def test_a_mistake_is_found_and_named_with_its_line(what: str, body: str) -> None:
    array = np.zeros(32, np.uint32)
    with pytest.raises(PtxFault, match=rf"{re.escape(what)}[\s\S]*line \d+ of the PTX"):
        run(body, array, max_steps=1000)
    assert not array.any(), "a kernel with a mistake leaves the arrays as they were"


# What a text computes: its body, and what is in the array afterwards.
RIGHT = {
    # generic addresses, in another space for each lane
    STORE + "cvt.u64.u32 %rd5, %r1; cvta.shared.u64 %rd5, %rd5;" + FIRST_HALF
    + "selp.b64 %rd6, %rd5, %rd1, %p1; @!%p1 st.global.u32 [%rd1], 9; "
    "ld.u32 %r3, [%rd6]; add.u32 %r3, %r3, 1; st.u32 [%rd6], %r3; "
    "@%p1 ld.shared.u32 %r3, [%r1]; @%p1 st.global.u32 [%rd1], %r3;": [*range(1, 17), *[10] * 16],
    # which space a generic address is in: the thread's own, the global one, the shared one or none
    ".local .b32 l; mov.u64 %rd5, l; cvta.local.u64 %rd5, %rd5; isspacep.local %p1, %rd5; "
    "mov.u64 %rd6, s; cvta.shared.u64 %rd6, %rd6; isspacep.shared %p2, %rd6; "
    "isspacep.global %p3, %rd11; isspacep.shared %p4, %rd11; isspacep.local %p5, 64; "
    "selp.b32 %r3, 1, 0, %p1; @%p2 add.u32 %r3, %r3, 2; @%p3 add.u32 %r3, %r3, 4; "
    "@%p4 add.u32 %r3, %r3, 8; @%p5 add.u32 %r3, %r3, 16; st.global.u32 [%rd1], %r3;": [7],
    # strong stores and loads, which don't race
    "st.relaxed.gpu.global.u32 [%rd11], 5; ld.volatile.global.u32 %r3, [%rd11]; "
    "atom.global.add.u32 %r4, [%rd11], 0; @%p1 st.global.u32 [%rd1], %r3;": [5, *[0] * 31],
    # lanes that parted, meet again and shuffle by a distance of five bits
    "setp.lt.u32 %p1, %r0, 5; mov.u32 %r3, 1; @!%p1 bra MEET; mov.u32 %r3, 3; MEET: "
    "shfl.sync.down.b32 %r4|%p2, %r3, 33, 31, -1; activemask.b32 %r5; add.u32 %r4, %r4, %r5; "
    "selp.b32 %r4, %r4, 0, %p2; st.global.u32 [%rd1], %r4;": [2] * 4 + [0] * 28,
    # a mask that names lanes that have ended, as after `if i >= n: return`
    FIRST_HALF + "@!%p1 bra END; vote.sync.ballot.b32 %r1, %p1, -1; st.global.u32 [%rd1], %r1; "
    "END: ret;": [0xFFFF] * 16 + [0] * 16,
    # lanes that come to a shuffle by a jump back, while others wait for them there
    "mov.u32 %r3, 0; setp.lt.u32 %p1, %r0, 16; @%p1 bra LATE; MEET: shfl.sync.bfly.b32 %r4, %r3, "
    "16, 31, -1; bra END; LATE: mov.u32 %r3, 1; bra MEET; END: "
    "mad.lo.u32 %r4, %r3, 100, %r4; st.global.u32 [%rd1], %r4;": [100] * 16 + [1] * 16,
    # sums: subnormal numbers are none in global memory, but in shared memory
    "setp.eq.u32 %p1, %r0, 0; mov.u32 %r3, 1; mov.b32 %f1, %r3; @%p1 st.shared.f32 [s], %f1; "
    "@%p1 atom.shared.add.f32 %f2, [s], %f1; @%p1 atom.global.add.f32 %f2, [%rd11], %f1; "
    "@%p1 ld.shared.f32 %f3, [s]; @%p1 st.global.f32 [%rd11+4], %f3;": [0, 2],
    # the upper part of registers and of a parameter: of 0x7F00…
    "mov.b64 %rd5, {%r0, 7}; mov.b64 {_, %r5}, %rd5; ld.param.u32 %r6, [p1+4]; "
    "shr.u32 %r6, %r6, 8; mad.lo.u32 %r3, %r6, 10, %r5; st.global.u32 [%rd1], %r3;": [1277],
    # constants that have exponents or a name, or stand for their bits: 150, 0.5, 0.25 and 32
    "mov.f32 %f1, 1.5e2; mov.f64 %fd1, 0f3F000000; cvt.rn.f32.f64 %f2, %fd1; mov.b32 %r2, "
    "0f3E800000; mov.b32 %f3, %r2; add.f32 %f1, %f1, %f2; add.f32 %f1, %f1, %f3; mul.f32 %f1, "
    "%f1, 0f40800000; cvt.rzi.u32.f32 %r3, %f1; add.u32 %r3, %r3, WARP_SZ; "
    "st.global.u32 [%rd1], %r3;": [603 + 32],
    # a comparison that is joined with a predicate, which it sets, and its opposite, so joined
    "setp.gt.u32 %p1, %r0, 2; setp.lt.and.u32 %p1|%p2, %r0, 1, !%p1; selp.b32 %r3, 1, 0, %p1; "
    "@%p2 add.u32 %r3, %r3, 2; st.global.u32 [%rd1], %r3;": [1, 2, 2, 0],
    # comparisons of NaN: not equal, and not less, unless one that isn't ordered is asked for
    "mov.f32 %f1, 0f7FC00000; setp.eq.f32 %p1, %f1, %f1; setp.lt.f32 %p2, %f1, %f1; "
    "setp.equ.f32 %p3, %f1, %f1; setp.neu.f32 %p4, %f1, %f1; setp.ne.f32 %p5, %f1, %f1; "
    "selp.b32 %r3, 1, 0, %p1; @%p2 add.u32 %r3, %r3, 2; @%p3 add.u32 %r3, %r3, 4; "
    "@%p4 add.u32 %r3, %r3, 8; @%p5 add.u32 %r3, %r3, 16; st.global.u32 [%rd1], %r3;": [4 + 8],
    # the sign of the first operand, and what else there is of the second
    "mov.f32 %f1, 0fBF800000; copysign.f32 %f1, %f1, 0f40000000; st.global.f32 [%rd1], %f1;":
        [0xC0000000],
    # long loops that make progress: by memory, by memory that is clean after each turn, and by
    # what other lanes have
    "AGAIN: ld.global.u32 %r3, [%rd1]; add.u32 %r3, %r3, 1; st.global.u32 [%rd1], %r3; "
    "setp.lt.u32 %p1, %r3, 1000; @%p1 bra AGAIN;": [1000] * 32,
    "mov.u32 %r4, 0; AGAIN: st.global.u32 [%rd1], %r4; ld.global.u32 %r3, [%rd1]; "
    "add.u32 %r4, %r3, 1; mov.u32 %r5, 0; st.global.u32 [%rd1], %r5; "
    "setp.lt.u32 %p1, %r4, 1000; @%p1 bra AGAIN; st.global.u32 [%rd1], %r4;": [1000] * 32,
    "mov.u32 %r4, 0; AGAIN: shfl.sync.bfly.b32 %r5, %r4, 1, 31, -1; add.u32 %r4, %r5, 1; "
    "setp.lt.u32 %p1, %r4, 1000; @%p1 bra AGAIN; st.global.u32 [%rd1], %r4;": [1000] * 32,
    # memory that is as before for one thread and new for another: B waits while number 0 is 1,
    # which it was neither before nor after; A and C wait for B
    "setp.eq.u32 %p1, %r0, 1; @%p1 bra TO_B; setp.eq.u32 %p1, %r0, 2; @%p1 bra TO_C; "
    "A: atom.global.add.u32 %r3, [%rd11+4], 0; setp.ne.u32 %p1, %r3, 1; @%p1 bra A; ret; "
    "TO_B: atom.global.exch.b32 %r3, [%rd11], 1; "
    "B: atom.global.add.u32 %r3, [%rd11], 0; setp.ne.u32 %p1, %r3, 0; @%p1 bra B; "
    "atom.global.exch.b32 %r3, [%rd11+4], 1; atom.global.exch.b32 %r3, [%rd11+8], 1; ret; "
    "TO_C: atom.global.exch.b32 %r3, [%rd11], 0; "
    "C: atom.global.add.u32 %r3, [%rd11+8], 0; setp.ne.u32 %p1, %r3, 1; @%p1 bra C;": [0, 1, 1],
    # a function without a body, which nobody calls
    "setp.gt.u32 %p1, %r0, 9; @!%p1 bra END; call.uni __assertfail, (); END:": [0],
    # a subnormal number, which is zero where it is flushed
    "mov.b32 %r3, 1; mov.b32 %f1, %r3; setp.eq.ftz.f32 %p1, %f1, 0f00000000; setp.eq.f32 %p2, "
    "%f1, 0f00000000; selp.b32 %r3, 1, 0, %p1; @%p2 add.u32 %r3, %r3, 2; "
    "st.global.u32 [%rd1], %r3;": [1],
    # registers of inner scopes, as in inline assembly, which uses names again
    "mov.u32 %r3, 1; { .reg .b32 %r3; mov.u32 %r3, 20; add.u32 %r4, %r3, 0; } "
    "{ .reg .b16 %r3; mov.u16 %r3, 300; cvt.u32.u16 %r5, %r3; } "
    "add.u32 %r3, %r3, %r4; add.u32 %r3, %r3, %r5; st.global.u32 [%rd1], %r3;": [321, 321],
    # the same label in two scopes, and a branch out of one
    "mov.u32 %r3, 0; { setp.lt.u32 %p1, %r0, 2; @%p1 bra DONE; add.u32 %r3, %r3, 1; DONE: } "
    "add.u32 %r3, %r3, 10; { @%p1 bra DONE; add.u32 %r3, %r3, 1; DONE: } { bra OUT; } "
    "mov.u32 %r3, 5; OUT: st.global.u32 [%rd1], %r3;": [10, 10, 12, 12],
    # shared arrays of two scopes
    "{ .shared .b32 x; st.shared.u32 [x], 5; { .shared .b32 x; st.shared.u32 [x], 9; } "
    "ld.shared.u32 %r3, [x]; } st.global.u32 [%rd1], %r3;": [5],
}  # fmt: skip


@pytest.mark.parametrize(("body", "want"), RIGHT.items())
def test_a_text_computes(body: str, want: list[int]) -> None:
    array = np.zeros(len(want), np.uint32)
    run(body, array)
    assert array.tolist() == want


# Loops -------------------------------------------------------------------------------------------

ENDLESS = {
    "waits for a number in memory": "AGAIN: ld.global.u32 %r3, [%rd11]; setp.eq.u32 %p1, %r3, 0; "
    "@%p1 bra AGAIN;",
    "counts meanwhile, and stores": "AGAIN: ld.global.u32 %r3, [%rd11]; add.u32 %r4, %r4, 1; "
    "st.global.u32 [%rd2], %r4; setp.eq.u32 %p1, %r3, 0; @%p1 bra AGAIN;",
    "a lock that nobody gives back": "AGAIN: atom.global.cas.b32 %r3, [%rd11], 0, 1; membar.gl; "
    "setp.ne.u32 %p1, %r3, 0; @%p1 bra AGAIN;",
    "two loops in turn": "AGAIN: mov.u32 %r3, 0; INNER: add.u32 %r3, %r3, 1; "
    "setp.lt.u32 %p1, %r3, 5; @%p1 bra INNER; bar.sync 0; bra AGAIN;",
    "waits for a flag that others raise after a barrier": "setp.ne.u32 %p1, %r0, 3; @%p1 bra END; "
    "AGAIN: atom.global.add.u32 %r3, [%rd11], 0; setp.eq.u32 %p1, %r3, 0; @%p1 bra AGAIN; "
    "END: bar.sync 0; st.global.u32 [%rd1], 1;",
}


@pytest.mark.parametrize("body", ENDLESS.values(), ids=ENDLESS)
@pytest.mark.parametrize("checks", [CHECKS, ()], ids=["checked", "unchecked"])
def test_a_loop_that_never_ends_is_named_at_once(body: str, checks: tuple[str, ...]) -> None:
    """Long before a million basic blocks, which would take minutes."""
    array, other = np.zeros((2, 32), np.uint32)
    what = r"sync: thread \d+ of thread block 0 goes round the loop at AGAIN.* for ever: "
    with pytest.raises(PtxFault, match=what + r"[\s\S]*line \d+ of the PTX"):
        run(body, array, other, checks=checks, max_steps=10_000)


# Each thread block waits for the flag of the one before it, at a barrier, and raises its own.
LOOK_BACK = """
mov.u32 %r1, %ctaid.x; mul.wide.u32 %rd5, %r1, 4; add.u64 %rd5, %rd11, %rd5;
setp.eq.u32 %p1, %r1, 0; @%p1 bra D;
W: ld.volatile.global.u32 %r2, [%rd5+-4]; setp.eq.u32 %p2, %r2, 0; @%p2 bra W;
D: bar.sync 0; setp.ne.u32 %p3, %r0, 0; @%p3 bra E;
membar.gl; add.u32 %r3, %r1, 1; st.volatile.global.u32 [%rd5], %r3; E: mov.u32 %r4, 1;"""


def test_a_thread_block_may_wait_for_one_that_stands_at_a_barrier() -> None:
    out = np.zeros(64, np.uint32)
    run(LOOK_BACK, out, grid=4)
    assert out[:5].tolist() == [1, 2, 3, 4, 0]


# What is said of a program of two thread blocks -> the program.
OF_TWO_BLOCKS = {
    "where thread 0 of an earlier thread block did a write": "st.global.u32 [%rd1], %r0;",
    # which doesn't wait for the copies of an earlier one
    "init: thread 0 of thread block 1, address 0x0 is read, and was never written":
        TO_SHARED + "mov.u32 %r5, %ctaid.x; setp.eq.u32 %p1, %r5, 0; @%p1 cp.async.ca.shared."
        "global [%r1], [%rd1], 4; @%p1 bra END; cp.async.wait_all; ld.shared.b32 %r3, [%r1]; END:",
    "a thread block that could hasn't begun":
        "mov.u32 %r1, %ctaid.x; setp.eq.u32 %p1, %r1, 1; @%p1 bra S; W: ld.volatile.global.u32 "
        "%r2, [%rd11]; setp.eq.u32 %p2, %r2, 0; @%p2 bra W; bra END; "
        "S: st.volatile.global.u32 [%rd11], 1; END:",
}  # fmt: skip


@pytest.mark.parametrize(("what", "body"), OF_TWO_BLOCKS.items(), ids=OF_TWO_BLOCKS)
def test_a_mistake_of_two_thread_blocks_is_found(what: str, body: str) -> None:
    with pytest.raises(PtxFault, match=what):
        run(body, np.zeros(32, np.uint32), grid=2)


# Order -------------------------------------------------------------------------------------------


ATOMICS = {
    **{"min.s32": min, "max.u32": max, "exch.b32": lambda old, new: new},
    **{"and.b32": operator.and_, "or.b32": operator.or_, "xor.b32": operator.xor},
    "inc.u32": lambda old, limit: old + 1 if old < limit else 0,
    "dec.u32": lambda old, limit: old - 1 if 0 < old <= limit else limit,
}


@pytest.mark.parametrize(("name", "exact"), ATOMICS.items(), ids=ATOMICS)
@pytest.mark.parametrize("space", ["global", "shared"])
def test_atomics_give_each_thread_the_number_before_it(
    name: str, exact: Callable, space: str
) -> None:
    """The old numbers are those of some order of the threads: of theirs, here."""
    numbers = np.random.default_rng(0).integers(0, 1 << 31, 33, np.uint32)
    array, place = numbers[1:].copy(), "[%rd11]" if space == "global" else "[s]"
    before = f"mov.u32 %r3, {numbers[0]}; setp.eq.u32 %p1, %r0, 0; "
    run(f"ld.global.u32 %r4, [%rd1]; bar.sync 0; {before}@%p1 st.{space}.u32 {place}, %r3; "
        f"bar.sync 0; atom.{space}.{name} %r5, {place}, %r4; bar.sync 0; "
        "st.global.u32 [%rd1], %r5;", array)  # fmt: skip
    assert array.tolist() == [*accumulate(numbers.tolist(), exact)][:-1]


# Thread block 0 writes 5 and raises a flag; thread block 1 looks at the flag and reads the 5.
HANDS_OVER = """
mov.u32 %r1, %ctaid.x; setp.eq.u32 %p1, %r1, 0; @!%p1 bra SECOND;
st.global.u32 [%rd11], 5; {} {}.u32 [%rd11+4], 1; bra END;
SECOND: {}.u32 %r2, [%rd11+4]; {}
ld.global.u32 %r3, [%rd11]; st.global.u32 [%rd11+8], %r3;
END:
"""
# Before the flag, how it is raised, how it is looked at, and what comes then.
RAISE, LOOK = "st.relaxed.gpu.global", "ld.volatile.global"


FENCED = [
    ("membar.gl;", RAISE, LOOK, "membar.gl;"),
    ("fence.acq_rel.gpu;", RAISE, LOOK, "bar.sync 0;"),
    ("", "st.release.gpu.global", "ld.acquire.gpu.global", ""),
]
MISSING_OR_TOO_WEAK = [
    ("membar.cta;", RAISE, LOOK, "membar.gl;"),
    ("membar.gl;", RAISE, LOOK, ""),
    ("membar.gl; st.global.u32 [%rd11], 6;", RAISE, LOOK, "membar.gl;"),
    ("", "st.release.cta.global", "ld.acquire.gpu.global", ""),
    ("", "st.release.gpu.global", LOOK, ""),
]


@pytest.mark.parametrize("parts", [*FENCED, *MISSING_OR_TOO_WEAK])
def test_fences_and_a_flag_hand_over_what_was_written_unless_one_is_missing(parts: tuple) -> None:
    array = np.zeros(3, np.uint32)
    body = HANDS_OVER.format(*parts)
    if parts in FENCED:
        run(body, array, threads=1, grid=2)
        assert array.tolist() == [5, 1, 5]
    else:
        with pytest.raises(PtxFault, match="does a read where thread 0 of an earlier thread block"):
            run(body, array, threads=1, grid=2)


# Text that can't be run --------------------------------------------------------------------------

# The interpreter says that it doesn't know the last instruction of each.
UNKNOWN = (
    *("wgmma.fence.sync.aligned", "bra", "bar.arrive 0", "fence.foo", "membar.gl 0"),
    *("add.s32 %r1, %r2", "add.s32 %r1, %r2, %r3, %r4", "prmt.b32 %r1, %r2, %r3"),
    *("prmt.b32.f5e %r1, %r1, %r1, %r1", "mul.hi.lo.u32 %r1, %r2, %r3"),
    *("addc.sat.s32 %r1, %r1, %r1", "add.rz.f16 %h1, %h1, %h1", "bar.red.popc.u32 %r1, 1, %p1"),
    "fma.rn.relu.f32 %f1, %f1, %f1, %f1",
    *("max.xorsign.abs.f32 %f1, %f1, %f1", "rsqrt.rz.f32 %f1, %f1", "testp.odd.f32 %p1, %f1"),
    *("setp.lt.ftz.s32 %p1, %r2, %r3", "setp.ltx.s32 %p1, %r2, %r3", "setp.lo.s32 %p1, %r2, %r3"),
    *("cvt.u32.f32 %r1, %f1", "cvt.rn.relu.f16x2.f32 %r1, %f1, %f2", "cvt.rz.f16.f32 %h1, %f1"),
    *("mov.b64 %rd1, {%r1, %r2, %r3}", "mov.u64 %rd5, p1; ld.param.u64 %rd6, [%rd5]"),
    *("st.async.global.u32 [%rd1], %r3", "st.const.u32 [%rd1], %r3", "ld.const.u32 %r3, [%rd1]"),
    *("atom.global.nand.u32 %r3, [%rd1], 5", "atom.global.add.f16 %h1, [%rd1], %h1"),
    *("shfl.sync.foo.b32 %r1, %r2, 1, 31, -1", "vote.sync.any.ballot.b32 %r1, %p1, -1"),
    *("match.some.sync.b32 %r1, %r1, -1", "redux.sync.mul.s32 %r1, %r1, -1"),
    "cp.async.ca.shared.global [%r1], [%rd1], 4, %p1",
    "ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%r1}, [%r2]",
    "mma.sync.aligned.m16n8k8.row.col.f16.f16.f16.f16 {%r1, %r2}, {%r1, %r2}, {%r3}, {%r1}",
)
NAMED = {
    "add.f32 %f1, %fd1, %f2": "%fd1 is a .f64 register where add.f32 takes .f32 or .b32",
    "st.global.u32 [%rd1], %h1": "takes .s32, .u32 or .b32, or a wider one",
    "selp.b32 %r1, %r2, %r3, %r4": "%r4 is a .b32 register where selp.b32 takes .pred",
    "mov.b64 %rd1, %r1": "%r1 is a .b32 register where mov.b64 takes any register of 64 bits",
    "@%r1 mov.u32 %r1, %r2": "the guard %r1",
    "add.b32 %r1, %r2, %r3": "PTX has no add.b32",
    "add.f32 %f1, %f2, 1": "1 is a constant where add.f32 takes .f32 or .b32",
    "add.u32 %r1, %r2, %tid.x": "%tid.x isn't a register",
    "ld.global.u32 %r1, [%f1]": "%f1 is a .f32 register where ld.global.u32 takes an address",
    "add.u32 %r1, %r99, %r2": "%r99 isn't declared",
    "ld.global.u32 %r1, [nothing]": "nothing isn't declared",
    "bra ON": "ON isn't a label",
    ".reg .b32 %q; .reg .f32 %q<1>; .reg .b32 %q": "%q is declared twice",
    "L: mov.u32 %r1, %r2; L: ret": "L: is in the kernel twice",
    ".shared .b32 s": "s is declared twice",
} | {one: f"14 of the PTX: {one.split('; ')[-1]}" for one in UNKNOWN}


@pytest.mark.parametrize(("body", "what"), NAMED.items(), ids=NAMED)
def test_what_the_interpreter_cannot_run_is_named_before_anything_runs(
    body: str, what: str
) -> None:
    array = np.zeros(32, np.uint32)
    with pytest.raises(PtxError, match="line 14 of the PTX") as refused:
        run(f"st.global.u32 [%rd1], %r0; {body};", array)
    assert what in str(refused.value)
    assert not array.any()


GOOD, ARRAY = text_of("st.global.u32 [%rd1], %r0;"), np.zeros(4, np.uint32)
OF_FLOAT = text_of("", num_arrays=0).replace("kernel()", "kernel(.param .f32 x)")


def start(text: str, *args: object, **options: object) -> PtxReport:
    return run_ptx(text, 1, 4, *args, **options)


BAD = {
    "the text isn't PTX": lambda: start("int main() {}", ARRAY),
    "the text ends within the kernel": lambda: start(GOOD[: GOOD.index("ret;")], ARRAY),
    "the type .b128 isn't known": lambda: start(GOOD.replace(".reg .pred", ".reg .b128"), ARRAY),
    "line 3 of the PTX: .target is sm_61": lambda: start(GOOD.replace("sm_80", "sm_61"), ARRAY),
    ".address_size is 32": lambda: start(GOOD.replace("size 64", "size 32"), ARRAY),
    "the text ends, and no kernel": lambda: start(GOOD.replace(".entry", ".func"), ARRAY),
    "line 14 of the PTX: what instruction is": lambda: start(
        GOOD.replace("st.global.u32", "1st"), ARRAY
    ),
    "instructions; a race check takes 8,191": lambda: start(
        text_of("mov.u32 %r1, 1;" * 8192), ARRAY
    ),
    "args gives 0 values; kernel has 1": lambda: start(GOOD),
    "parameter 0 of kernel is a .u64 of 8 bytes; 1.5": lambda: start(GOOD, 1.5),
    "parameter 0 of kernel is a .u64 of 8 bytes; 18446744": lambda: start(GOOD, 2**64),
    "parameter 0 of kernel is a .f32 of 4 bytes; 1e+300": lambda: start(OF_FLOAT, 1e300),
    "parameter 0 of kernel is a .f32 of 4 bytes; 100000": lambda: start(OF_FLOAT, 10**400),
    "'races'": lambda: start(GOOD, ARRAY, checks=("races",)),
    "unwritten: 'other'": lambda: start(GOOD, ARRAY, unwritten="other"),
    "max_steps is 0": lambda: start(GOOD, ARRAY, max_steps=0),
    "shared_bytes is 1.5": lambda: start(GOOD, ARRAY, shared_bytes=1.5),
    "static shared arrays take 256 bytes": lambda: start(GOOD, ARRAY, shared_bytes=232_448 - 252),
    "has 49168 bytes of static shared": lambda: start(GOOD.replace("s[256]", "s[49168]"), ARRAY),
}


@pytest.mark.parametrize(("what", "launch"), BAD.items(), ids=BAD)
def test_a_text_or_launch_that_cannot_be_is_refused_by_name(what: str, launch: Callable) -> None:
    with pytest.raises((PtxError, ValueError, TypeError), match=re.escape(what)):
        launch()
    assert not ARRAY.any()


def test_what_is_at_a_limit_is_let_run() -> None:
    for value in (np.inf, np.nan, np.float16(1), 2):
        start(OF_FLOAT, value)
    start(GOOD, ARRAY.copy(), shared_bytes=232_448 - 256)
    start(text_of("mov.u32 %r1, 1;" * 8192), ARRAY, checks="memory")


def test_text_is_free_of_form() -> None:
    """No blank before a type; instructions behind .loc on its line; a file's name with two slashes,
    which are no comment."""
    array = np.zeros(4, np.uint32)
    body = "{.reg.b32 x; .loc 1 4 0 mov.u32 x,WARP_SZ; .loc 1 5 0, function_name $L__i, inlined_at "
    body += "1 7 3 add.u32 x,x,2; .loc 1 3 0 st.global.u32[%rd1],x;}"
    text = text_of(body) + '.file 1 "/a//b.cu"\n'
    run_ptx(text, 1, 4, array)
    assert array.tolist() == [34] * 4
    assert parse(text).instructions[-2].source == ("/a//b.cu", 3)


def test_arguments_may_overlap() -> None:
    array = np.arange(8, dtype=np.uint32)
    run_ptx(text_of("ld.global.u32 %r3, [%rd1]; st.global.u32 [%rd2+8], %r3;", 2), 1, 2,
            array[:6], array[2:])  # fmt: skip
    assert array.tolist() == [0, 1, 2, 3, 0, 1, 6, 7]


def test_dynamic_shared_memory_is_aligned_as_it_asks_for() -> None:
    text, array = text_of("mov.u32 %r3, dynamic; st.global.u32 [%rd1], %r3;"), np.zeros(1, "u4")
    run_ptx(text.replace("align 16 .b8 dynamic", "align 512 .b8 dynamic"), 1, 1, array)
    assert array.tolist() == [512]
