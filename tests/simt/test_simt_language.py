"""raise, tuples, methods and grids: what is refused, and with which words."""

import math
from collections import namedtuple

import numpy as np
import pytest
from numba import cuda

from simt import Unsupported, launch
from tests.simt.helpers import kernel


class Odd(Exception):
    """An error whose arguments and text are its own."""

    def __init__(self, low: float, table: np.ndarray) -> None:
        self.low, self.table = low, table

    def __str__(self) -> str:
        return f"below {self.low}"


TABLE = np.arange(3)


@cuda.jit(device=True)
def small(x):
    low = 2.5
    if x > 5:
        raise Odd(low, TABLE)
    return x


@cuda.jit
def careful(a, out):
    i = cuda.grid(1)
    if a[i] < 0:
        raise ValueError
    out[i] = small(a[i])


@pytest.mark.parametrize("order", ["together", "reverse"])
def test_raise_is_an_error_that_names_the_thread_and_the_line(order: str) -> None:
    a, out = np.arange(64) % 6, np.zeros(64)
    assert launch(careful, 2, 32, a, out, order=order).clean
    np.testing.assert_array_equal(out, a)
    a[40] = 6
    with pytest.raises(Odd, match=r"(?s)^below 2.5\nthread 8 .* in small") as caught:
        launch(careful, 2, 32, a, out, order=order)
    assert str(caught.value) == "below 2.5"
    assert caught.value.table is TABLE
    a[40] = -1
    with pytest.raises(ValueError, match=r"(?s)^\nthread 8 of thread block 1 .* in careful:"):
        launch(careful, 2, 32, a, out, order=order)


REFUSED = {
    # raise
    "raise": "raise",
    "raise ValueError from out": "raise ValueError from out",
    **{
        f"raise ValueError({text})": "takes constants alone, and none by name"
        for text in ("t", "out", "f'{t}'", "*out", "why=1")
    },
    "raise Odd(1)": "missing 1 required positional argument: 'table'",
    "if out[0]:\n    raise ValueError(nothing)": "nothing is not defined",
    # reshape and view
    "out[0] = a[::2].reshape(2)[0]": "needs a contiguous array",
    "out[0] = a[t:].reshape(2)[0]": "of one shape in all lanes",
    "out[0] = cuda.local.array(4, np.int32).view(np.int64)[0]": "view on a local array",
    "out[0] = a.reshape(0, -1)[0, 0]": "can't become",
    "out[0] = a.reshape(t)[0]": "takes whole numbers",
    "out[0] = a.reshape(2.0)[0]": "takes whole numbers",
    "out[0] = t.reshape(1)[0]": "only an array has reshape",
    "out[0] = a[1:].view(np.int64)[0]": "begins or ends inside an item of int64",
    "out[0] = a[:3].view(np.int64)[0]": "begins or ends inside an item of int64",
    "out[0] = a[0].view(np.int64)": "int32 has 4 bytes",
    "out[0] = a.view(np.int64, 3)[0]": r"takes \(dtype\)",
    # methods, attributes and arguments
    "out[0] = a.nothing()": r"does not know a.nothing\(\)",
    "out[0] = t.shape[0]": "only an array has .shape",
    "out[0] = a.dtype(1)": "does not know a.dtype",
    "out[0] = tuple(a)[0]": r"knows tuple\(...\) of a tuple",
    "out[0] = cuda.float2(1, 2, 3).x": "takes 2 numbers, not 3",
    "out[0] = cuda.float3(cuda.int2(1, 2), 3, 4).x": "is not a number",
    "out[0] = cuda.float2(1, 2).z": "does not know the attribute .z",
    "t.sync()": r"only cuda.cg.this_grid\(\) has sync",
    "out[t:] = cuda.cg.this_grid()": "the grid is not a number",
    "cuda.atomic.compare_and_swap(a, 0, 1, 2)": r"takes \(array, expected, value\)",
    "out[0] = LANE": "cuda.laneid",
    "out[0] = cuda.local.array(4, np.int32, 16, 2)[0]": "shape, dtype and an alignment",
    "for i, x in enumerate(a, start=1): out[0] = i": "only device functions take .* by name",
    "out[0] = float('one')": "'one'",
    "out[0] = len([1, 2])": "does not know a list",
    "x = a.shape[t:]": "only a slice between constants",
    "x, y, z = a": "needs 3 values",
    "if not a: out[0] = 1": "the array a is not a number",
    "out[0] = cuda.fp16.hsin(t, t)": "2 numbers, not 1",
    "out[0] = np.exp(t)": "write math.exp",
    "out[0] = np.sin(t, out)": "2 numbers, and takes 1",
    "x = np.empty(10, np.int64)": "does not know np.empty",
    "out[0] = np.maximum(np.float16(t), 1)": "not for float16",
    # what can be stored
    "a[:] = a[::-1]": "to copy an array takes a loop",
    "a[0] = 1, 2": "only a number can be stored",
    "a[:2] = 1, 2, 3": r"a\[:\] has 2 items, and the tuple 3",
    "a[:2] = 1, 2.5": "only if its numbers have one type",
    "a[:2] = (1, 2), (3, 4)": "in a slice with one axis",
    # functions inside
    "def f(x): return x\nout[t] = f(x=t)": "ignores names of arguments",
    "if t:\n  def f(): return 1\nelse:\n  def f(): return 2": "defined more than once",
    "f = 1\nf = lambda x: x": "defined more than once",
    "def f(x):\n    return (lambda y: y)(x)": "a function inside f",
    "def f(x, y=t): return x": "a default of f that isn't a constant",
    "def f(): return 1\ndef g(): return f()\nout[t] = g()": r"does not know f\(\)",
    "def f(): return 1\ng = f": "can only be called",
    "n = 1\ndef f():\n    nonlocal n\n    n = 2\nf()": "does not know `nonlocal`",
    "def f():\n    s = cuda.local.array(M, np.int32)\nM = 4\nf()": "does not know M, the shape",
    "def f(j): return a[j]": "uses the variable a, but is never called",
    "M = t\ndef f():\n    s = cuda.local.array(M, np.int32)\nf()": "does not know M, the shape",
    "def f(a):\n    s = cuda.local.array(2, a.dtype)\nf(out)": "does not know a.dtype, the dtype",
    "def f():\n    N = 4\nf()\ns = cuda.local.array(M, np.int32)": "M is not defined",
}
PARTS = (
    *("out[0] = v[t]", "w = v[:1]", "x, y = v", "out[0] = len(v)", "w = tuple(v)"),
    *("for e in v: out[0] = e", "for i, e in enumerate(v): out[0] = e", "out[:2] = v"),
    *("if t in v: out[0] = 1", "print(v)", "out[0] = a.reshape(2, 2)[v]"),
)
ONLY_FIELDS = "cuda.int32x2 isn't a tuple"
REFUSED |= {f"v = cuda.int2(1, t)\n{text}": ONLY_FIELDS for text in PARTS}


