"""Which arguments may be written to: never too few, and read-only inputs are seen as such."""

import pytest
from numba import cuda

from simt import twin
from tests.simt.helpers import kernel, may_be_written


@cuda.jit(device=True)
def put(where, i, value):
    where[i] = value


@cuda.jit(device=True)
def same(array):
    return array


@cuda.jit(device=True)
def apply(function, array, value):
    function(array, 0, value)


FUNCTIONS = {"put": put, "same": same, "apply": apply}


@pytest.mark.parametrize(
    ("body", "written"),
    [
        ("b[t] = a[t] + c[0]", "b"),
        ("row = a[1]\npart = row[1:3]\npart[0] = b[0] + c[0]", "a"),
        ("d = b\nfor _ in range(2):\n    d[0] = a[0] + c[0]\n    d = a  # later", "ab"),
        ("d = same(a)\nd[0] = b[0]\nsame(c)[1] = b[0]", "ac"),
        ("apply(put, a, b[0])\nc[0] = b[0]  # a function that is given may write", "abc"),
        ("cuda.atomic.add(a, 0, b[0])\nrow = c[0:2]\ncuda.atomic.max(row, 0, b[0])", "ac"),
        ("def row(i):\n    return a[i]\nr = row(t)\nr[0] = b[0] + c[0]", "a"),
        ("def put_into(d):\n    d[0] = b[0]\nput_into(c)  # one inside may hand out b", "bc"),
        ("s = cuda.shared.array(32, float32)\ns[t] = a[0] + b[0]\nc[t] = max(s[0], s[1])", "c"),
    ],
)
def test_what_may_be_written(body: str, written: str) -> None:
    assert may_be_written(kernel("a, b, c", body, **FUNCTIONS)) == set(written)


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
    calls = kernel("out, a, b", "fresh(a, 0, b)\nout[0] = a[0]", fresh=fresh)
    assert may_be_written(calls) == written
