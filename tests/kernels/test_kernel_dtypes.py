"""Elements as a kernel keeps them: float32, float16 and bfloat16, to float32 and back."""

import importlib

import numpy as np
import pytest
import torch
from numba import cuda
from torch import Tensor
from wrong_examples import WrongExample, applied, run_cases

from pa_tutorial.kernels import dtypes
from pa_tutorial.kernels.running import as_stored
from pa_tutorial.simt import launch
from pa_tutorial.text_changes import Change

BFLOAT16 = (("cuda_naive", "decode/bfloat16"), ("cuda_v1", "decode/bfloat16"))


def numbers() -> Tensor:
    """[4096] float32: of any bits, and next to the middle between two bfloat16."""
    bits = np.random.default_rng(0).integers(0, 2**32, 2048, dtype=np.uint32)
    ties = bits & 0xFFFF0000 | np.resize(np.uint32([0x7FFF, 0x8000, 0x8001, 0]), 2048)
    return torch.from_numpy(np.concatenate([bits, ties]).view(np.float32))


def through_a_kernel(types, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """numbers() as `dtype`, and these as float32 again; `types` is a module like dtypes."""
    _, to_float, from_float = types.SCALAR_TYPES[dtype]

    @cuda.jit
    def kernel(stored, back, values):
        i = cuda.grid(1)
        stored[i] = from_float(values[i])
        back[i] = to_float(stored[i])

    values = numbers()
    stored, back = torch.empty(len(values), dtype=dtype), torch.empty(len(values))
    with np.errstate(over="ignore", invalid="ignore"):  # most numbers are no float16
        launch(kernel, len(values) // 128, 128, as_stored(stored), back, values)
    return stored, back


@pytest.mark.parametrize("dtype", dtypes.SCALAR_TYPES, ids=str)
def test_an_element_is_what_torch_makes_of_it(dtype: torch.dtype) -> None:
    stored, back = through_a_kernel(dtypes, dtype)
    same = {"rtol": 0, "atol": 0, "equal_nan": True}
    torch.testing.assert_close(stored, numbers().to(dtype), **same)
    torch.testing.assert_close(back, numbers().to(dtype).float(), **same)


def test_bfloat16_cut_off_in_place_of_rounded_is_seen_only_here() -> None:
    """In the cases it is about twice the error of rounding, far below the bound."""
    rounded = "return uint16((bits + uint32(0x7FFF) + last) >> uint32(16))"
    change = Change("kernels/dtypes.py", rounded, "return uint16(bits >> uint32(16))")
    with applied(WrongExample("cut_off", "why", (change,), BFLOAT16, passes=())):
        assert all(outcome.passed for outcome in run_cases(BFLOAT16).values())
        changed = importlib.import_module("pa_tutorial.kernels.dtypes")
        stored, _ = through_a_kernel(changed, torch.bfloat16)
    expected = numbers().to(torch.bfloat16)
    assert (stored != expected)[~expected.isnan()].float().mean() > 0.25
