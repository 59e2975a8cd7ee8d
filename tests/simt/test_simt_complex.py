"""Complex numbers: what compiled code makes of them, in variables and in memory."""

import cmath
import math
from itertools import product

import numpy as np
import pytest
from numba import complex64

from simt import launch
from simt.ptx import run_ptx
from tests.simt.helpers import kernel

NAMES = {"complex64": complex64, "math": math, "cmath": cmath}
INF, NAN = float("inf"), float("nan")
FORMS = "a[t] + b[t]", "a[t] * b[t]", "a[t] / b[t]", "abs(a[t]) - b[t]"
OF_COMPLEX = (
    *("-a[t] + a[t].real", "a[t].conjugate() * 2j", "a[t].imag * t.real + t.imag", "a[t] == b[t]"),
    *("complex(t, a[t].real)", "complex(a[t].imag)", "complex64(b[t])", "t + a[t] / (1 + t)"),
    *("a[t] if t % 3 else b[t]", "1 if a[t] * (t % 3) else 2", "a[t] ** b[t]"),
)


def test_products_are_rounded_part_by_part_on_every_processor() -> None:
    """Fused, as NumPy computes arrays on some, the real part of the square wouldn't be 0."""
    z = ((np.arange(32) + 0.1) / 7 * (1 + 1j)).astype(np.complex64)
    out = np.ones(32, np.complex64)
    launch(kernel("z, out", "out[t] = z[t] * z[t]", **NAMES), 1, 32, z, out)
    assert not out.real.any()
    assert (out.imag == 2 * z.real * z.imag).all()


def assert_as_compiled(forms: tuple[str, ...], a: np.ndarray, b: np.ndarray) -> None:
    lines = [f"out[{n}, t] = {form}" for n, form in enumerate(forms)]
    computes = kernel("a, b, out", "\n".join(lines), **NAMES)
    ours, compiled = np.zeros((2, len(lines), len(a)), np.complex128)
    with np.errstate(all="ignore"):
        launch(computes, 1, len(a), a, b, ours)
        run_ptx(computes, 1, len(a), a, b, compiled)
    for part in (np.real, np.imag):
        np.testing.assert_allclose(part(ours), part(compiled), rtol=1e-5, atol=1e-35)


@pytest.mark.needs("numba-cuda")
@pytest.mark.parametrize("dtypes", [("c8", "c8"), ("c16", "c16"), ("c8", "f8"), ("i2", "c8")])
def test_large_small_and_infinite_numbers_are_those_of_compiled_code(
    dtypes: tuple[str, str],
) -> None:
    numbers = [1, 1e-30j, 3e30 + 1e-30j, complex(INF, 1), complex(2, -INF), -0.0 - 2j, complex(NAN)]
    if "i2" in dtypes:
        numbers = [1, 2, -3, 300]
    columns = np.array([*product(numbers, repeat=2)]).T
    a, b = (np.real(c) if dtype[0] != "c" else c for c, dtype in zip(columns, dtypes, strict=True))
    assert_as_compiled(FORMS, a.astype(dtypes[0]), np.where(b == 0, 1, b).astype(dtypes[1]))


@pytest.mark.needs("numba-cuda")
@pytest.mark.parametrize("dtype", [np.complex64, np.complex128])
def test_powers_parts_and_choices_are_those_of_compiled_code(dtype: type) -> None:
    numbers = [1, 2j, -3 + 0.5j, 0.1 - 4j, -1, 0]
    powers = [0, 1, 2, -1, 0.5, 2 - 1j, 1j, -1.5 + 0.25j]
    a, b = np.array([*product(numbers, powers)]).T.astype(dtype)
    assert_as_compiled(OF_COMPLEX, a, b)


def test_arguments_variables_and_memory_hold_complex_numbers() -> None:
    body = """
        s = cuda.shared.array(32, complex64)
        own = cuda.local.array(2, np.complex128)
        z = 0
        if t % 2:
            z = c
        s[t] = z * d + e[0]
        cuda.syncthreads()
        own[1] = s[31 - t]
        own[1] /= e[1]
        out[t] += own[1]
    """
    out = np.full(32, 1j, np.complex64)
    one = kernel("out, c, d, e", body, **NAMES)
    arguments = out, 2j, np.complex64(1 - 1j), (1, 0.5)
    report = launch(one, 1, 32, *arguments, watch="end", names="z", trace=0, float64=True)
    odd = np.arange(31, -1, -1) % 2
    np.testing.assert_array_equal(out, 1j + (odd * (2j * (1 - 1j)) + 1) / 0.5)
    np.testing.assert_array_equal(report.snapshots[0]["z"], np.arange(32) % 2 * 2j)
    assert report.trace.only(kind="float64").num_instructions == 4


def test_only_a_lane_that_divides_by_zero_is_named() -> None:
    divided = kernel("a, b", "if t > 2:\n    a[t] = a[t] / b[t]")
    a, b = np.ones(32, np.complex64), np.zeros(32, np.complex64)
    with pytest.raises(ZeroDivisionError, match=r"thread 3 .* complex number by zero"):
        launch(divided, 1, 32, a, b)
    b[3:] = 2j
    launch(divided, 1, 32, a, b)
    assert a.tolist() == [1] * 3 + [-0.5j] * 29
