"""What others' kernels may write, and what is refused, with which words."""

import math

import numpy as np
import pytest
from numba import cuda

from simt import Unsupported, launch
from tests.simt.helpers import kernel
from tests.simt.kernels.records import BALL, PACKED


class Odd(Exception):
    def __init__(self, low: float, table: np.ndarray) -> None:
        super().__init__(f"below {low}")
        self.table = table


TABLE = np.arange(3)


@cuda.jit(device=True)
def small(x):
    low = 2.5
    if x > 5:
        raise Odd(low, TABLE)
    return x


def test_raise_is_an_error_that_names_the_thread_and_the_line() -> None:
    careful = kernel("a", "if a[t] < 0:\n    raise ValueError\na[t] = small(a[t])", small=small)
    a = np.arange(64.0) % 6
    assert launch(careful, 1, 64, a).clean
    a[8] = 6
    with pytest.raises(Odd, match=r"(?s)^below 2.5\nthread 8 .* in small") as caught:
        launch(careful, 1, 64, a)
    assert caught.value.table is TABLE
    a[8] = -1
    with pytest.raises(ValueError, match=r"(?s)^\nthread 8 of thread block 0 .* in .*:"):
        launch(careful, 1, 64, a)


first, second = cuda.jit(lambda a: a, device=True), cuda.jit(lambda a: -a, device=True)
REFUSED = {
    "out[t] = second(t)": "the only lambda",
    "for i in range(5, t, t): out[0] = i": "thread 0 of .* a step of 0",
    # raise
    "raise": "raise",
    "raise ValueError(t)": "takes constants alone, and none by name",
    "raise ValueError(why=1)": "takes constants alone, and none by name",
    "raise Odd(1)": "missing 1 required positional argument: 'table'",
    "return a[0]": "cannot return a value",
    # names, indices and arrays
    "out[0] = cuda.threadIdx.w": "has x, y and z, not w",
    "cuda.syncthreads": r"cuda.syncthreads isn't called",
    "out[0] = a[0, 0]": "a has 1 dimensions, the index has 2",
    "out[0, 0] = 1": "out has 1 dimensions, the index has 2",
    "out[0] = cuda.ldcg(t, 0)": "t is not an array",
    "s = cuda.shared.array(4, np.longdouble)": "does not know an array of",
    "s = cuda.shared.array(4, np.int32, 17)": "a power of 2",
    # reshape and view
    "out[0] = a[::2].reshape(2)[0]": "needs a contiguous array",
    "out[0] = cuda.local.array(4, np.int32).view(np.int64)[0]": "view on a local array",
    "out[0] = a.reshape(t)[0]": "takes whole numbers",
    "out[0] = t.reshape(1)[0]": "only an array has reshape",
    "out[0] = a[1:].view(np.int64)[0]": "begins or ends inside an item of int64",
    "out[0] = a[0].view(np.int64)": "int32 has 4 bytes",
    "out[0] = a.view(np.int64, 3)[0]": r"takes \(dtype\)",
    # methods, attributes and arguments
    "out[0] = a.nothing()": r"does not know a.nothing\(\)",
    "out[0] = t.shape[0]": "only an array has .shape",
    "out[0] = a.dtype(1)": "does not know a.dtype",
    "out[0] = tuple(a)[0]": r"knows tuple\(...\) of a tuple",
    "out[0] = cuda.float2(1, 2, 3).x": "takes 2 numbers, not 3",
    "t.sync()": r"only cuda.cg.this_grid\(\) has sync",
    "out[t:] = cuda.cg.this_grid()": "the grid is not a number",
    "out[0] = LANE": "cuda.laneid",
    "out[0] = cuda.local.array(4, np.int32, 16, 2)[0]": "shape, dtype and an alignment",
    "for i, x in enumerate(a, start=1): out[0] = i": "only device functions take .* by name",
    "x = a.shape[t:]": "only a slice between constants",
    "x, y, z = a": "needs 3 values",
    "out[0] = cuda.fp16.hsin(t, t)": "2 numbers, not 1",
    "out[0] = np.exp(t)": "write math.exp",
    "out[0] = np.sin(t, out)": "2 numbers, and takes 1",
    "out[0] = np.maximum(np.float16(t), 1)": "not for float16",
    # what can be stored
    "a[:] = a[::-1]": "to copy an array takes a loop",
    "a[:2] = 1, 2, 3": r"a\[:\] has 2 items, and the tuple 3",
    "a[:2] = 1, 2.5": "only if its numbers have one type",
    "a[:2] = (1, 2), (3, 4)": "in a slice with one axis",
    # functions inside
    "def f(x):\n    return (lambda y: y)(x)": "a function inside f",
    "def f(x): return x\nout[t] = f(x=t)": "ignores names of arguments",
    "if t:\n  def f(): return 1\nelse:\n  def f(): return 2": "defined more than once",
    "def f(x, y=t): return x": "a default of f that isn't a constant",
    "def f(): return 1\ng = f": "can only be called",
    "n = 1\ndef f():\n    nonlocal n\n    n = 2\nf()": "does not know `nonlocal`",
    "def f():\n    s = cuda.local.array(M, np.int32)\nM = 4\nf()": "does not know M, the shape",
    "def f(j): return a[j]": "uses the variable a, but is never called",
}
PARTS = (
    *("out[0] = v[t]", "w = v[:1]", "x, y = v", "out[0] = len(v)", "w = tuple(v)"),
    *("for e in v: out[0] = e", "for i, e in enumerate(v): out[0] = e", "out[:2] = v"),
    *("if t in v: out[0] = 1", "print(v)", "out[0] = a.reshape(2, 2)[v]"),
)
REFUSED |= {f"v = cuda.int2(1, t)\n{text}": "cuda.int32x2 isn't a tuple" for text in PARTS}
# Complex numbers and records: z, b, p (packed) and c (with a text)
REFUSED |= {
    "if t == 0: out[0] = z[0]": "a complex64 can't become float64",
    "out[0] = z[0] < 2": "complex numbers have no such operator: complex64, int64",
    "out[0] = z.real[0]": "does not know the attribute .real",
    "z[0] = z[0] & 1": "bit operations need integers",
    "z[0] = cuda.selp(t < 1, z[0], z[1])": "selp doesn't take complex numbers",
    "z[0] = cuda.shfl_sync(-1, z[0], 0)": "shfl_sync moves int32",
    "cuda.atomic.add(z, 0, 1)": "atomic.add has no form for complex64",
    "print(z[0])": "Numba doesn't print complex numbers",
    "out[0] = b[0].y": r"b\[0\] has no field 'y'; it has alive, x, hits, v, box",
    "out[0] = b.y[0]": "does not know the attribute .y",
    "out.x = 1": "the array out holds no records, so it has no field 'x'",
    "out[0] = p[0].x": "the field x isn't aligned",
    "b[0] = p[0]": r"b\[0\] can only be assigned a copy of the same type and shape",
    "b[:] = b[0]": "stores one record or field at a time",
    "out[0] = b[0][0, 1]": r"b\[0\] has 0 dimensions, the index has 2",
    "out[0] = c[0].text": r"the field text of c\[0\] holds |S3, not a number",
}


