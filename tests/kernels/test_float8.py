"""An 8-bit cache in the kernels: each code is decoded, and half as many bytes move."""

import pytest
import torch
from numba import cuda

from pa_tutorial.attention.step import DecodeStep
from pa_tutorial.checks.ladder import backend_named
from pa_tutorial.kernels.cuda_launch import as_stored
from pa_tutorial.kernels.dtypes import TO_FLOAT
from pa_tutorial.kernels.triton.backend import call_of, why_absent
from pa_tutorial.paging.layouts import by_token
from pa_tutorial.paging.quantization import AS_INTEGERS, FLOAT8
from simt import launch
from simt.ptx import run_ptx
from simt.traffic import costs, different_sectors
from tests.kernels.kernel_inputs import SCALES, float8_step, problem, require_float8_right
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


def decoding(dtype: torch.dtype) -> tuple[object, torch.Tensor, torch.Tensor, torch.Tensor]:
    """A kernel that decodes one code per thread, its arguments, and what torch makes of them."""
    to_float = TO_FLOAT[dtype]

    @cuda.jit
    def kernel(numbers, stored):
        i = cuda.grid(1)
        numbers[i] = to_float(stored[i])

    stored = torch.arange(256).to(torch.uint8).view(dtype)
    return kernel, torch.empty(256), as_stored(stored), stored.float()


def require_same(numbers: torch.Tensor, expected: torch.Tensor) -> None:
    """To the last bit, and the sign of zeros; NaN of any bits."""
    torch.testing.assert_close(numbers, expected, rtol=0, atol=0, equal_nan=True)
    is_number = ~expected.isnan()
    assert torch.equal(numbers.signbit()[is_number], expected.signbit()[is_number])


@each_type
def test_every_code_is_decoded_in_the_simulator(dtype: torch.dtype) -> None:
    kernel, numbers, stored, expected = decoding(dtype)
    launch(kernel, 2, 128, numbers, stored)
    require_same(numbers, expected)


@pytest.mark.needs("numba-cuda")
@pytest.mark.parametrize("compute_capability", [(8, 0), (9, 0)], ids=["sm_80", "sm_90"])
@each_type
def test_every_code_is_decoded_as_compiled(
    dtype: torch.dtype, compute_capability: tuple[int, int]
) -> None:
    kernel, numbers, stored, expected = decoding(dtype)
    run_ptx(kernel, 2, 128, numbers, stored, compute_capability=compute_capability)
    require_same(numbers, expected)


@pytest.mark.triton
@pytest.mark.parametrize(
    "capability", [None, (8, 0), (9, 0)], ids=["interpreter", "sm_80", "sm_90"]
)
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


@pytest.mark.parametrize(
    ("dtype", "block_size"),
    [(torch.float16, 16), (torch.float32, 8), (torch.bfloat16, 32)],
    ids=str,
)
@pytest.mark.parametrize("cached", FLOAT8, ids=str)
def test_wide_loads_of_an_8_bit_cache_bring_the_right_numbers(
    dtype: torch.dtype, block_size: int, cached: torch.dtype
) -> None:
    """Vecs of 1 to 8 bytes of K, and of 4 or 8 of V."""
    step = float8_step(dtype, cached, block_size=block_size)
    require_float8_right(backend_named("cuda_v1_vector").prepare(step).run(), step)


def traffic(step: DecodeStep) -> dict[str, tuple[int, int, int]]:
    """Of k_cache and v_cache: transactions, their sectors, and different sectors."""
    report = backend_named("cuda_v1_vector").prepare(step).simulate(trace="all", checks=())
    found = {}
    for name in ("k_cache", "v_cache"):
        part = report.trace.only(array=name)
        num_sectors = int(costs(part)["sectors"].sum())
        found[name] = part.num_instructions, num_sectors, different_sectors(part)
    return found


def test_k_and_v_of_an_8_bit_cache_are_half_as_many_sectors() -> None:
    """At the reference sizes; of as many transactions, each half as wide.

    A group reads 8 bytes of a token's 16 and, in its next transaction, the other 8 from the same
    sector. So transactions of K touch as many sectors as with float16, every sector twice.
    """
    sizes = {"seq_lens": (40,), "head_size": 128, "num_heads": 2, "dtype": torch.float16}
    wide = traffic(problem(**sizes).paged("vllm"))
    narrow = traffic(problem(**sizes, cache_dtype=FLOAT8[0], **SCALES).paged("vllm"))
    for name, (num_transactions, num_sectors, num_different) in wide.items():
        touched = num_sectors if name == "k_cache" else num_sectors // 2
        assert narrow[name] == (num_transactions, touched, num_different // 2), name


def poisoned(name: str, dtype: torch.dtype, layout: str) -> tuple[DecodeStep, torch.Tensor]:
    """NaN in the last token of sequence 0, KV head 1; where it comes out as NaN."""
    step = float8_step(torch.float16, dtype, layout)
    k, v = by_token(step.k_cache, step.v_cache)
    block, offset = step.block_tables[0, 19 // 16], 19 % 16
    nan = torch.tensor(float("nan")).to(dtype)
    expected = torch.zeros(step.q.shape, dtype=torch.bool)
    if name == "k_cache":
        k[block, offset, 1, ..., 3] = nan
        expected[0, 2:] = True
    else:
        v[block, offset, 1, 19] = nan
        expected[0, 2:, 19] = True
    return step, expected


@pytest.mark.parametrize(
    "stage",
    [
        *("cuda_v1_vector", "paged_gather", "paged_online"),
        pytest.param("triton", marks=pytest.mark.triton),
    ],
)
@pytest.mark.parametrize("name", ["k_cache", "v_cache"])
@each_type
def test_nan_in_a_used_slot_comes_out_and_nan_in_an_unused_one_does_not(
    name: str, dtype: torch.dtype, stage: str
) -> None:
    """In K it reaches all of its heads' numbers, in V one number of each."""
    step, expected = poisoned(name, dtype, backend_named(stage).layout)
    for cache in (step.k_cache, step.v_cache):
        assert cache.float().isnan().sum() > 1000  # the unused slots
    out = backend_named(stage).prepare(step).run()
    assert torch.equal(out.isnan(), expected)
