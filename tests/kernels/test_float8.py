"""Numbers as the kernels keep them: 8 bits are decoded, vecs widened, and each NaN comes out."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from numba import cuda

from pa_tutorial.checks.ladder import backend_named
from pa_tutorial.kernels import vectors
from pa_tutorial.kernels.cuda_launch import as_stored
from pa_tutorial.kernels.dtypes import SCALAR_TYPES, TO_FLOAT
from pa_tutorial.kernels.triton.backend import why_absent
from pa_tutorial.paging.layouts import by_token
from pa_tutorial.paging.quantization import AS_INTEGERS, FLOAT8
from simt import Unsupported, launch
from simt.ptx import run_ptx
from tests.kernels.kernel_inputs import float8_step, require_float8_right

if why_absent() is None:
    import triton
    import triton.language as tl

    from pa_tutorial.kernels.triton.decode import decoded
    from pa_tutorial.kernels.triton.interpreter import interpret

    @triton.jit
    def decode_codes(numbers_ptr, stored_ptr):
        i = tl.arange(0, 256)
        tl.store(numbers_ptr + i, decoded(tl.load(stored_ptr + i)))


each_type = pytest.mark.parametrize("dtype", FLOAT8, ids=str)
by_both = pytest.mark.parametrize(
    "run", [launch, pytest.param(run_ptx, marks=pytest.mark.needs("numba-cuda"))]
)


def require_same(numbers: torch.Tensor, expected: torch.Tensor) -> None:
    """To the last bit, and the sign of zeros; NaN of any bits."""
    torch.testing.assert_close(numbers, expected, rtol=0, atol=0, equal_nan=True)
    is_number = ~expected.isnan()
    assert torch.equal(numbers.signbit()[is_number], expected.signbit()[is_number])


@each_type
@by_both
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
@each_type
def test_every_code_is_decoded_in_triton(dtype: torch.dtype) -> None:
    stored, numbers = torch.arange(256).to(torch.uint8), torch.empty(256)
    codes = stored.view(AS_INTEGERS[dtype])
    interpret(decode_codes, (1, 1, 1), numbers_ptr=numbers, stored_ptr=codes)
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


# Of 16 and 32 bits, alone and in vecs ------------------------------------------------------------


@pytest.mark.parametrize("dtype", SCALAR_TYPES, ids=str)
def test_an_element_is_what_torch_makes_of_it(dtype: torch.dtype) -> None:
    """To the last bit: cut off in place of rounded, a bfloat16 is well within the cases' bounds.
    Of any bits, and next to the middle between two bfloat16."""
    _, to_float, from_float = SCALAR_TYPES[dtype]

    @cuda.jit
    def kernel(stored, back, values):
        i = cuda.grid(1)
        stored[i] = from_float(values[i])
        back[i] = to_float(stored[i])

    bits = np.random.default_rng(0).integers(0, 2**32, 2048, dtype=np.uint32)
    ties = bits & 0xFFFF0000 | np.resize(np.uint32([0x7FFF, 0x8000, 0x8001, 0]), 2048)
    values = torch.from_numpy(np.concatenate([bits, ties]).view(np.float32))
    stored, back = torch.empty(len(values), dtype=dtype), torch.empty(len(values))
    with np.errstate(over="ignore", invalid="ignore"):  # most numbers are no float16
        launch(kernel, len(values) // 128, 128, as_stored(stored), back, values)
    same = {"rtol": 0, "atol": 0, "equal_nan": True}
    torch.testing.assert_close(stored, values.to(dtype), **same)
    torch.testing.assert_close(back, values.to(dtype).float(), **same)


@by_both
@pytest.mark.parametrize(
    ("dtype", "count"), [(torch.float32, 1), (torch.float32, 4), (torch.bfloat16, 8)], ids=str
)
def test_a_vec_is_moved_as_it_is_and_widened(run: Callable, dtype: torch.dtype, count: int) -> None:
    """In the simulator and as compiled; the compiled stages try the others."""
    load, store, widen = vectors.vector_access(count)

    @cuda.jit
    def kernel(out, floats, a):
        vec = load(a, count)
        store(out, count, vec)
        widen(floats, vec)

    a = (torch.arange(1, 3 * count + 1) / 8 - 3).to(dtype)  # every element another number
    out, floats = torch.zeros_like(a), torch.zeros(count)
    run(kernel, 1, 1, as_stored(out), floats, as_stored(a))
    middle = a[count : 2 * count]
    assert torch.equal(out, torch.cat([torch.zeros(count), middle, torch.zeros(count)]).to(dtype))
    assert torch.equal(floats, middle.float())


def test_a_tuple_of_another_length_is_refused() -> None:
    """A compiler would move its first elements only, and say nothing."""
    load_4, *_ = vectors.vector_access(4)
    _, store_2, _ = vectors.vector_access(2)

    @cuda.jit
    def store_less(out, a):
        store_2(out, 0, load_4(a, 0))

    with pytest.raises(Unsupported, match=r"2 elements.* 4"):
        launch(store_less, 1, 1, np.zeros(4, np.float32), np.zeros(4, np.float32))
