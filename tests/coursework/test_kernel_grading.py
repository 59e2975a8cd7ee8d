"""What the grader of kernels says: the right answer, everything written, and little traffic."""

from collections.abc import Callable

import numpy as np
import pytest
from numba import cuda, float32

from pa_tutorial.checks.running import run_trials
from pa_tutorial.exercises.kernels import (
    Enough,
    Task,
    require_atomics,
    require_barriers,
    require_shared_requests,
    trial,
)
from pa_tutorial.kernels.vectors import vector_access
from pa_tutorial.simt import SimtError
from pa_tutorial.walk.calls import AnswerError

ALL = 0xFFFFFFFF
A = np.arange(64, dtype=np.float32)
COPY = Task(32, (A,), A, {0: Enough.of(64), 1: Enough.of(64)})


@cuda.jit
def copy(out, a):
    for i in range(cuda.threadIdx.x, 64, 32):
        out[i] = a[i]


def test_what_is_right_and_cheap_passes() -> None:
    np.testing.assert_array_equal(COPY.run(copy)["out"], A)


def test_the_most_expensive_line_is_named() -> None:
    @cuda.jit
    def twice(destination, a):
        t = cuda.threadIdx.x
        destination[2 * t] = a[2 * t]
        destination[t * 2 + 1] = a[2 * t + 1]

    with pytest.raises(AnswerError, match="but 16 sectors for destination; 8 are enough"):
        COPY.run(twice)

    @cuda.jit
    def thrice(out, a):
        for i in range(cuda.threadIdx.x, 64, 32):
            out[i] = (a[i] + a[0] + a[63 - i + i]) - a[0] - a[63]

    one = Task(32, (A,), A, {1: Enough(10, 99)})
    with pytest.raises(AnswerError, match=r"line \d+: a\[i\]"):
        one.run(thrice)


def test_requests_of_idle_lanes_are_counted() -> None:
    @cuda.jit
    def half(out, a):
        if cuda.threadIdx.x < 16:
            for i in range(cuda.threadIdx.x, 64, 16):
                out[i] = a[i]

    with pytest.raises(AnswerError, match="but 4 requests for out; 2 are enough"):
        COPY.run(half)


def test_an_element_that_is_never_written_is_named() -> None:
    @cuda.jit
    def gap(out, a):
        for i in range(cuda.threadIdx.x, 64, 32):
            if i != 40:
                out[i] = a[i]

    with pytest.raises(
        AnswerError, match=r"1 elements of out were never written, the first is out\[40\]"
    ):
        COPY.run(gap)


def test_a_vector_writes_all_of_its_elements() -> None:
    load, store, _ = vector_access(2)

    @cuda.jit
    def by_twos(out, a):
        t = cuda.threadIdx.x
        if t != 20:
            store(out, 2 * t, load(a, 2 * t))

    with pytest.raises(
        AnswerError, match=r"2 elements of out were never written, the first is out\[40\]"
    ):
        COPY.run(by_twos)


def test_an_atomic_operation_writes_too() -> None:
    @cuda.jit
    def counts(out, a):
        for i in range(cuda.threadIdx.x, 64, 32):
            out[i] = a[i]
            cuda.atomic.max(out, i, a[i])

    Task(32, (A,), A, {}).run(counts)


def test_nothing_written_at_all() -> None:
    @cuda.jit
    def nothing(out, a):
        return

    with pytest.raises(AnswerError, match="not written yet"):
        COPY.run(nothing)


def test_an_input_that_is_changed() -> None:
    @cuda.jit
    def clears(out, a):
        for i in range(cuda.threadIdx.x, 64, 32):
            out[i] = a[i]
            a[i] = float32(0)

    task = Task(32, (A.copy(),), A, {})
    with pytest.raises(AnswerError, match="it changed one of its inputs"):
        task.run(clears)


