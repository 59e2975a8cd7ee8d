"""The Triton kernels in the interpreter, with sizes that the ladder does not ask for; and that one:
nothing of it stays behind after a call, and nothing before it matters."""

import os
import re
import subprocess
import sys
import warnings

import numpy as np
import pytest
import torch

from pa_tutorial.exercises.exercise import compiled
from pa_tutorial.kernels.triton.backend import PARTITIONS_AT_ONCE, why_absent
from tests.kernels.kernel_inputs import prepare, require_right, step
from tests.triton_trials import TRIALS

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


@pytest.mark.parametrize(
    ("head_size", "dtype", "block_size", "tile_size", "partition_size"),
    [
        (1, torch.float32, 1, 64, 512),
        (33, torch.float16, 5, 16, 512),
        (129, torch.bfloat16, 24, 32, 512),
        (16, torch.float32, 24, 256, 512),
        (16, torch.float32, 8, 16, 7),
        (16, torch.float32, 8, 16, 2**30),
    ],
)
def test_any_head_block_tile_and_partition_size(
    head_size: int, dtype: torch.dtype, block_size: int, tile_size: int, partition_size: int
) -> None:
    multiple = {"head_size": head_size // 8 * 8 + 8, "block_size": block_size}
    arguments = step(seq_lens=(37, 1, 24), alibi=True, dtype=dtype, **multiple)
    for name in ("q", "k_cache", "v_cache"):
        arguments[name] = arguments[name][..., :head_size].contiguous()
    sizes = {"tile_size": tile_size, "partition_size": partition_size}
    require_right(prepare("triton", **arguments, **sizes).run(), arguments)


@pytest.mark.parametrize("num_partitions", [2, 15, 16, 17, 33])
def test_any_number_of_partitions_is_merged(num_partitions: int) -> None:
    """The second kernel takes 16 at once. The scores rise, so the last ones have the weight."""
    assert PARTITIONS_AT_ONCE == 16
    arguments = step(seq_lens=(4 * num_partitions - 1,), num_heads=2, num_kv_heads=1, alibi=True)
    arguments["alibi_slopes"].fill_(0.5)
    prepared = prepare("triton", **arguments, partition_size=4, tile_size=16)
    assert prepared.partitions.grid == (1, 1, num_partitions)
    require_right(prepared.run(), arguments)


@pytest.mark.parametrize("name", TRIALS)
def test_every_trial_finds_nothing_wrong(name: str) -> None:
    """The wrong examples are tried on them too: see tests/wrong_examples.py."""
    assert TRIALS[name]() == ""


def test_sizes_reach_the_kernels_as_a_gpu_would_be_asked_for_them() -> None:
    sizes = {"tile_size": 32, "num_warps": 8, "num_stages": 5}
    call = prepare("triton", **step(num_heads=6, head_size=80), **sizes).partitions
    asked = {"num_warps": 8, "num_stages": 5, "TILE_SIZE": 32, "enable_fp_fusion": True}
    assert asked.items() <= call.for_gpu.items()
    assert call.constants["NUM_QUERIES_PADDED"] == 4, "three query heads, and no more than needed"


# The interpreter ---------------------------------------------------------------------------------


def test_warnings_and_numpy_are_as_before() -> None:
    """NumPy warns of a tile in which all scores are NaN: of 20 tokens, the first 16."""
    before = np.geterr(), list(warnings.filters)
    arguments = step()
    arguments["q"][0] = torch.nan
    assert prepare("triton", **arguments, tile_size=16).run()[0].isnan().all()
    assert (np.geterr(), list(warnings.filters)) == before


def test_a_kernel_can_still_be_compiled() -> None:
    """What is interpreted in one call is compiled in the next, also after a kernel that failed."""
    arguments = step(head_size=48)
    for _ in range(2):
        with pytest.raises(InterpreterError, match="power of 2"):
            interpret(failing_kernel, (1, 1, 1), out_ptr=torch.zeros(4))
        assert isinstance(tl.sum, JITFunction), "the language is as before"
        prepared = prepare("triton", **arguments)
        require_right(prepared.run(), arguments)
        assert "tl.dot" not in compile_call(prepared.partitions).ttgir


@pytest.mark.rest("test_ladder.py: the stage triton, imported first")
@pytest.mark.parametrize(
    ("before", "asked"), [("", {"TRITON_INTERPRET": "1"}), ("import torch._dynamo; ", {})]
)
def test_a_step_runs_whatever_was_imported_before(before: str, asked: dict[str, str]) -> None:
    """Triton's own choice is made when it is imported, and torch may have done that already."""
    code = "from tests.kernels.kernel_inputs import *; given = step(dtype=torch.bfloat16); "
    code += "require_right(prepare('triton', **given).run(), given)"
    subprocess.run([sys.executable, "-c", before + code], env=os.environ | asked, check=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_one_element_too_many_is_a_fault(dtype: torch.dtype) -> None:
    """Also where a neighbour's memory lies there."""
    memory, item = torch.zeros(4, 10, dtype=dtype), dtype.itemsize
    arguments = {"out_ptr": memory[2, 1:9], "x_ptr": memory[1, 1:9], "N": 8}
    interpret(copy_kernel, (1, 1, 1), **arguments, to=0, start=0)
    for to, start, where in (
        (0, 1, "directly after the last element of x_ptr"),
        (-1, 0, f"{item} bytes before the first element of out_ptr"),
    ):
        with pytest.raises(MemoryFault, match=where):
            interpret(copy_kernel, (1, 1, 1), **arguments, to=to, start=start)


X, Y = torch.tensor([1.0, 2, 3, -4]), torch.tensor([0.5, 3, -1, 0.25])
KERNEL = """
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


@pytest.mark.parametrize("expression", ["-x", "x < y", "tl.fma(x, y, x)", "tl.sum(x) + 0 * i"])
def test_arithmetic_on_the_bits_of_bfloat16_is_refused_with_the_line(expression: str) -> None:
    line = re.escape(f"line 6, `tl.store(out_ptr + i, {expression})`")
    with pytest.raises(InterpreterError, match=f"{line}.*bits of bf16.*to.tl.float32"):
        evaluate(expression, X.bfloat16())


def test_only_moving_is_allowed_for_8_bit_floats() -> None:
    x = X.to(torch.float8_e5m2)
    for expression, of in (("x.to(tl.float32)", x), ("x + y", x), ("y.to(tl.float8e5)", X)):
        with pytest.raises(InterpreterError, match=r"bits of fp8e5.*in torch"):
            evaluate(expression, of)
    assert evaluate("tl.flip(x)", x, x.dtype).float().tolist() == X.flip(0).tolist()


MOVED = {
    "x.to(tl.float32)": X,
    "x / y": X / Y,  # Triton divides float32
    "tl.max(x) + 0 * i": X.max().expand(4),
    "tl.abs(x)": X.abs(),
    "tl.trans(tl.reshape(x, 2, 2)).reshape(4)": X[[0, 2, 1, 3]],
    "tl.full([4], 0.1, tl.bfloat16)": torch.full((4,), 0.1).bfloat16(),
}


@pytest.mark.parametrize(("expression", "expected"), MOVED.items())
def test_bfloat16_is_moved_and_converted_by_its_value(
    expression: str, expected: torch.Tensor
) -> None:
    assert evaluate(expression, X.bfloat16()).tolist() == expected.tolist()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_a_bfloat16_is_rounded_to_nearest_even(dtype: torch.dtype) -> None:
    """Between two numbers, 1/128 apart: below, at and above the middle; no numbers."""
    for x in (
        torch.tensor([1 + 1 / 256, 1 + 3 / 256, 1.001, -1.0069]),
        torch.tensor([torch.inf, torch.nan, 3.4e38, 1e-40]),
    ):
        found = evaluate("x.to(tl.bfloat16)", x.to(dtype), torch.bfloat16)
        assert torch.equal(found.view(torch.int16), x.bfloat16().view(torch.int16))
