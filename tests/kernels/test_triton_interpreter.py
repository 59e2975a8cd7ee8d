"""Triton's interpreter for one call: nothing of it stays behind, and nothing before it matters."""

import os
import re
import subprocess
import sys
import warnings

import numpy as np
import pytest
import torch

from pa_tutorial.exercises.exercise import compiled
from pa_tutorial.kernels.triton.backend import why_absent
from tests.kernels.kernel_inputs import prepare_triton, require_right, step

pytestmark = pytest.mark.triton

if why_absent() is None:
    import triton
    import triton.language as tl
    from triton.runtime.errors import InterpreterError
    from triton.runtime.jit import JITFunction

    from pa_tutorial.kernels.triton.compiled import compile_call
    from pa_tutorial.kernels.triton.interpreter import MemoryFault, interpret

    @triton.jit
    def failing_kernel(out_ptr):
        tl.store(out_ptr + tl.arange(0, 3), 1.0)  # 3 is no power of two

    @triton.jit
    def copy_kernel(out_ptr, x_ptr, to, start, N: tl.constexpr):
        i = tl.arange(0, N)
        tl.store(out_ptr + to + i, tl.load(x_ptr + start + i))


def test_warnings_and_numpy_are_as_before() -> None:
    """NumPy warns of a tile in which all scores are NaN: of 20 tokens, the first 16."""
    before = np.geterr(), list(warnings.filters)
    arguments = step()
    arguments["q"][0] = torch.nan
    assert prepare_triton(**arguments, tile_size=16).run()[0].isnan().all()
    assert (np.geterr(), list(warnings.filters)) == before


def test_a_kernel_can_still_be_compiled() -> None:
    """What is interpreted in one call is compiled in the next, also after a kernel that failed."""
    arguments = step(head_size=48)
    for _ in range(2):
        with pytest.raises(InterpreterError, match="power of 2"):
            interpret(failing_kernel, (1, 1, 1), out_ptr=torch.zeros(4))
        assert isinstance(tl.sum, JITFunction), "the language is as before"
        prepared = prepare_triton(**arguments)
        require_right(prepared.run(), arguments)
        assert "tl.dot" not in compile_call(prepared.partitions).ttgir


A_STEP = """
from tests.kernels.kernel_inputs import require_right, prepare_triton, step
import torch
for dtype in (torch.float32, torch.bfloat16):
    given = step(dtype=dtype, alibi=True)
    require_right(prepare_triton(**given, partition_size=8).run(), given)
"""