@pytest.mark.parametrize("text", REFUSED)
def test_what_is_refused_is_named(text: str) -> None:
    one = kernel("out, a, z, b, p, c", text, LANE=cuda.laneid, Odd=Odd, second=second)
    items = np.int32, np.complex64, BALL, PACKED, [("text", "S3")]
    with pytest.raises(Unsupported, match=REFUSED[text]):
        launch(one, 1, 32, np.zeros(1), *(np.zeros(4, item) for item in items))


def test_arrays_in_a_tuple_are_written_and_restored_like_others() -> None:
    """The first run falls back, because its thread blocks race."""
    text = "arrays[0][t] += 1\nif cuda.blockIdx.x:\n    arrays[1][0] = t"
    a, b = np.zeros(32), np.zeros(1)
    report = launch(kernel("arrays", text), 2, 32, (a, b), collect=True)
    assert [finding.check for finding in report.findings] == ["race", "race"]
    np.testing.assert_array_equal(a, 2)


def test_a_grid_that_waits_fits_on_a_gpu() -> None:
    waits = kernel("", "cuda.cg.this_grid().sync()")
    assert launch(waits, 132, 1024, checks=()).clean
    with pytest.raises(ValueError, match="has room for 264"):
        launch(waits, 265, 1024)


added = cuda.jit(lambda a, b=1: a + b, device=True)


@cuda.jit(device=True)
def twice(function, x):
    return function(function(x))


def test_a_device_function_may_be_a_lambda_or_an_argument_and_have_arguments_by_name() -> None:
    text = "again = added\nout[t] = again(b=3 * t, a=t) + twice(again, t) + twice(abs, -t)"
    out = np.zeros(32)
    assert launch(kernel("out", text, added=added, twice=twice), 1, 32, out).clean
    np.testing.assert_array_equal(out, 6 * np.arange(32) + 2)


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