def test_shuffles_are_counted() -> None:
    @cuda.jit
    def shuffles(out, a):
        for i in range(cuda.threadIdx.x, 64, 32):
            out[i] = cuda.shfl_sync(ALL, a[i], cuda.threadIdx.x)

    Task(32, (A,), A, {}, most_shuffles=2).run(shuffles)
    with pytest.raises(AnswerError, match="with 2 shuffles; 1 is enough"):
        Task(32, (A,), A, {}, most_shuffles=1).run(shuffles)


def test_shared_memory_that_must_be_used() -> None:
    with pytest.raises(AnswerError, match="not all of it goes through shared memory"):
        Task(32, (A,), A, {}, through_shared=True).run(copy)

    @cuda.jit
    def conflicts(out, a):
        t = cuda.threadIdx.x
        s = cuda.shared.array((32, 32), float32)
        for i in range(2):
            s[t, i] = a[t + 32 * i]
            out[t + 32 * i] = s[t, i]

    with pytest.raises(
        AnswerError, match=r"128 wavefronts, where 4 would do. Look at line \d+: s\[t, i\]"
    ):
        Task(32, (A,), A, {}, through_shared=True).run(conflicts)


def test_every_warp_must_have_work() -> None:
    @cuda.jit
    def one_warp(out, a):
        if cuda.threadIdx.x < 32:
            for i in range(cuda.threadIdx.x, 64, 32):
                out[i] = a[i]

    Task(64, (A,), A, {}, busy_warps=1).run(one_warp)
    with pytest.raises(AnswerError, match="only 1 of 2 warps write to out"):
        Task(64, (A,), A, {}, busy_warps=2).run(one_warp)


def test_out_that_is_read_first() -> None:
    @cuda.jit
    def adds(out, a):
        for i in range(cuda.threadIdx.x, 64, 32):
            out[i] += a[i]

    with pytest.raises(SimtError, match=r"init: .* reads out"):
        COPY.run(adds)


def test_a_number_that_does_not_belong_there() -> None:
    a = np.append(A, np.float32("nan"))

    @cuda.jit
    def shifted(out, a):
        for i in range(cuda.threadIdx.x, 64, 32):
            out[i] = a[i + 1]

    with pytest.raises(AnswerError, match=r"out\[63\] is NaN: something was read"):
        Task(32, (a,), A, {}).run(shifted)


def test_what_is_wrong_is_not_counted() -> None:
    """A reader wants to know first that it is wrong."""

    @cuda.jit
    def wrong(out, a):
        for i in range(cuda.threadIdx.x, 64, 32):
            out[i] = a[0]

    Task(32, (A,), A, {1: Enough(0, 0)}).run(wrong)


def test_a_finding_is_raised() -> None:
    @cuda.jit
    def race(out, a):
        for i in range(64):
            out[i] = a[i]

    with pytest.raises(SimtError, match="race"):
        COPY.run(race)


def test_a_table_tells_refused_from_failed() -> None:
    @cuda.jit
    def half(out, a):
        if cuda.threadIdx.x < 16:
            for i in range(cuda.threadIdx.x, 64, 16):
                out[i] = a[i]

    @cuda.jit
    def outside(out, a):
        out[cuda.threadIdx.x + 64] = a[0]

    words = "one_case", "what it isolates", "what failure means"
    trials = [trial(*words, task, ("element",)) for task in (COPY, Task(32, (A,), A, {}))]
    text = str(run_trials("copy", trials, half))
    assert "not accepted" in text
    assert "1 of 2 cases pass" in text
    fails_otherwise = Task(32, (A,), A[:60], {})  # the same mistake, another message
    trials = [trials[0], trial(*words, fails_otherwise, ("element",))]
    assert "no result" in str(run_trials("copy", trials, outside))


