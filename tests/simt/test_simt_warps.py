"""Warp functions, barriers and checks where only some lanes of a warp are at work."""

import numpy as np
import pytest
from numba import float64, uint16

from simt import SimtError, launch
from tests.simt.helpers import kernel, zeros

NUM_THREADS = 48  # a warp and a half
HALVES = "0xFFFF if t % 32 < 16 else 0xFFFF0000"
# Who calls, the mask that each caller names, and a lane of that mask.
WAYS = {
    "every second lane": ("t % 2 == 0", "0x55555555", "8"),
    "all but five": ("t % 32 >= 5", "0xFFFFFFE0", "8"),
    "one lane of one warp": ("t == 40", "0x100", "8"),
    "two masks in a warp": ("t >= 0", HALVES, "8 + t % 32 // 16 * 16"),
    "a mask with lanes that returned": ("t % 32 >= 5", "0xFFFFFFF8", "8"),
}
AROUND = ("if not ({}):\n    return\nif True:", "if {}:")  # the others have returned, or wait
PLACES = [(way, around) for way in WAYS for around in AROUND]
PLACES.remove(("a mask with lanes that returned", AROUND[1]))
PREDICATES = ("t >= 0", "t == 40", "t < 0")


def value(text: str, t: int) -> int:
    """What an expression of the thread is to one thread."""
    return eval(text, {"t": t})


