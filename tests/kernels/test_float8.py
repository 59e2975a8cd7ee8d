"""An 8-bit cache in the kernels: each code is decoded, each NaN comes out."""

from collections.abc import Callable

import pytest
import torch
from numba import cuda

from pa_tutorial.checks.ladder import backend_named
from pa_tutorial.kernels.dtypes import TO_FLOAT
from pa_tutorial.kernels.triton.backend import call_of, why_absent
from pa_tutorial.paging.layouts import by_token
from pa_tutorial.paging.quantization import AS_INTEGERS, FLOAT8
from simt import launch
from simt.ptx import run_ptx
from tests.kernels.kernel_inputs import float8_step, require_float8_right
from tests.kernels.test_ptx_triton import run_text

if why_absent() is None:
    import triton
    import triton.language as tl

    from pa_tutorial.kernels.triton.compiled import compile_call
    from pa_tutorial.kernels.triton.decode import decoded
    from pa_tutorial.kernels.triton.interpreter import interpret

    @triton.jit
    def decode_codes(numbers_ptr, stored_ptr):
        i = tl.arange(0, 256)
        tl.store(numbers_ptr + i, decoded(tl.load(stored_ptr + i)))


each_type = pytest.mark.parametrize("dtype", FLOAT8, ids=str)


def require_same(numbers: torch.Tensor, expected: torch.Tensor) -> None:
    """To the last bit, and the sign of zeros; NaN of any bits."""
    torch.testing.assert_close(numbers, expected, rtol=0, atol=0, equal_nan=True)
    is_number = ~expected.isnan()
    assert torch.equal(numbers.signbit()[is_number], expected.signbit()[is_number])


@each_type
@pytest.mark.parametrize(
    "run", [launch, pytest.param(run_ptx, marks=pytest.mark.needs("numba-cuda"))]
)
def test_every_code_is_decoded(run: Callable, dtype: torch.dtype) -> None:
    """By a thread each, in the simulator and as compiled."""
    to_float = TO_FLOAT[dtype]

    @cuda.jit
    def kernel(numbers, stored):
        i = cuda.grid(1)
        numbers[i] = to_float(stored[i])

    stored, numbers = torch.arange(256).to(torch.uint8), torch.empty(256)
    run(kernel, 2, 128, numbers, stored)
    require_same(numbers, stored.view(dtype).float())


@pytest.mark.triton
@pytest.mark.parametrize("capability", [None, (8, 0)], ids=["interpreter", "sm_80"])
@each_type
def test_every_code_is_decoded_in_triton(
    dtype: torch.dtype, capability: tuple[int, int] | None
) -> None:
    stored = torch.arange(256).to(torch.uint8).view(AS_INTEGERS[dtype])
    numbers = torch.empty(256)
    call = call_of(decode_codes, (1, 1, 1), {"numbers_ptr": numbers, "stored_ptr": stored})
    if capability is None:
        interpret(call.kernel, call.grid, **call.arguments)
    else:
        build = compile_call(call, capability)
        run_text(build.ptx, call, build.shared_bytes, "numbers_ptr")
    require_same(numbers, stored.view(dtype).float())


@each_type
def test_a_bfloat16_query_reads_blocks_of_32(dtype: torch.dtype) -> None:
    """The cases of the ladder have the other types and sizes."""
    step = float8_step(torch.bfloat16, dtype, block_size=32)
    require_float8_right(backend_named("cuda_v1_vector").prepare(step).run(), step)


STAGES = ("cuda_v1_vector", "paged_gather", "paged_online", "cpu")


@pytest.mark.parametrize("stage", [*STAGES, pytest.param("triton", marks=pytest.mark.triton)])
@pytest.mark.parametrize("name", ["k_cache", "v_cache"])
@each_type
def test_nan_in_a_used_slot_comes_out_and_nan_in_an_unused_one_does_not(
    name: str, dtype: torch.dtype, stage: str
) -> None:
    """In K it reaches all of its heads' numbers, in V one number of each. Here it is in the last
    token of sequence 0, KV head 1."""
    backend = backend_named(stage)
    step = float8_step(torch.float16, dtype, backend.layout)
    k, v = by_token(step.k_cache, step.v_cache)
    block, offset = step.block_tables[0, 19 // 16], 19 % 16
    expected = torch.zeros(step.q.shape, dtype=torch.bool)
    if name == "k_cache":
        k[block, offset, 1, ..., 3] = torch.nan
        expected[0, 2:] = True
    else:
        v[block, offset, 1, 19] = torch.nan
        expected[0, 2:, 19] = True
    sizes = {"num_shares": 3} if stage == "cpu" else {}  # in one partition of several
    assert torch.equal(backend.prepare(step, **sizes).run().isnan(), expected)
