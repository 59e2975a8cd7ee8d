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


# Mistakes ------------------------------------------------------------------------------------

IN_A_MASK = ("syncwarp({})", "ballot_sync({}, t > 3)", "all_sync({}, t > 3)", "shfl_sync({}, t, 0)")
TAKEN = ("shfl_sync({}, t, 4)", "shfl_up_sync({}, t, 1)")  # by thread 5 from thread 4
SOME_RETURN, OTHERS = "if t % 32 < 5: return", "0xFFFFFFE0"
MASKS = f"mask = 0x1F if t % 32 < 5 else {OTHERS}"
BARRIERS = ("cuda.syncthreads()", "cuda.syncthreads_or(1)")
SHARED = "s = cuda.shared.array(48, float32)\ns[t] = t\n"
VIEWS = """
first = cuda.shared.array(0, {})
if t < 16: first[t] = 1
second = cuda.shared.array(0, {})
x = {}
"""
MISTAKES = [  # and what is said of them
    *((f"if t % 2: cuda.{call.format('0x5555')}", "thread 1 .* include") for call in IN_A_MASK),
    *((f"if t == 40: cuda.{call.format('0x300')}", "40 .* thread 41, but") for call in IN_A_MASK),
    *((f"{SOME_RETURN}\ncuda.{call.format(-1)}", "5 .* 4, which doesn't take") for call in TAKEN),
    *((f"{SOME_RETURN}\ncuda.{call.format(OTHERS)}", "5 .* 4, which isn't in") for call in TAKEN),
    *((f"{MASKS}\ncuda.{call.format('mask')}", "5 .* 4, which isn't in") for call in TAKEN),
    *((f"if t % 2: {call}", "thread 1 .* thread 0 .* a different path") for call in BARRIERS),
    *((f"{SOME_RETURN}\n{call}", "thread 5 .* thread 0 .* has returned") for call in BARRIERS),
    *((f"if t == 40: return\n{call}", "thread 40 .* has returned") for call in BARRIERS),
    # A syncwarp orders only the lanes that call it.
    (
        f"{SHARED}if t % 2 == 0:\n    cuda.syncwarp(0x55555555)\n    x = s[t ^ 1]",
        "which thread 1 w",
    ),
    (f"{SHARED}{SOME_RETURN}\ncuda.syncwarp()\nif t < 32: x = s[31 - t]", "thread 4 wrote"),
    # Between later thread blocks
    (
        "if cuda.blockIdx.x > 0 and t == 3: out[0] = 1",
        "3 of thread block 2 writes .* thread 3 of thread block 1 wrote .* nothing orders two",
    ),
    ("if cuda.blockIdx.x == 2: out[0] = t", "of thread block 2 writes .* no barrier in between"),
    # A second view knows what the first has written.
    (VIEWS.format("float32", "uint16", "second[2 * t % 32 + 1]"), "race: thread 16"),
    (VIEWS.format("float32", "uint16", "second[32] if t == 15 else 0"), "init: thread 15"),
    (VIEWS.format("uint16", "float32", "second[t // 2] if t == 9 else 0"), "race: thread 9"),
    (VIEWS.format("float64", "uint16", "second[64] if t == 15 else 0"), "init: thread 15"),
]


@pytest.mark.parametrize("order", ["together", "forward"])
@pytest.mark.parametrize(("body", "words"), MISTAKES)
def test_a_mistake_names_its_threads(body: str, words: str, order: str) -> None:
    wrong = kernel("out", body, uint16=uint16, float64=float64)
    with pytest.raises(SimtError, match=words):
        launch(wrong, 3, NUM_THREADS, zeros(4), shared_bytes=256, order=order)