@pytest.mark.parametrize(("way", "around"), PLACES)
@pytest.mark.parametrize("order", ["together", "reverse"])
def test_votes_and_shuffles_are_of_the_lanes_of_their_mask(
    way: str, around: str, order: str
) -> None:
    condition, mask, source = WAYS[way]
    names = ("ballot_sync", "all_sync", "any_sync", "eq_sync")
    calls = [f"{name}(mask, {predicate})" for predicate in PREDICATES for name in names]
    calls += ["activemask()", f"shfl_sync(mask, 10 * t, {source})"]
    lines = [f"out[{i}, t] = cuda.{call}" for i, call in enumerate(calls)]
    body = "\n    ".join([around.format(condition), f"mask = {mask}", *lines])
    found = np.full((len(calls), NUM_THREADS), -7)
    expected = found.copy()
    assert launch(kernel("out", body), 1, NUM_THREADS, found, order=order).clean
    callers = [t for t in range(NUM_THREADS) if value(condition, t)]
    for t in callers:
        warp = [u for u in callers if u // 32 == t // 32]
        voters = [u for u in warp if value(mask, u) == value(mask, t)]
        answers = []
        for predicate in PREDICATES:
            yes = [u for u in voters if value(predicate, u)]
            ballot = np.uint32(sum(1 << u % 32 for u in yes)).astype(np.int32)
            answers += [ballot, yes == voters, len(yes) > 0, len(yes) in (0, len(voters))]
        answers.append(sum(1 << u % 32 for u in warp))
        expected[:, t] = [*answers, 10 * (t // 32 * 32 + value(source, t))]
    np.testing.assert_array_equal(found, expected)


IN_A_MASK = ["syncwarp({})"]
IN_A_MASK += [f"{vote}_sync({{}}, t > 3)" for vote in ("ballot", "all", "any", "eq")]
IN_A_MASK += [f"shfl{how}_sync({{}}, t, 0)" for how in ("", "_up", "_down", "_xor")]


@pytest.mark.parametrize(
    ("condition", "mask", "words"),
    [
        ("t % 2 == 1", "0x55555555", "thread 1 .* the mask 0x55555555, which doesn't include it"),
        ("t == 40", "0x300", "thread 40 .* thread 41, but that thread doesn't call"),
    ],
)
def test_who_calls_and_who_is_named_must_agree(condition: str, mask: str, words: str) -> None:
    for call in IN_A_MASK:
        branch = kernel("", f"if {condition}:\n    cuda.{call.format(mask)}")
        with pytest.raises(SimtError, match=f"sync: {words}"):
            launch(branch, 1, NUM_THREADS)


@pytest.mark.parametrize("call", ["shfl_sync({}, t, 4)", "shfl_up_sync({}, t, 1)"])
@pytest.mark.parametrize(
    ("first", "mask", "why"),
    [
        ("if t < 5: return", "0xFFFFFFFF", "doesn't take part"),
        ("if t < 5: return", "0xFFFFFFE0", "isn't in its mask"),
        ("mask = 0x1F if t < 5 else 0xFFFFFFE0", "mask", "isn't in its mask"),
    ],
)
def test_a_shuffle_from_a_lane_outside_is_found(call: str, first: str, mask: str, why) -> None:
    shuffle = kernel("out", f"{first}\nout[t] = cuda.{call.format(mask)}")
    with pytest.raises(SimtError, match=f"thread 5 .* from thread 4, which {why}"):
        launch(shuffle, 1, 32, zeros(32))


# Barriers ------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ["together", "forward"])
@pytest.mark.parametrize(
    ("around", "why"),
    [
        ("if t % 2:", "thread 1 .* thread 0 never reaches: it took a different path"),
        ("if t < 5:\n    return\nif True:", "thread 5 .* thread 0 never reaches: it has returned"),
    ],
)
def test_every_thread_must_come_to_a_barrier(around: str, why: str, order: str) -> None:
    for name in ("_count(1)", "_and(1)", "_or(1)", "()"):
        with pytest.raises(SimtError, match=f"sync: {why}"):
            launch(kernel("", f"{around}\n    cuda.syncthreads{name}"), 1, 48, order=order)


@pytest.mark.parametrize(
    ("around", "mask", "read", "races_with"),
    [
        ("if t % 2 == 0:", "0x55555555", "s[t ^ 1]", 1),
        ("if t < 5:\n    return\nif True:", "0xFFFFFFFF", "s[31 - t]", 4),
    ],
)
def test_a_syncwarp_orders_only_the_lanes_that_call_it(around, mask, read, races_with) -> None:
    lines = ["s = cuda.shared.array(32, float32)", "s[t] = t", around]
    lines += [f"    cuda.syncwarp({mask})", f"    out[t] = {read}"]
    with pytest.raises(SimtError) as caught:
        launch(kernel("out", "\n".join(lines)), 1, 32, zeros(32))
    assert caught.value.finding.other_thread == races_with


# Who did it ----------------------------------------------------------------------------------


KINDS = {
    "write": "out[t] = t",
    "read": "x = out[t]",
    "atomic": "cuda.atomic.add(out, t, 1)",
    "shuffle": "cuda.shfl_sync(0xFFFFFFFF, t, 8)",
    "vote": "cuda.any_sync(0xFFFFFFFF, t > 3)",
    "syncwarp": "cuda.syncwarp()",
    "barrier": "cuda.syncthreads()",
}


@pytest.mark.parametrize("order", ["together", "reverse"])
def test_after_low_lanes_returned_the_others_keep_their_numbers(order: str) -> None:
    returns = kernel("out", "\n".join(["if t % 32 < 5:\n    return", *KINDS.values()]))
    options = {"trace": 0, "order": order, "exited_may_skip": True}
    trace = launch(returns, 1, NUM_THREADS, zeros(NUM_THREADS), **options).trace
    for kind in KINDS:
        records = trace.only(kind=kind).records
        threads = 32 * records.warp + records.lane
        assert sorted(threads) == [t for t in range(NUM_THREADS) if t % 32 >= 5]
        if kind in ("write", "read", "atomic"):
            np.testing.assert_array_equal(records.address, trace.arrays[0].address + 4 * threads)


@pytest.mark.parametrize("order", ["together", "reverse"])
@pytest.mark.parametrize("array", ["out", "s"])
def test_a_race_inside_a_later_thread_block_is_told_as_one_inside(array: str, order: str) -> None:
    line = f"if cuda.blockIdx.x + cuda.blockIdx.y == 2: {array}[0] = t"
    writes = kernel("out", f"s = cuda.shared.array(32, float32)\n{line}")
    (finding,) = launch(writes, (2, 2), 64, zeros(4), order=order, collect=True).findings
    assert finding.block == finding.other_block == (1, 1, 0)
    assert str(finding).count("thread block (1, 1, 0)") == 1
    assert "no barrier in between" in str(finding)


def test_a_race_between_two_later_thread_blocks_names_both() -> None:
    twice = kernel("out", "if cuda.blockIdx.x > 0 and t == 3:\n    out[0] = 1")
    words = "3 of thread block 2 writes .* thread 3 of thread block 1 wrote .* nothing orders two"
    with pytest.raises(SimtError, match=words):
        launch(twice, 3, 32, zeros(4))


# Two views of the same bytes -----------------------------------------------------------------

VIEWS = """
first = cuda.shared.array(0, {})
if t < 16:
    first[t] = 1
second = cuda.shared.array(0, {})
x = {}
"""


@pytest.mark.parametrize(
    ("first", "second", "read", "found"),
    [
        ("float32", "uint16", "second[2 * t % 32 + 1]", {("race", 16)}),
        ("float32", "uint16", "second[32] if t == 15 else 0", {("init", 15)}),
        ("float32", "uint16", "second[2 * t + 2] if t == 7 else 0", {("race", 7)}),
        ("uint16", "float32", "second[t // 2] if t == 9 else 0", {("race", 9)}),
        ("uint16", "float32", "second[8] if t == 9 else 0", {("init", 9)}),
        ("float64", "uint16", "second[64] if t == 15 else 0", {("init", 15)}),
    ],
)
def test_a_second_view_knows_what_the_first_has_written(first, second, read, found) -> None:
    views = kernel("", VIEWS.format(first, second, read), uint16=uint16, float64=float64)
    findings = launch(views, 1, 32, shared_bytes=256, collect=True).findings
    assert {(f.check, f.thread) for f in findings} == found