def test_what_must_stay_as_it_is() -> None:
    expected = np.where(np.arange(64) == 40, np.float32("nan"), A)
    with pytest.raises(AnswerError, match=r"out\[40\] was written; it must stay as it is"):
        Task(32, (A,), expected, {}).run(copy)

    @cuda.jit
    def but_one(out, a):
        for i in range(cuda.threadIdx.x, 64, 32):
            if i != 40:
                out[i] = a[i]

    out = Task(32, (A,), expected, {}).run(but_one)["out"]
    assert (out[39], out[40], out[41]) == (39, 0, 41)


def test_a_grid_of_several_thread_blocks_is_counted_as_one() -> None:
    @cuda.jit
    def halves(out, a):
        i = 32 * cuda.blockIdx.x + cuda.threadIdx.x
        out[i] = a[i]

    Task(32, (A,), A, {1: Enough.of(64)}, grid=(2,)).run(halves)
    with pytest.raises(AnswerError, match="2 requests for a; 1 is enough"):
        Task(32, (A,), A, {1: Enough(8, 1)}, grid=(2,)).run(halves)


def test_minus_infinity_in_an_answer() -> None:
    """A score behind the end of a sequence: it must be there, and does not hide other mistakes."""
    expected = np.where(A < 40, A, -np.float32("inf"))

    @cuda.jit
    def masked(out, a, factor):
        for i in range(cuda.threadIdx.x, 64, 32):
            out[i] = factor * a[i] if i < 40 else -np.inf

    words = "one_case", "what it isolates", "what failure means"
    for factor, last in ((1, "1 of 1 cases"), (2, "element 39 is 78 and should be 39")):
        task = Task(32, (A, np.float32(factor)), expected, {})
        result = run_trials("masked", [trial(*words, task, ("element",))], masked)
        assert last in str(result)


def test_the_allowance_is_rounded_up() -> None:
    assert Enough.of(33) == Enough(sectors=5, requests=2)
    assert Enough.of(33, times_full_warps=2).requests == 4


def test_dynamic_shared_memory_and_what_goes_through_it() -> None:
    @cuda.jit
    def through(out, a):
        s = cuda.shared.array(0, float32)
        for i in range(cuda.threadIdx.x, 64, 32):
            s[i] = a[i]
            cuda.syncthreads()
            out[i] = s[i]

    Task(32, (A,), A, {}, shared_bytes=A.nbytes).run(through)
    with pytest.raises(SimtError, match=r"memory: .* asks for s\[32\]"):
        Task(32, (A,), A, {}, shared_bytes=128).run(through)

    def run(also: Callable) -> None:
        Task(32, (A,), A, {}, shared_bytes=A.nbytes, also=also).run(through)

    run(lambda trace: require_shared_requests(trace, "write", 2))
    with pytest.raises(AnswerError, match="with 2 writes to shared memory"):
        run(lambda trace: require_shared_requests(trace, "write", 1))
    run(lambda trace: require_barriers(trace, 2))
    with pytest.raises(AnswerError, match="with 2 barriers; 1 is enough"):
        run(lambda trace: require_barriers(trace, 1))


def test_atomic_operations_are_counted_by_lanes() -> None:
    @cuda.jit
    def counts(out, a):
        for i in range(cuda.threadIdx.x, 64, 32):
            out[i] = a[i]
            cuda.atomic.max(out, i, a[i])

    Task(32, (A,), A, {}, also=lambda trace: require_atomics(trace, 64, "")).run(counts)
    task = Task(32, (A,), A, {}, also=lambda trace: require_atomics(trace, 63, "they wait"))
    with pytest.raises(AnswerError, match="with 64 atomic operations: they wait"):
        task.run(counts)


def test_a_function_that_makes_no_kernel_is_not_written_yet() -> None:
    words = "one_case", "what it isolates", "what failure means"
    none = trial(*words, COPY, ("element",), kernel_of=lambda make: make())
    assert "not written yet" in str(run_trials("copy", [none], lambda: None))
    assert run_trials("copy", [none], lambda: copy).ok