@pytest.mark.parametrize("text", REFUSED)
def test_what_is_refused_is_named(text: str) -> None:
    one = kernel("out, a", text, LANE=cuda.laneid, Odd=Odd)
    with pytest.raises(Unsupported, match=REFUSED[text]):
        launch(one, 1, 32, np.zeros(1), np.zeros(4, np.int32))


def test_a_function_inside_knows_the_constants_and_types_around_it() -> None:
    body = """
        sizes = SIZES
        last = -1
        kind = np.int8
        get = item

        def f(x):
            own = cuda.local.array(sizes, a.dtype)
            own[1, last] = x / 3
            return own[1, 2] + kind(x * 100) + get(a, x)

        never_called = lambda j: last + N + j
        out[t] = f(t)
    """
    out, a = np.zeros(8), np.arange(8, dtype=np.float32) * 1000
    launch(kernel("out, a", body, SIZES=(2, 3)), 1, 8, out, a)
    thirds = (np.arange(8) / 3).astype(np.float32)
    np.testing.assert_array_equal(out, thirds + (np.arange(8) * 100).astype(np.int8) + a)


def test_a_tuple_may_hold_vectors_and_have_a_field_named_dtype() -> None:
    body = "for v in pair:\n    out[t] += v.y\nout[t] += pair[1].x + len(pair) + len(named)"
    named = namedtuple("Named", ["dtype"])(1)
    out = np.zeros(4)
    pair = "pair = cuda.int2(1, t), cuda.int2(5, 10)\n"
    launch(kernel("out, named", pair + body), 1, 4, out, named)
    np.testing.assert_array_equal(out, np.arange(4) + 10 + 5 + 2 + 1)


def test_arrays_in_a_tuple_are_written_and_restored_like_others() -> None:
    """The first run falls back, because its thread blocks race."""
    text = "arrays[0][t] += 1\nif cuda.blockIdx.x:\n    arrays[1][0] = t"
    a, b = np.zeros(32), np.zeros(1)
    report = launch(kernel("arrays", text), 2, 32, (a, b), collect=True)
    assert [finding.check for finding in report.findings] == ["race", "race"]
    np.testing.assert_array_equal(a, 2)


