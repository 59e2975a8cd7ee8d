"""Triton's interpreter for one call: nothing of it stays behind, and nothing before it matters."""

import os
import re
import subprocess
import sys
import warnings

import numpy as np
import pytest
import torch

from pa_tutorial.kernels.triton_backend import why_absent
from tests.kernels.kernel_inputs import is_right, prepare_triton, step

pytestmark = pytest.mark.triton

if why_absent() is None:
    import triton
    import triton.language as tl
    from triton.runtime.errors import InterpreterError
    from triton.runtime.jit import JITFunction

    from pa_tutorial.kernels.triton_compiled import compile_call
    from pa_tutorial.kernels.triton_interpreter import MemoryFault, interpret

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
        assert is_right(prepared.run(), arguments)
        assert "tl.dot" not in compile_call(prepared.partitions).ttgir


A_STEP = """
from tests.kernels.kernel_inputs import is_right, prepare_triton, step
import torch
for dtype in (torch.float32, torch.bfloat16):
    given = step(dtype=dtype, alibi=True)
    assert is_right(prepare_triton(**given, partition_size=8).run(), given)
"""


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
        (0, 1, "copy_kernel reads directly behind the last element of x_ptr, in program (0, 0, 0)"),
        (-1, 0, f"copy_kernel writes {item} bytes before the first element of out_ptr"),
    ):
        with pytest.raises(MemoryFault, match=re.escape(message)):
            copy(to, start)
