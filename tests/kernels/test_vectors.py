"""Elements as a kernel keeps them, to float32 and back, alone and by loads of 4, 8 and 16 bytes."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from numba import cuda

from pa_tutorial.kernels import dtypes, vectors
from pa_tutorial.kernels.cuda_launch import as_stored
from simt import Unsupported, launch
from simt.ptx import run_ptx

pytestmark = pytest.mark.cuda_v1_vector


@pytest.mark.parametrize("dtype", dtypes.SCALAR_TYPES, ids=str)
def test_an_element_is_what_torch_makes_of_it(dtype: torch.dtype) -> None:
    """To the last bit: cut off in place of rounded, a bfloat16 is well within the cases' bounds.
    Of any bits, and next to the middle between two bfloat16."""
    _, to_float, from_float = dtypes.SCALAR_TYPES[dtype]

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


@pytest.mark.parametrize(
    "run", [launch, pytest.param(run_ptx, marks=pytest.mark.needs("numba-cuda"))]
)
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
