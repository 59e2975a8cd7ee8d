"""Operations in float64: which count, in which line, and whether the compiler makes them, too."""

import math
import re
from collections.abc import Callable
from importlib.util import find_spec

import numpy as np
import pytest
from numba import cuda, int64, uint64

from simt import compile_ptx, launch
from tests.simt.helpers import kernel, zeros

# All but what moves a number or changes its type.
IN_FLOAT64 = re.compile(r"\s(?!cvt|ld|st|mov)(\w+)(?:\.\w+)*\.f64\s")
HALF = 0.5


@cuda.jit(device=True)
def scaled(x, by):
    return x * by


# body -> the operations in float64 of one thread; with out, a in float32, n an int64
COUNTS = {
    "out[t] = a[t] * float32(2)": 0,
    "out[t] = a[t] * 0.3": 1,
    "out[t] = a[t] * float32(HALF + 1)": 0,  # known before the kernel runs
    "out[t] = a[t] * n": 1,
    "out[t] += 0.3": 1,
    "out[t] = float32(a[t] * 0.3) + a[t]": 2,  # one operation, one conversion
    "out[t] = 1 if a[t] < 0.3 else 2": 1,
    "out[t] = math.sqrt(a[t])": 0,
    "out[t] = math.sqrt(n)": 1,
    "out[t] = max(a[t], 0.3)": 1,
    "out[t] = n / 3": 1,
    "out[t] = n // 3": 0,
    "out[t] = 1 if int64(n) < uint64(t) else 2": 1,  # no integer holds both
    "out[t] = scaled(a[t], 0.3)": 1,
    "s = 0.0\nfor i in range(4):\n    s += a[i]\nout[t] = s": 4,
}


def made(body: str) -> Callable:
    names = {"HALF": HALF, "math": math, "int64": int64, "uint64": uint64, "scaled": scaled}
    return kernel("out, a, n", body, **names)


@pytest.mark.parametrize("body", COUNTS)
def test_an_operation_in_float64_is_in_the_trace(body: str) -> None:
    """And the compiler makes as many, or joins two."""
    arguments = zeros(32), np.ones(32, np.float32), 5
    report = launch(made(body), 1, 32, *arguments, trace=0, float64=True)
    assert report.trace.only(kind="float64").num_instructions == COUNTS[body]
    if find_spec("numba_cuda"):
        found = IN_FLOAT64.findall(compile_ptx(made(body), *arguments))
        assert bool(COUNTS[body]) <= len(found) <= COUNTS[body], found


def test_the_lanes_at_work_in_each_warp_count_if_asked() -> None:
    arguments = made("if t < 41:\n    out[t] = a[t] * n"), 2, 64, zeros(64), zeros(64), 5
    found = launch(*arguments, trace="all", checks=(), float64=True).trace.only(kind="float64")
    assert (found.num_instructions, len(found.threads)) == (4, 82)
    assert not len(launch(*arguments, trace="all", checks=()).trace.only(kind="float64"))
