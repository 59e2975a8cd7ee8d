"""An 8-bit cache: what is stored of a number, what is read back, and where it is."""

import pytest
import torch
from torch import Tensor

from pa_tutorial.paging.kv_cache import PagedKVCache
from pa_tutorial.paging.layouts import LAYOUTS
from pa_tutorial.paging.quantization import FLOAT8, Scale, quantized
from tests.cache_trials import TRIALS

each_type = pytest.mark.parametrize("dtype", FLOAT8, ids=str)


def finite(dtype: torch.dtype) -> Tensor:
    """The codes of all numbers with a sign of 0, in order."""
    codes = torch.arange(128).to(torch.uint8)
    return codes[codes.view(dtype).float().isfinite()]


@each_type
def test_every_float16_is_stored_as_the_nearest_number_or_the_largest(dtype: torch.dtype) -> None:
    """Zeros keep their sign, and NaN stays NaN."""
    scale = torch.tensor([0.37])
    given = torch.arange(2**16).to(torch.uint16).view(torch.float16)
    sizes = finite(dtype).view(dtype).float()
    quotients = (given.abs().double() / scale.double()).float().clamp(max=sizes[-1])
    nearest = (quotients[:, None] - sizes).abs().argmin(dim=1)
    expected = sizes[nearest].where(~given.isnan(), torch.nan).copysign(given.float())
    stored = quantized(given.view(-1, 1, 16), scale, dtype).float().flatten()
    assert torch.equal(stored.nan_to_num(7), expected.nan_to_num(7))
    assert torch.equal(stored.signbit()[~given.isnan()], given.signbit()[~given.isnan()])


@pytest.mark.parametrize("layout", LAYOUTS)
@each_type
@pytest.mark.parametrize(
    ("k_scale", "v_scale", "of_tokens"),
    [
        (0.37, torch.tensor(3.0), torch.float32),
        (torch.tensor([0.37, 0.05]), torch.tensor([0.003, 2.5]).double(), torch.float32),
        (None, torch.tensor([0.5]), torch.float16),
        (2.0, 0.5, torch.bfloat16),
    ],
    ids=["number", "per_head", "float16", "bfloat16"],
)
def test_what_is_written_is_read_as_code_times_scale_of_its_head(
    layout: str, dtype: torch.dtype, k_scale: Scale, v_scale: Scale, of_tokens: torch.dtype
) -> None:
    sizes = {"num_blocks": 3, "num_kv_heads": 2, "head_size": 32, "block_size": 4}
    scaled = {"k_scale": k_scale, "v_scale": v_scale}
    cache = PagedKVCache(LAYOUTS[layout](**sizes, dtype=dtype), 1, **scaled)
    codes = torch.cat([finite(dtype), finite(dtype) + 128]).view(dtype)
    drawn = torch.randint(len(codes), (2, 6, 2, 32), generator=torch.Generator().manual_seed(0))
    scales = [
        torch.as_tensor(1.0 if scale is None else scale, dtype=torch.float32).reshape(-1, 1)
        for scale in (k_scale, v_scale)
    ]
    written = [code.float() * scale for code, scale in zip(codes[drawn], scales, strict=True)]
    tokens = (numbers.to(of_tokens) for numbers in written)
    cache.write(0, *tokens, torch.tensor([8, 9, 10, 11, 4, 5]))
    for found, numbers in zip(cache.read(0, torch.tensor([2, 1]), 6), written, strict=True):
        assert torch.equal(found, numbers)


@pytest.mark.parametrize("name", TRIALS)
def test_every_trial_finds_nothing_wrong(name: str) -> None:
    """The wrong examples of tests/wrong/ are tried on the same."""
    assert TRIALS[name]() == ""
