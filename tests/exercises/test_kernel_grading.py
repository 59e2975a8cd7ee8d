"""What the grader of kernels says: the right answer, everything written, and little traffic."""

from textwrap import indent

import numpy as np
import pytest

from pa_tutorial.checks.calls import AnswerError
from pa_tutorial.checks.running import judge, run_trials
from pa_tutorial.exercises import kernel_grading as grader
from pa_tutorial.exercises.kernel_grading import Enough, Task, trial
from simt import SimtError
from tests.simt.helpers import kernel

A = np.arange(64, dtype=np.float32)
LITTLE = {0: Enough.of(64), 1: Enough.of(64)}
BUT_40 = np.where(np.arange(64) == 40, np.float32("nan"), A)  # NaN: it must stay as it is
WITH_NAN = np.append(A, np.float32("nan"))


def loop(*lines: str, step: int = 32) -> str:
    return f"for i in range(t, 64, {step}):\n" + indent("\n".join(lines), "    ")


def run(body: str, inputs: tuple = (A,), expected=A, threads=32, **task) -> dict:
    copies = tuple(array.copy() for array in inputs)
    return Task(threads, copies, expected, **{"enough": {}} | task).run(kernel("out, a", body))


COPY = loop("out[i] = a[i]")
HALF = "if t < 16:\n" + indent(loop("out[i] = a[i]", step=16), "    ")  # 16 lanes do all
THRICE = loop("out[i] = (a[i] + a[0] + a[63 - i + i]) - a[0] - a[63]")
SHUFFLE = loop("out[i] = cuda.shfl_sync(0xFFFFFFFF, a[i], t)")
CONFLICTS = """
s = cuda.shared.array((32, 32), float32)
for i in range(2):
    s[t, i] = a[t + 32 * i]
    out[t + 32 * i] = s[t, i]
"""
GAP = loop("if i != 40:", "    out[i] = a[i]")
ONE_WARP = "if t < 32:\n" + indent(COPY, "    ")
BLOCKS = "i = 32 * cuda.blockIdx.x + t\nout[i] = a[i]"
ATOMIC = loop("out[i] = a[i]", "cuda.atomic.max(out, i, a[i])")
DYNAMIC = "s = cuda.shared.array(0, float32)\n"
DYNAMIC += loop("s[i] = a[i]", "cuda.syncthreads()", "out[i] = s[i]")


def also(require, *most: object) -> dict:
    """Options of a task in which the dynamic shared memory suffices."""
    return {"also": lambda trace: require(trace, *most), "shared_bytes": A.nbytes}


# what is wrong -> kernel, task, message
WRONG = {
    "sectors": (THRICE, {"enough": {1: Enough(10, 99)}}, r"16 sectors for a; .*line \d+: a\[i\]"),
    "idle lanes": (HALF, {"enough": LITTLE}, "but 4 memory transactions for out; 2 are"),
    "gap": (GAP, {}, r"1 elements .* the first is out\[40\]"),
    "nothing": ("return", {}, "wrote nothing into out"),
    "input": (loop("out[i] = a[i]", "a[i] = float32(0)"), {}, "changed one of its inputs"),
    "shuffles": (SHUFFLE, {"most_shuffles": 1}, "2 shuffles; 1 is"),
    "not shared": (COPY, {"through_shared": True}, "not all .* shared memory"),
    "conflicts": (CONFLICTS, {"through_shared": True}, r"128 .*, where 4 would .*: s\[t, i\]"),
    "warps": (ONE_WARP, {"threads": 64, "busy_warps": 2}, "only 1 of 2 warps write to out"),
    "out read": (loop("out[i] += a[i]"), {}, r"init: .* reads out"),
    "NaN": (loop("out[i] = a[i + 1]"), {"inputs": (WITH_NAN,)}, r"out\[63\] is NaN"),
    "must stay": (COPY, {"expected": BUT_40}, r"out\[40\] was written"),
    "blocks": (BLOCKS, {"enough": {1: Enough(8, 1)}, "grid": (2,)}, "2 memory .* for a; 1 is"),
    "writes": (DYNAMIC, also(grader.require_shared_transactions, "write", 1), "with 2 writes to"),
    "barriers": (DYNAMIC, also(grader.require_barriers, 1), "with 2 barriers; 1 is enough"),
    "atomics": (ATOMIC, also(grader.require_atomics, 63, "they wait"), "with 64 .*: they wait"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_or_dear_is_named(name: str) -> None:
    body, task, message = WRONG[name]
    with pytest.raises((AnswerError, SimtError), match=message):
        run(body, **task)


def test_of_a_wrong_kernel_its_numbers_are_told_and_not_its_costs() -> None:
    one = trial("a", "", "", Task(32, (A.copy(),), A, {1: Enough(0, 0)}), ("element",))
    wrong, right = (judge(one, kernel("out, a", body))[0] for body in (loop("out[i] = a[0]"), COPY))
    assert wrong.diagnosis.startswith("worst against NumPy: element")
    assert right.diagnosis.startswith("the answer is right, but 8 sectors for a; 0 are enough.")


def test_what_must_stay_is_left_out_of_the_answer() -> None:
    out = run(GAP, expected=BUT_40)["out"]
    assert (out[39], out[40], out[41]) == (39, 0, 41)


def test_minus_infinity_in_an_answer_hides_no_mistake() -> None:
    """A score behind the end of a sequence."""
    expected = np.where(A < 40, A, -np.float32("inf"))
    one = trial("a", "", "", Task(32, (A,), expected, {}), ("element",))
    for factor, says in ((1, "1 of 1 cases"), (2, "element 39 is 78 and should be 39")):
        masked = kernel("out, a", loop(f"out[i] = {factor} * a[i] if i < 40 else -np.inf"))
        assert says in str(run_trials("copy", [one], masked))


def test_the_allowance_is_rounded_up() -> None:
    assert Enough.of(33) == Enough(sectors=5, transactions=2)
    assert Enough.of(33, times_full_warps=2).transactions == 4
