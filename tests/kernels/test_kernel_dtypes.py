"""Elements as a kernel keeps them: float32, float16 and bfloat16, to float32 and back."""

import numpy as np
import pytest
import torch
from numba import cuda
from torch import Tensor

from pa_tutorial.kernels import dtypes
from pa_tutorial.kernels.cuda_launch import as_stored
from simt import launch


def numbers() -> Tensor:
    """[4096] float32: of any bits, and next to the middle between two bfloat16."""
    bits = np.random.default_rng(0).integers(0, 2**32, 2048, dtype=np.uint32)
    ties = bits & 0xFFFF0000 | np.resize(np.uint32([0x7FFF, 0x8000, 0x8001, 0]), 2048)
    return torch.from_numpy(np.concatenate([bits, ties]).view(np.float32))


@pytest.mark.parametrize("dtype", dtypes.SCALAR_TYPES, ids=str)
def test_an_element_is_what_torch_makes_of_it(dtype: torch.dtype) -> None:
    """To the last bit: cut off in place of rounded, a bfloat16 is well within the cases' bounds."""
    _, to_float, from_float = dtypes.SCALAR_TYPES[dtype]

    @cuda.jit
    def kernel(stored, back, values):
        i = cuda.grid(1)
        stored[i] = from_float(values[i])
        back[i] = to_float(stored[i])

    values = numbers()
    stored, back = torch.empty(len(values), dtype=dtype), torch.empty(len(values))
    with np.errstate(over="ignore", invalid="ignore"):  # most numbers are no float16
        launch(kernel, len(values) // 128, 128, as_stored(stored), back, values)
    same = {"rtol": 0, "atol": 0, "equal_nan": True}
    torch.testing.assert_close(stored, values.to(dtype), **same)
    torch.testing.assert_close(back, values.to(dtype).float(), **same)