def test_a_grid_that_waits_fits_on_a_gpu_and_is_traced_and_counted_across_the_waits() -> None:
    waits = kernel("", "cuda.cg.this_grid().sync()")
    assert launch(waits, 132, 1024, checks=()).clean
    with pytest.raises(ValueError, match="has room for 264"):
        launch(waits, 265, 1024)
    writes = kernel("a", "cuda.cg.this_grid().sync()\na[cuda.grid(1)] = t")
    trace = launch(writes, 4, 32, np.zeros(128), trace="all").trace
    assert len(trace.only(kind="write", block=2)) == 32
    endless = kernel("a", "while a[0] == 0:\n    cuda.cg.this_grid().sync()")
    with pytest.raises(RuntimeError, match="50 loop turns"):
        launch(endless, 2, 32, np.zeros(1), max_turns=50)


doubled = cuda.jit(device=True)(
    lambda x: 2 * x if x > 3 else -x,
)
added = cuda.jit(lambda a, b=1: a + b, device=True)
first, second = cuda.jit(lambda a: a, device=True), cuda.jit(lambda a: -a, device=True)


@cuda.jit(device=True)
def twice(function, x):
    return function(function(x))


def test_a_device_function_may_be_a_lambda_or_an_argument_and_have_arguments_by_name() -> None:
    text = (
        "again = added\nout[t] = again(b=doubled(a[t]), a=t) + twice(again, a[t]) + twice(abs, -t)"
    )
    names = {"doubled": doubled, "added": added, "twice": twice, "second": second}
    out, a = np.zeros(32), np.arange(32, dtype=np.float64)
    assert launch(kernel("out, a", text, **names), 1, 32, out, a).clean
    np.testing.assert_array_equal(out, np.where(a > 3, 2 * a, -a) + a + a + 2 + a)
    with pytest.raises(Unsupported, match="the only lambda"):
        launch(kernel("out", "out[t] = second(t)", **names), 1, 1, out)


@pytest.mark.parametrize("old", [(0,), (4, 0), (1, 8, 1, 3, 1), (24,)])
@pytest.mark.parametrize("new", [(-1,), (0, 2), (4, -1), (8, 1, 3), (5, 5), (7,), (-1, -1)])
def test_reshape_takes_the_shapes_that_numpys_takes(old: tuple[int, ...], new: tuple) -> None:
    """An axis of one item may have any stride."""
    a = np.arange(math.prod(old), dtype=np.float64).reshape(old)
    strides = [888 if n == 1 else stride for n, stride in zip(old, a.strides, strict=True)]
    a = np.lib.stride_tricks.as_strided(a, strides=strides)
    out, axes = np.full(3, -1), ", ".join(["0"] * len(new))
    text = f"b = a.reshape({new})\nfor i in range({len(new)}):\n    out[i] = b.shape[i]"
    text += f"\nif b.size:\n    b[{axes}] = 7"
    try:
        expected = a.reshape(new).shape
    except ValueError:
        with pytest.raises(Unsupported, match="can't become"):
            launch(kernel("out, a", text), 1, 1, out, a)
        return
    assert launch(kernel("out, a", text), 1, 1, out, a).clean
    assert tuple(out[: len(new)]) == expected
    assert not a.size or a.flat[0] == 7


LONG_LOOPS = {
    "a function inside": "def count():\n    while a[0] < 400:\n        ADD\ncount()",
    "a condition inside": "def low():\n    return a[0] < 400\nwhile low():\n    ADD",
    "a tuple": "p = a, t\nwhile p[0][0] < 400:\n    cuda.atomic.add(p[0], 0, 1)",
    "a view": "while a.view(np.uint32)[0] < 400:\n    ADD",
    "a field": "r = b[0]\nwhile r.n < 400:\n    cuda.atomic.add(b.n, 0, 1)\na[0] = r.n",
}


@pytest.mark.parametrize("name", LONG_LOOPS)
def test_a_long_loop_is_not_endless(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("simt.statements.LOOK_EVERY", 97)
    text, a = LONG_LOOPS[name].replace("ADD", "cuda.atomic.add(a, 0, 1)"), np.zeros(1, np.int32)
    launch(kernel("a, b", text), 1, 1, a, np.zeros(1, [("n", np.int32)]), checks=())
    assert a[0] == 400


def test_a_snapshot_keeps_a_variable_that_a_function_inside_reads() -> None:
    text = "n = 2 * t\ndef f(): return n\nout[t] = f()"
    report = launch(kernel("out", text), 1, 32, np.zeros(32), watch="end", names="n")
    np.testing.assert_array_equal(report.snapshots[0].values["n"], 2 * np.arange(32))
