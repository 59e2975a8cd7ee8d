"""Which arguments may be written to: never too few, and read-only inputs are seen as such."""

import numpy as np
import pytest
from numba import cuda, float32

from pa_tutorial.kernels.geometry import Geometry
from pa_tutorial.kernels.loads import element_loads
from pa_tutorial.kernels.naive import naive_kernel
from pa_tutorial.kernels.paged_attention import paged_attention
from pa_tutorial.kernels.vectors import vector_loads
from pa_tutorial.simt import SimtError, launch, twin
from pa_tutorial.simt.machine import CHECKS, Machine
from pa_tutorial.simt.program import Program
from pa_tutorial.simt.writes import Writes


def may_be_written(kernel) -> set[str]:
    machine = Machine(
        grid=(1, 1, 1),
        block=(32, 1, 1),
        checks=CHECKS,
        order="together",
        collect=False,
        shared_bytes=0,
        exited_may_skip=False,
        shuffles_order_memory=False,
        max_turns=1000,
        recorder=None,
    )
    program = Program(kernel.py_func, machine, (), ())
    return set(Writes(program).parameters(kernel.py_func))


@cuda.jit(device=True)
def put(where, i, value):
    where[i] = value


@cuda.jit(device=True)
def same(array):
    return array


@cuda.jit(device=True)
def either(a, b, first):
    return a if first else b


@cuda.jit(device=True)
def chain(first, second, i):
    put(second, i, first[i])


@cuda.jit
def plain(a, b, c):
    b[cuda.threadIdx.x] = a[cuda.threadIdx.x] + c[0]


@cuda.jit
def an_index_is_no_write(a, b, c):
    b[c[cuda.threadIdx.x]] = a[0]


@cuda.jit
def through_another_name(a, b, c):
    d = a
    d[0] = b[0] + c[0]


@cuda.jit
def through_a_row(a, b, c):
    row = a[1]
    part = row[1:3]
    part[0] = b[0] + c[0]


@cuda.jit
def through_a_name_given_later(a, b, c):
    d = b
    for _ in range(2):
        d[0] = a[0] + c[0]
        d = a


@cuda.jit
def through_a_tuple(a, b, c):
    d, e = a, b
    e[0] = d[0] + c[0]


@cuda.jit
def through_a_choice(a, b, c):
    d = a if c[0] > 0 else b
    d[0] = c[0]


@cuda.jit
def by_a_device_function(a, b, c):
    put(a, 0, b[0] + c[0])


@cuda.jit
def by_a_device_function_of_another(a, b, c):
    chain(a, b, 0)
    b[0] += c[0]


@cuda.jit
def by_name(a, b, c):
    put(value=a[0], where=c, i=b[0])


@cuda.jit
def through_what_a_function_returns(a, b, c):
    d = same(a)
    d[0] = b[0]
    same(c)[1] = b[0]


@cuda.jit
def through_one_of_two(a, b, c):
    either(a, b, True)[0] = c[0]


@cuda.jit(device=True)
def apply(function, array, value):
    function(array, 0, value)


@cuda.jit
def by_a_function_that_is_given(a, b, c):
    apply(put, a, b[0])
    c[0] = b[0]


@cuda.jit
def by_an_atomic(a, b, c):
    cuda.atomic.add(a, 0, b[0])
    row = c[0:2]
    cuda.atomic.max(row, 0, b[0])


@cuda.jit
def only_shared(a, b, c):
    s = cuda.shared.array(32, float32)
    s[cuda.threadIdx.x] = a[0] + b[0]
    cuda.syncthreads()
    c[cuda.threadIdx.x] = max(s[0], s[1])


@pytest.mark.parametrize(
    ("kernel", "written"),
    [
        (plain, "b"),
        (an_index_is_no_write, "b"),
        (through_another_name, "a"),
        (through_a_row, "a"),
        (through_a_name_given_later, "ab"),
        (through_a_choice, "ab"),
        (by_a_device_function, "a"),
        (by_a_device_function_of_another, "b"),
        (by_name, "c"),
        (through_what_a_function_returns, "ac"),
        (through_one_of_two, "ab"),
        (by_a_function_that_is_given, "abc"),
        (by_an_atomic, "ac"),
        (only_shared, "c"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_what_may_be_written(kernel, written: str) -> None:
    assert may_be_written(kernel) == set(written)


def test_a_tuple_may_err_on_the_safe_side_only() -> None:
    assert "b" in may_be_written(through_a_tuple)


def test_the_inputs_of_the_paged_kernels_are_only_read() -> None:
    geometry = Geometry(32, 8)
    assert may_be_written(naive_kernel(geometry)) == {"out"}
    for loads in (element_loads, vector_loads):
        found = may_be_written(paged_attention(geometry, loads))
        assert found == {"out", "exp_sums", "max_logits"}


@pytest.mark.parametrize(
    ("writes", "written"),
    [(None, {"out", "a", "b"}), ((), {"out"}), ((0,), {"out", "a"}), ((2,), {"out", "b"})],
)
def test_an_intrinsic_writes_what_its_twin_says_else_anything(
    writes: tuple[int, ...] | None, written: set[str]
) -> None:
    def fresh(array, i, value):
        raise NotImplementedError  # only its twin is used

    twin(fresh, writes)(lambda access, array, i, value: None)

    @cuda.jit
    def kernel(out, a, b):
        fresh(a, 0, b)
        out[0] = a[0]

    assert may_be_written(kernel) == written


@cuda.jit
def shifted(out, a):
    t = cuda.threadIdx.x
    out[t] = a[t + 1]


def test_an_argument_that_shares_memory_with_a_written_one_can_race() -> None:
    a = np.zeros(64, np.float32)
    with pytest.raises(SimtError, match="race"):
        launch(shifted, 1, 32, a[:32], a[:33])
    assert launch(shifted, 1, 32, a[:32].copy(), a[:33]).clean
