"""What Numba emits for its own functions, and for arrays that aren't arguments."""

import math
import operator
from collections.abc import Callable, Iterable

import numpy as np
import pytest
from numba import cuda

from simt.ptx import PtxError, PtxFault, run_ptx
from tests.simt.kernels.example import EXAMPLES, from_text
from tests.simt.ptx.small_kernels import text_of
from tests.simt.ptx.test_ptx_arithmetic import floats, near

DRAW = np.random.default_rng(0)
# Kernels that call functions which Numba links when it launches: for grid.sync() and reshape
CALL_OTHERS = {
    *("each_row_after_the_one_above", "shared_memory_outlives_the_wait"),
    "other_shapes_and_types",
}
# Files whose kernels show what Python may say: once compiled, it is said in no other way.
OF_PYTHON = ("control", "language", "memory", "records")
REST = pytest.mark.rest("the kernels of the other files, and test_simt_kernels.py")
COMPILED = [
    pytest.param(
        name, marks=[REST] if (one.kernel.py_func.__module__ or "").endswith(OF_PYTHON) else []
    )
    for name, one in EXAMPLES.items()
]


@pytest.mark.needs("numba-cuda")
@pytest.mark.parametrize("name", COMPILED)
def test_the_compiled_kernel_has_the_same_answer(name: str) -> None:
    example = EXAMPLES[name]
    args = example.draw()
    options = {"shared_bytes": example.shared_bytes}
    if name in CALL_OTHERS:
        with pytest.raises(
            PtxError, match=r"has no such function: call.uni .*(cudaCGGet|nocopy_reshape)"
        ):
            run_ptx(example.kernel, example.grid, example.block, *args, **options)
        return
    run_ptx(example.kernel, example.grid, example.block, *args, **options)
    for position, expected in example.answer(*example.draw()).items():
        np.testing.assert_allclose(args[position], expected, rtol=example.rtol, atol=0)


def compiled(expressions: Iterable[str], result: type, *arrays: np.ndarray) -> np.ndarray:
    """[expressions, items] what a kernel makes of a, b and c, item by item."""
    names = "abc"[: len(arrays)]
    parameters = ", ".join(["out", *(f"all_{name}" for name in names)])
    lines = ["i = cuda.grid(1)", *(f"{name} = all_{name}[i]" for name in names)]
    lines += [f"out[{n}, i] = {expression}" for n, expression in enumerate(expressions)]
    out = np.zeros((len(lines) - 1 - len(names), len(arrays[0])), result)
    kernel = from_text("kernel", parameters, "\n".join(lines), {"math": math})
    run_ptx(kernel, 1, len(arrays[0]), out, *arrays)
    return out


@pytest.mark.needs("numba-cuda")
def test_angles_of_any_size() -> None:
    """Large ones take tables of 2 / pi, carries, and memory of their own."""
    a = floats(np.float64)
    a[:100] = near(np.float64)[:100]
    a[:5] = 0, 1e22, 2.0**1023, math.pi, 1e5
    got = compiled(["math.sin(a)", "math.cos(a)", "math.tan(a)"], np.float64, a)
    np.testing.assert_allclose(got, [np.sin(a), np.cos(a), np.tan(a)], rtol=1e-15, atol=0)


# What each function of cuda.fp16 is to compute, in float64; the result is rounded once.
HALVES: dict[str, Callable] = {
    "hadd": operator.add, "hsub": operator.sub, "hmul": operator.mul, "hdiv": operator.truediv,
    "hmin": np.fmin, "hmax": np.fmax, "heq": operator.eq, "hne": operator.ne, "hlt": operator.lt,
    "hle": operator.le, "hgt": operator.gt, "hge": operator.ge, "hfma": lambda a, b, c: a * b + c,
    "hneg": operator.neg, "habs": abs, "hceil": np.ceil, "hfloor": np.floor, "htrunc": np.trunc,
    "hrint": np.rint, "hsin": np.sin, "hcos": np.cos, "htanh": np.tanh, "hsqrt": np.sqrt,
    "hexp": np.exp, "hexp2": np.exp2, "hexp10": lambda a: 10.0**a, "hlog": np.log,
    "hlog2": np.log2, "hlog10": np.log10, "hrcp": lambda a: 1 / a,
    "hrsqrt": lambda a: 1 / np.sqrt(a),
}  # fmt: skip


@pytest.mark.needs("numba-cuda")
def test_functions_of_halves() -> None:
    each = [near(np.float16, 64) for _ in range(3)]
    for array in each:
        array[:4] = 0, 1, math.inf, math.nan
        array[16:32] = each[0][16:32]
    counts = {"hfma": 3, **dict.fromkeys(list(HALVES)[:12], 2)}
    calls = [f"cuda.fp16.{name}({', '.join('abc'[: counts.get(name, 1)])})" for name in HALVES]
    for (name, exact), got in zip(HALVES.items(), compiled(calls, np.float16, *each), strict=True):
        given = (array.astype(np.float64) for array in each[: counts.get(name, 1)])
        with np.errstate(all="ignore"):
            want = exact(*given).astype(np.float16)
        np.testing.assert_array_equal(got, want, name)


