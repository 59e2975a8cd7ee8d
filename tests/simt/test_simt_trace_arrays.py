"""Addresses in a trace: which array, which element, also of views."""

from itertools import permutations

import numpy as np
import pytest
from numba import cuda, float32

from simt import Trace, launch
from tests.simt.helpers import kernel, zeros


def read_of(body: str, num_threads: int, a: np.ndarray) -> tuple[np.ndarray, ...]:
    """Along each axis, the indices at which the threads read a."""
    trace = launch(kernel("out, a", body), 1, num_threads, zeros(num_threads), a, trace=0).trace
    reads = trace.only(array="a")
    return reads.the_array().indices(reads.records.address)


def addresses(trace: Trace, space: str = "global") -> dict[str, int]:
    return {array.name: array.address for array in trace.arrays if array.space == space}


def test_views_are_counted_as_the_array_that_they_show() -> None:
    rows, columns = read_of("half = a[2][16:]\nout[t] = half[t]", 16, zeros(4, 32))
    assert set(rows.tolist()) == {2}
    assert columns.tolist() == list(range(16, 32))


def test_a_local_array_is_counted_in_the_lanes_own() -> None:
    local = "mine = cuda.local.array(4, float32)\npart = mine[2:]\npart[1] = t\nout[t] = mine[3]"
    trace = launch(kernel("out", local), 1, 16, zeros(16), trace=0).trace.only(space="local")
    assert trace.the_array().shape == (4,)
    assert set(trace.records.address.tolist()) == {12}


@pytest.mark.parametrize(
    "a",
    [
        zeros(3, 5, 8)[::-1, 1, ::-2],
        np.zeros((1, 8), order="F"),  # the stride of an axis of size 1 means nothing
        np.zeros((8, 1)).T,
        np.zeros((2, 70_008))[:, 70_000:],  # addresses are wide
    ],
    ids=["reversed", "F", "T", "far"],
)
def test_indices_of_strided_arrays(a: np.ndarray) -> None:
    rows, columns = read_of(f"out[t] = a[t // {a.shape[1]}, t % {a.shape[1]}]", a.size, a)
    np.testing.assert_array_equal((rows, columns), np.unravel_index(np.arange(a.size), a.shape))


def test_addresses_follow_the_order_of_the_arguments_wherever_these_lie() -> None:
    adds = kernel("a, b, c", "a[t] = b[t] + c[t]")
    for arrays in permutations([zeros(100) for _ in range(3)]):
        trace = launch(adds, 1, 8, *arrays, trace=0).trace
        assert addresses(trace) == {"a": 256, "b": 768, "c": 1280}


def test_shared_arrays_lie_one_behind_the_other() -> None:
    body = """
        first = cuda.shared.array(5, float32)
        second = cuda.shared.array(2, np.float64)
        rest = cuda.shared.array(0, float32)
        if t < 2:
            first[t] = second[t] = rest[t] = 1
    """
    trace = launch(kernel("", body), 1, 4, shared_bytes=8, trace=0).trace
    assert addresses(trace, "shared") == {"first": 0, "second": 24, "rest": 48}
    rest = trace.only(array="rest")
    assert rest.the_array().indices(rest.records.address)[0].tolist() == [0, 1]


def test_two_shared_arrays_of_one_name_are_both_found() -> None:
    @cuda.jit(device=True)
    def write(value):
        s = cuda.shared.array(8, float32)
        s[cuda.threadIdx.x] = value

    two = kernel("", "s = cuda.shared.array(8, float32)\ns[t] = 1\nwrite(2)", write=write)
    both = launch(two, 1, 8, trace=0).trace.only(array="s")
    assert len(both) == 16
    with pytest.raises(ValueError, match="it is of: s, s"):
        both.the_array()


@pytest.mark.parametrize("first", [0, 40])
def test_an_array_that_is_one_of_two_arguments_is_named_as_both(first: int) -> None:
    memory = zeros(100)
    x, y = memory[first : first + 50], memory[40 - first : 90 - first]
    either = kernel("x, y", "z = x if t % 2 else y\nz[t] = 1")
    trace = launch(either, 1, 32, x, y, trace=0).trace.only(kind="write")
    assert trace.the_array().name == "y or x"
    (items,) = trace.the_array().indices(trace.records.address)
    assert items.tolist() == [first + t if t % 2 else 40 - first + t for t in range(32)]
