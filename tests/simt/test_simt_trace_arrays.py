"""Addresses in a trace: which array, which element, also of views and of vectors."""

from itertools import permutations

import numpy as np
import pytest
from numba import cuda, float32

from pa_tutorial.simt import Unsupported, launch, twin


def test_views_are_counted_as_the_array_that_they_show() -> None:
    @cuda.jit
    def kernel(out, a):
        t = cuda.threadIdx.x
        row = a[2]
        half = row[16:]
        mine = cuda.local.array(4, float32)
        part = mine[2:]
        part[1] = half[t]
        out[t] = mine[3]

    a = np.arange(128, dtype=np.float32).reshape(4, 32)
    trace = launch(kernel, 1, 16, np.zeros(16, np.float32), a, trace=0).trace
    rows, columns = trace.only(array="a").the_array().indices(trace.only(array="a").records.address)
    assert set(rows.tolist()) == {2}
    assert columns.tolist() == list(range(16, 32))
    local = trace.only(space="local")
    assert local.the_array().shape == (4,)
    assert set(local.records.address.tolist()) == {12}, "counted in the lane's own array"


@pytest.mark.parametrize("reverse", [False, True])
def test_indices_of_strided_arrays(reverse: bool) -> None:
    @cuda.jit
    def kernel(out, a):
        t = cuda.threadIdx.x
        out[t] = a[t % 3, 0, t % 4]

    a = np.zeros((3, 5, 8), np.float32)[:, 1:2, ::2]
    a = a[::-1, :, ::-1] if reverse else a
    trace = launch(kernel, 1, 12, np.zeros(12, np.float32), a, trace=0).trace.only(array="a")
    indices = trace.the_array().indices(trace.records.address)
    t = np.arange(12)
    for found, expected in zip(indices, (t % 3, t * 0, t % 4), strict=True):
        np.testing.assert_array_equal(found, expected)


def test_addresses_are_the_same_in_every_run() -> None:
    """They follow the order of the arguments, wherever these lie in this process."""

    @cuda.jit
    def add(a, b, c):
        a[cuda.threadIdx.x] = b[cuda.threadIdx.x] + c[cuda.threadIdx.x]

    arrays = [np.zeros(100, np.float32) for _ in range(3)]
    for one, other, third in permutations(arrays):
        trace = launch(add, 1, 8, one, other, third, trace=0).trace
        addresses = {array.name: array.address for array in trace.arrays}
        assert addresses == {"a": 256, "b": 768, "c": 1280}


def test_an_empty_array_has_an_address_of_its_own() -> None:
    @cuda.jit
    def copy(nothing, a, out):
        out[cuda.threadIdx.x] = a[nothing.size + cuda.threadIdx.x]

    arrays = np.zeros(0, np.float32), np.zeros(8, np.float32), np.zeros(8, np.float32)
    trace = launch(copy, 1, 8, *arrays, trace=0).trace
    assert {array.name: array.address for array in trace.arrays} == {"a": 512, "out": 768}


def test_addresses_are_wide() -> None:
    @cuda.jit
    def far(out, a):
        out[cuda.threadIdx.x] = a[70_000 + cuda.threadIdx.x]

    a = np.zeros(70_008, np.float64)
    trace = launch(far, 1, 8, np.zeros(8), a, trace=0).trace.only(array="a")
    (indices,) = trace.the_array().indices(trace.records.address)
    assert indices.tolist() == list(range(70_000, 70_008))


def test_shared_arrays_lie_one_behind_the_other() -> None:
    @cuda.jit
    def kernel(out):
        t = cuda.threadIdx.x
        first = cuda.shared.array(5, float32)
        second = cuda.shared.array(2, np.float64)
        rest = cuda.shared.array(0, float32)
        if t < 2:
            first[t] = second[t] = rest[t] = 1
            out[t] = first[t]

    trace = launch(kernel, 1, 4, np.zeros(2, np.float32), shared_bytes=8, trace=0).trace
    addresses = {a.name: a.address for a in trace.arrays if a.space == "shared"}
    assert addresses == {"first": 0, "second": 24, "rest": 48}
    rest = trace.only(array="rest")
    assert rest.the_array().indices(rest.records.address)[0].tolist() == [0, 1]