@pytest.mark.needs("numba-cuda")
def test_operators_of_halves_and_a_loop_that_they_end() -> None:
    """What they compute lies in memory between; the loop isn't taken for an endless one."""

    @cuda.jit
    def count_up(out, a):
        i = cuda.grid(1)
        total, step = a[i], a[32]
        while total < a[33]:
            total = total * a[34] + step
        out[i] = -total / a[35] - step

    a = np.arange(36).astype(np.float16)
    a[32:] = 1, 1000, 1, 2
    out = np.zeros(32, np.float16)
    run_ptx(count_up, 1, 32, out, a)
    assert out.tolist() == [-501.0] * 32


TABLE = DRAW.standard_normal((5, 7)).astype(np.float32)


@pytest.mark.needs("numba-cuda")
def test_an_array_that_is_no_argument() -> None:
    body = "t = cuda.grid(1)\nout[t] = TABLE[a[t], t % 7] + cuda.const.array_like(TABLE)[a[t], 0]"
    kernel = from_text("kernel", "out, a", body, {"TABLE": TABLE})
    out, rows = np.zeros(32, np.float32), DRAW.integers(0, 5, 32)
    run_ptx(kernel, 1, 32, out, rows)
    assert np.array_equal(out, TABLE[rows, np.arange(32) % 7] + TABLE[rows, 0])
    rows[0] = 5
    with pytest.raises(PtxFault, match=r"memory: thread 0 .* just past the end of _cudapy_cmem"):
        run_ptx(kernel, 1, 32, out, rows)


VARIABLES = {
    ".global .align 4 .b8 v[8] = {1, 0, 0, 0, 255, 0xFF, 0xFF};": [1, 0xFFFFFF],
    ".visible .const .f32 v[3] = {0f3F800000, -2, 0.5};": [0x3F800000, 0xC0000000],
    ".const .align 8 .u64 v = 0x500000007;": [7, 5],
    ".global .s32 v[][2] = {{-1, 2}, {3, 4}};": [0xFFFFFFFF, 2],
    ".weak .global .align 4 .u32 v[2];": [0, 0],
}


@pytest.mark.parametrize("declaration", VARIABLES)
def test_a_variable_outside_of_functions_has_its_first_values(declaration: str) -> None:
    """By its name, as an address in its space, and as a generic one."""
    space = "const" if ".const" in declaration else "global"
    body = (
        f"ld.{space}.u32 %r3, [v]; mov.u64 %rd5, v; ld.{space}.u32 %r4, [%rd5+4]; "
        f"cvta.{space}.u64 %rd5, %rd5; ld.u32 %r5, [%rd5]; "
        "st.global.v2.u32 [%rd11], {%r3, %r4}; st.global.u32 [%rd11+8], %r5;"
    )
    array = np.zeros(3, np.uint32)
    text = text_of(body).replace(".visible .entry", f"{declaration}\n.visible .entry")
    run_ptx(text, 1, 1, array)
    low, high = VARIABLES[declaration]
    assert array.tolist() == [low, high, low]


def test_a_variable_outside_of_functions_may_be_written_and_starts_anew_in_each_run() -> None:
    body = "atom.global.add.u32 %r3, [count+4], 1; st.global.u32 [%rd1], %r3;"
    text = text_of(body).replace(
        ".visible .entry", ".global .u32 count[2] = {9, 5};\n.visible .entry"
    )
    for _ in range(2):
        array = np.zeros(4, np.uint32)
        run_ptx(text, 1, 4, array)
        assert array.tolist() == [5, 6, 7, 8]
    racing = text.replace("atom.global.add.u32 %r3, [count+4], 1", "st.global.u32 [count], %r0")
    with pytest.raises(PtxFault, match="race: thread 3"):
        run_ptx(racing, 1, 4, array)
    outside = text.replace("count+4", "count+8")
    with pytest.raises(PtxFault, match=r"memory: .* just past the end of count"):
        run_ptx(outside, 1, 4, array)


@pytest.mark.parametrize(("declaration", "what"), [
    (".extern .global .u32 v;", "v is .extern"),
    (".global .u64 v = generic(kernel);", "v isn't an array of numbers"),
    (".global .u8 v[2] = {1, 2, 3};", "v isn't an array of numbers"),
    (".global .u32 v[2][2] = {{5}, {7, 8}};", "v isn't an array of numbers"),
    (".global .b128 v;", "the type .b128 isn't known"),
])  # fmt: skip
def test_a_variable_that_cannot_be_had_is_refused_where_it_is_used(
    declaration: str, what: str
) -> None:
    def run_with(body: str) -> None:
        text = text_of(body).replace(".extern .shared", f"{declaration}\n.extern .shared")
        run_ptx(text, 1, 1, np.zeros(1, np.uint32))

    run_with(".reg .u32 v_3; mov.u32 v_3, 0;")
    with pytest.raises(PtxError, match=f"line 5 of the PTX: {what}"):
        run_with("ld.global.u8 %r3, [v];")
