"""An 8-bit cache: what is stored of a number, what is read back, and where it is."""

from itertools import product

import pytest
import torch
from torch import Tensor

from pa_tutorial.paging.kv_cache import PagedKVCache
from pa_tutorial.paging.layouts import LAYOUTS
from pa_tutorial.paging.quantization import FLOAT8, Scale, quantized
from tests.cache_trials import TRIALS

SIZES = {"num_blocks": 3, "num_kv_heads": 2, "head_size": 32, "block_size": 4}

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


def drawn_codes(dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    codes = torch.cat([finite(dtype), finite(dtype) + 128])
    drawn = torch.randint(len(codes), shape, generator=torch.Generator().manual_seed(0))
    return codes[drawn].view(dtype)


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
    places = LAYOUTS[layout](**SIZES, dtype=dtype)
    cache = PagedKVCache(places, 1, k_scale=k_scale, v_scale=v_scale)
    codes = drawn_codes(dtype, (2, 6, 2, 32))
    scales = [
        torch.as_tensor(1.0 if scale is None else scale, dtype=torch.float32).reshape(-1, 1)
        for scale in (k_scale, v_scale)
    ]
    written = [code.float() * scale for code, scale in zip(codes, scales, strict=True)]
    slots = torch.tensor([8, 9, 10, 11, 4, 5])
    cache.write(0, *(numbers.to(of_tokens) for numbers in written), slots)
    for found, numbers in zip(cache.read(0, torch.tensor([2, 1]), 6), written, strict=True):
        assert torch.equal(found, numbers)
    for token, head, dim in product(range(6), range(2), (0, 15, 16, 31)):
        where = int(slots[token]) // 4, head, int(slots[token]) % 4, dim
        assert cache.k[0][places.k_place(*where)].float() == codes[0, token, head, dim].float()
        assert cache.v[0][places.v_place(*where)].float() == codes[1, token, head, dim].float()


@pytest.mark.parametrize("name", TRIALS)
def test_every_trial_finds_nothing_wrong(name: str) -> None:
    """The wrong examples of tests/wrong/ are tried on the same."""
    assert TRIALS[name]() == ""