def test_two_shared_arrays_of_one_name_are_both_found() -> None:
    @cuda.jit(device=True)
    def write(value):
        s = cuda.shared.array(8, float32)
        s[cuda.threadIdx.x] = value

    @cuda.jit
    def kernel():
        s = cuda.shared.array(8, float32)
        s[cuda.threadIdx.x] = 1
        write(2)

    trace = launch(kernel, 1, 8, trace=0).trace
    assert len(trace.only(array="s")) == 16
    with pytest.raises(ValueError, match="it is of: s, s"):
        trace.only(array="s").the_array()


@pytest.mark.parametrize("first", [0, 40])
def test_an_array_that_is_one_of_two_arguments_is_named_as_both(first: int) -> None:
    @cuda.jit
    def kernel(x, y):
        t = cuda.threadIdx.x
        z = x if t % 2 else y
        z[t] = 1

    memory = np.zeros(100, np.float32)
    x, y = memory[first : first + 50], memory[40 - first : 90 - first]
    trace = launch(kernel, 1, 32, x, y, trace=0).trace.only(kind="write")
    assert trace.the_array().name == "y or x"
    (items,) = trace.the_array().indices(trace.records.address)
    assert items.tolist() == [first + t if t % 2 else 40 - first + t for t in range(32)]


@pytest.mark.parametrize("a", [np.zeros((1, 8), order="F"), np.zeros((8, 1)).T], ids=["F", "T"])
def test_an_axis_of_size_1_has_the_index_0(a: np.ndarray) -> None:
    @cuda.jit
    def kernel(out, a):
        out[cuda.threadIdx.x] = a[0, cuda.threadIdx.x]

    trace = launch(kernel, 1, 8, np.zeros(8), a, trace=0).trace.only(array="a")
    rows, columns = trace.the_array().indices(trace.records.address)
    assert set(rows.tolist()) == {0}
    assert columns.tolist() == list(range(8))


def test_an_unchecked_negative_index_is_recorded_where_it_goes() -> None:
    @cuda.jit
    def kernel(out, a):
        out[cuda.threadIdx.x] = a[cuda.threadIdx.x - 1]

    a = np.arange(8, dtype=np.float32)
    report = launch(kernel, 1, 8, out := np.zeros(8, np.float32), a, trace=0, checks=())
    trace = report.trace.only(array="a")
    (items,) = trace.the_array().indices(trace.records.address)
    assert items.tolist() == out.tolist() == [7, 0, 1, 2, 3, 4, 5, 6]


def test_a_vector_that_is_stored_is_one_access() -> None:
    def store_pair(array, index, x, y):
        raise NotImplementedError  # only its twin is used

    @twin(store_pair)
    def _store_pair(access, array, index, x, y):
        access.store(array, index, (x, y))

    @cuda.jit
    def kernel(out):
        store_pair(out, 2 * cuda.threadIdx.x, float32(1), float32(2))

    trace = launch(kernel, 1, 32, np.zeros(64, np.float32), trace=0).trace
    assert len(trace) == 32
    assert set(trace.records.num_bytes.tolist()) == {8}


def test_a_vector_of_an_impossible_size_is_refused() -> None:
    def load_many(array, index):
        raise NotImplementedError

    @twin(load_many)
    def _load_many(access, array, index):
        return access.load(array, index, 8)

    @cuda.jit
    def kernel(out, a):
        out[0] = load_many(a, 0)[0]

    with pytest.raises(Unsupported, match="1, 2, 4, 8 or 16 bytes of a at once, not 32"):
        launch(kernel, 1, 1, np.zeros(1, np.float32), np.zeros(8, np.float32))