@pytest.mark.rest("test_ladder.py: the stage triton, imported first")
@pytest.mark.parametrize("asked", [{}, {"TRITON_INTERPRET": "1"}], ids=["alone", "asked"])
@pytest.mark.parametrize("before", ["", "import torch._dynamo"])
def test_a_step_runs_whatever_was_imported_before(before: str, asked: dict[str, str]) -> None:
    """Triton's own choice is made when it is imported, and torch may have done that already."""
    path = os.pathsep.join(filter(None, sys.path))
    environment = os.environ | {"PYTHONPATH": path} | asked
    subprocess.run([sys.executable, "-c", before + A_STEP], env=environment, check=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_one_element_too_many_is_a_fault(dtype: torch.dtype) -> None:
    """Also where a neighbour's memory lies there."""
    memory = torch.zeros(4, 10, dtype=dtype)
    x, out = memory[1, 1:9], memory[2, 1:9]

    def copy(to: int, start: int) -> None:
        interpret(copy_kernel, (1, 1, 1), out_ptr=out, x_ptr=x, to=to, start=start, N=8)

    copy(0, 0)
    item = dtype.itemsize
    for to, start, message in (
        (0, 1, "copy_kernel reads directly after the last element of x_ptr, in program (0, 0, 0)"),
        (-1, 0, f"copy_kernel writes {item} bytes before the first element of out_ptr"),
    ):
        with pytest.raises(MemoryFault, match=re.escape(message)):
            copy(to, start)


# 16- and 8-bit floats ----------------------------------------------------------------------------

X, Y = torch.tensor([1.0, 2, 3, -4]), torch.tensor([0.5, 3, -1, 0.25])
KERNEL = """
@triton.jit
def add(a, b):
    return a + b

@triton.jit
def kernel(out_ptr, x_ptr, y_ptr):
    i = tl.arange(0, 4)
    x, y = tl.load(x_ptr + i), tl.load(y_ptr + i)
    tl.store(out_ptr + i, {})
"""


def evaluate(expression: str, x: torch.Tensor, out: torch.dtype = torch.float32) -> torch.Tensor:
    """What a kernel stores, of tiles x and y of four numbers."""
    names, given = {"triton": triton, "tl": tl}, {"x_ptr": x, "y_ptr": Y.to(x.dtype)}
    exec(compiled(KERNEL.format(expression), f"<{expression}>"), names)
    interpret(names["kernel"], (1, 1, 1), out_ptr=(out := torch.zeros(4, dtype=out)), **given)
    return out


ARITHMETIC = [
    *("x + y", "x - y", "x * y", "x + 1", "x * 0.5", "-x", "x < y", "x == y", "tl.fma(x, y, x)"),
    *("tl.maximum(x, y)", "tl.minimum(x, y)", "tl.clamp(x, -1.0, 2.0)", "tl.where(x > 0, x, y)"),
    *("tl.sum(x) + 0 * i", "tl.argmax(x, 0) + 0 * i", "tl.reduce(x, 0, add) + 0 * i"),
    *("tl.cumsum(x)", "tl.cumprod(x)", "tl.sort(x)", "tl.atomic_add(x_ptr + i, y)"),
]


@pytest.mark.parametrize("expression", ARITHMETIC)
def test_arithmetic_on_the_bits_of_bfloat16_is_refused_with_the_line(expression: str) -> None:
    line = re.escape(f"line 10, `tl.store(out_ptr + i, {expression})`: Triton's interpreter would")
    with pytest.raises(InterpreterError, match=f"{line}.*bits of bf16.*to.tl.float32"):
        evaluate(expression, X.bfloat16())


@pytest.mark.parametrize("expression", ["x.to(tl.float32)", "y.to(tl.float8e5)", "x + y"])
def test_only_moving_is_allowed_for_8_bit_floats(expression: str) -> None:
    x = X if "y." in expression else X.to(torch.float8_e5m2)
    with pytest.raises(InterpreterError, match=r"bits of fp8e5.*in torch, before the call"):
        evaluate(expression, x)
    x = X.to(torch.float8_e5m2)
    assert evaluate("tl.flip(x)", x, x.dtype).float().tolist() == X.flip(0).tolist()


MOVED = {
    "x.to(tl.float32)": X,
    "x.to(tl.float16)": X,
    "x.to(tl.int32)": X,
    "x / y": X / Y,  # Triton divides float32
    "tl.max(x) + 0 * i": X.max().expand(4),
    "tl.abs(x)": X.abs(),
    "tl.where(i > 1, x, y)": torch.tensor([*Y[:2], *X[2:]]),
    "tl.trans(tl.reshape(x, 2, 2)).reshape(4)": X[[0, 2, 1, 3]],
    "(i - 1).to(tl.bfloat16)": torch.arange(4) - 1.0,
    "tl.full([4], 0.1, tl.bfloat16)": torch.full((4,), 0.1).bfloat16(),
}


@pytest.mark.parametrize(("expression", "expected"), MOVED.items())
def test_bfloat16_is_moved_and_converted_by_its_value(
    expression: str, expected: torch.Tensor
) -> None:
    assert evaluate(expression, X.bfloat16()).tolist() == expected.tolist()


# Between two numbers of bfloat16, 1/128 apart: below, at and above the middle; no numbers.
TIES = (
    torch.tensor([1 + 1 / 256, 1 + 3 / 256, 1.001, -1.0069]),
    torch.tensor([torch.inf, torch.nan, 3.4e38, 1e-40]),
)


@pytest.mark.parametrize("x", TIES, ids=("ties", "extremes"))
@pytest.mark.parametrize("how", ["", ", fp_downcast_rounding='rtne'"], ids=("usual", "rtne"))
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_a_bfloat16_is_rounded_to_nearest_even(
    x: torch.Tensor, how: str, dtype: torch.dtype
) -> None:
    found = evaluate(f"x.to(tl.bfloat16{how})", x.to(dtype), torch.bfloat16)
    assert torch.equal(found.view(torch.int16), x.bfloat16().view(torch.int16))


def test_the_ptx_rounds_the_output_to_nearest_as_the_interpreter_does() -> None:
    launch = prepare_triton(**step(dtype=torch.bfloat16))
    assert compile_call(launch.reduce).count("cvt.rn.bf16")
    launch.run()
    merged = launch.merged()
    exact = (merged.acc.double() / merged.l.double()[..., None]).float()
    assert torch.equal(launch.out, exact.bfloat16())
