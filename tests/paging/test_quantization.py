"""An 8-bit cache: what is stored of a number, what is read back, and where it is."""

import importlib
import math
from fractions import Fraction
from functools import cache
from itertools import product

import numpy as np
import pytest
import torch
from torch import Tensor

from pa_tutorial.paging import quantization
from pa_tutorial.paging.kv_cache import PagedKVCache
from pa_tutorial.paging.layouts import DTYPES, LAYOUTS, reshape_and_cache
from pa_tutorial.paging.quantization import FLOAT8, Scale, dequantized, quantized
from tests.cache_trials import TRIALS

# Of each type: bits of mantissa, bias of the exponent, largest number. Of a float32, the first two.
FORMATS = dict(zip(FLOAT8, ((3, 7, 448), (2, 15, 57344)), strict=True))
FLOAT32 = 23, 127
SIZES = {"num_blocks": 3, "num_kv_heads": 2, "head_size": 32, "block_size": 4}

each_type = pytest.mark.parametrize("dtype", FLOAT8, ids=str)
each_layout = pytest.mark.parametrize("layout", LAYOUTS)


def rounded(number: Fraction, num_mantissa_bits: int, bias: int) -> float:
    """The nearest number with so few bits, ties to even, and no limit to the exponent."""
    exponent = number.numerator.bit_length() - number.denominator.bit_length()
    exponent -= number < power_of_two(exponent)
    exponent = max(exponent, 1 - bias) - num_mantissa_bits
    return math.ldexp(round(number * power_of_two(-exponent)), exponent)


@cache
def power_of_two(exponent: int) -> Fraction:
    return Fraction(2) ** exponent


def number_of(code: int, num_mantissa_bits: int, bias: int, largest: int) -> float:
    """By the definition: 1 bit of sign, the exponent, the mantissa."""
    exponent, mantissa = divmod(code & 0x7F, 1 << num_mantissa_bits)
    implied = (exponent > 0) << num_mantissa_bits
    power = Fraction(2) ** (max(exponent, 1) - bias - num_mantissa_bits)
    size = float((implied + mantissa) * power)
    if size > largest:  # e5m2 alone has an infinity, below its NaN
        size = math.inf if num_mantissa_bits == 2 and mantissa == 0 else math.nan
    return math.copysign(size, -1 if code & 0x80 else 1)


@cache
def quotients(scale: float) -> list[float]:
    """The float32 nearest to number / scale, of all float16 with a sign of 0, in order."""
    return [
        rounded(Fraction(size) / Fraction(scale), *FLOAT32) if math.isfinite(size) else size
        for size in all_float16()[: 2**15].tolist()
    ]


@cache
def expected_of(scale: float, dtype: torch.dtype) -> Tensor:
    """float8 of all float16 / scale, from fractions; as float32."""
    *bits, largest = FORMATS[dtype]
    sizes = [
        min(rounded(Fraction(size), *bits), largest) if math.isfinite(size)
        else largest if size == math.inf
        else size
        for size in quotients(scale)
    ]  # fmt: skip
    positive = torch.tensor(sizes, dtype=torch.float32)
    return torch.cat([positive, -positive])


def all_float16() -> Tensor:
    return torch.arange(2**16).to(torch.uint16).view(torch.float16)


def num_wrong(stored: Tensor, expected: Tensor) -> int:
    """Different numbers, or zeros of another sign."""
    stored = stored.flatten().float()
    same = (stored == expected) & (stored.signbit() == expected.signbit())
    return int((~same & ~(stored.isnan() & expected.isnan())).sum())


@each_type
@pytest.mark.parametrize("scale", [1.0, 0.37])
def test_every_float16_is_stored_as_the_nearest_number_or_the_largest(
    dtype: torch.dtype, scale: float
) -> None:
    """Ties go to the even one, zeros keep their sign, and NaN stays NaN."""
    scales = torch.tensor([scale])
    stored = quantized(all_float16().view(-1, 1, 16), scales, dtype)
    assert num_wrong(stored, expected_of(scales.item(), dtype)) == 0


def test_infinity_in_place_of_the_largest_number_would_be_seen() -> None:
    """torch itself saturates e4m3 in some versions, and never e5m2."""
    unclamped = all_float16().to(torch.float8_e5m2)
    beyond = all_float16().abs() >= 61440  # the middle between the largest number and 65,536
    assert num_wrong(unclamped, expected_of(1.0, torch.float8_e5m2)) == int(beyond.sum())


@each_type
def test_a_quotient_in_the_middle_goes_to_the_even_code(dtype: torch.dtype) -> None:
    """float32(1 / 41) in place of the division would miss the middle."""
    codes = torch.arange(128).to(torch.uint8)
    codes = codes[codes.view(dtype).float().isfinite()]
    numbers = codes.view(dtype).float()
    middles = (41 * (numbers[:-1] + numbers[1:]) / 2).view(1, 1, -1)
    stored = quantized(middles, torch.tensor([41.0]), dtype).view(torch.uint8)
    assert torch.equal(stored.flatten(), codes[1:] // 2 * 2)


@each_type
@pytest.mark.parametrize("scale", [1.0, 0.37])
def test_every_code_is_read_as_its_definition_says(dtype: torch.dtype, scale: float) -> None:
    scales = torch.tensor([scale])
    expected = []
    for code in range(256):
        number = number_of(code, *FORMATS[dtype])
        if math.isfinite(number):
            scaled = rounded(Fraction(abs(number)) * Fraction(scales.item()), *FLOAT32)
            number = math.copysign(scaled, number)
        expected.append(number)
    codes = torch.arange(256).to(torch.uint8).view(dtype).view(16, 1, 16)
    assert num_wrong(dequantized(codes, scales), torch.tensor(expected)) == 0


def finite_codes(dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    codes = torch.arange(256).to(torch.uint8)
    codes = codes[codes.view(dtype).float().isfinite()]
    drawn = torch.randint(len(codes), shape, generator=torch.Generator().manual_seed(0))
    return codes[drawn].view(dtype)


@each_layout
@each_type
@pytest.mark.parametrize(
    ("k_scale", "v_scale"),
    [
        (0.37, torch.tensor(3.0)),
        (torch.tensor([0.37, 0.05]), torch.tensor([0.003, 2.5], dtype=torch.float64)),
        (None, torch.tensor([0.5])),
    ],
    ids=["number", "per_head", "none"],
)
def test_what_is_written_is_read_as_code_times_scale_of_its_head(
    layout: str, dtype: torch.dtype, k_scale: Scale, v_scale: Scale
) -> None:
    """Written one tensor at a time or by the cache: the same bytes, at the layout's places."""
    places = LAYOUTS[layout](**SIZES, dtype=dtype)
    cache = PagedKVCache(places, 1, k_scale=k_scale, v_scale=v_scale)
    codes = finite_codes(dtype, (2, 6, 2, 32))
    scales = [
        torch.as_tensor(1.0 if scale is None else scale, dtype=torch.float32).reshape(-1, 1)
        for scale in (k_scale, v_scale)
    ]
    key, value = (code.float() * scale for code, scale in zip(codes, scales, strict=True))
    slots = torch.tensor([8, 9, 10, 11, 4, 5])
    cache.write(0, key, value, slots)
    k, v = cache.read(0, torch.tensor([2, 1]), 6)
    assert torch.equal(k, key)
    assert torch.equal(v, value)
    k_cache, v_cache = places.empty()
    reshape_and_cache(key, value, k_cache, v_cache, slots, k_scale, v_scale)
    bits = [tensor.view(torch.uint8) for tensor in (k_cache, v_cache, cache.k[0], cache.v[0])]
    assert torch.equal(bits[0], bits[2])
    assert torch.equal(bits[1], bits[3])
    for token, head, dim in product(range(6), range(2), (0, 15, 16, 31)):
        place = (*divmod(int(slots[token]), 4), head, dim)
        k_place = places.k_place(place[0], head, place[1], dim)
        v_place = places.v_place(place[0], head, place[1], dim)
        assert k_cache[k_place].float() == codes[0, token, head, dim].float()
        assert v_cache[v_place].float() == codes[1, token, head, dim].float()


@pytest.mark.parametrize("of_tokens", DTYPES, ids=str)
@each_type
def test_tokens_of_each_dtype_are_stored(dtype: torch.dtype, of_tokens: torch.dtype) -> None:
    cache = PagedKVCache(LAYOUTS["vllm"](**SIZES, dtype=dtype), 1, k_scale=0.5, v_scale=2.0)
    codes = finite_codes(dtype, (2, 6, 2, 32)).float().clamp(-4096, 4096)
    cache.write(0, *(codes * torch.tensor([0.5, 2.0])[:, None, None, None]).to(of_tokens),
                torch.arange(6))  # fmt: skip
    k, v = cache.read(0, torch.tensor([0, 1]), 6)
    assert torch.equal(k, codes[0] * 0.5)
    assert torch.equal(v, codes[1] * 2.0)


@each_layout
@each_type
def test_a_slot_of_minus_one_is_not_written(layout: str, dtype: torch.dtype) -> None:
    cache = PagedKVCache(LAYOUTS[layout](**SIZES, dtype=dtype), 1, k_scale=2.0, v_scale=3.0)
    assert all(tensor.float().isnan().all() for tensor in (*cache.k, *cache.v))
    cache.write(0, torch.ones(3, 2, 32), torch.ones(3, 2, 32), torch.tensor([-1, 5, -1]))
    tokens = cache.read(0, torch.arange(3), 12)
    for one in tokens:
        written = ~one.isnan().all(dim=(1, 2))
        assert written.nonzero().tolist() == [[5]]


@each_layout
@each_type
def test_copying_a_block_copies_its_codes(layout: str, dtype: torch.dtype) -> None:
    cache = PagedKVCache(LAYOUTS[layout](**SIZES, dtype=dtype), 2, k_scale=0.37, v_scale=0.37)
    stored = [tensor.view(torch.uint8) for tensor in (*cache.k, *cache.v)]
    for tensor in stored:
        tensor.copy_(torch.arange(tensor.numel()).to(torch.uint8).view(tensor.shape))
        tensor[0] = torch.from_numpy(np.arange(256, dtype=np.uint8)).view(tensor[0].shape)
        tensor[2] = 1
    cache.copy_blocks([(0, 2)])
    assert all(torch.equal(tensor[2], tensor[0]) for tensor in stored)


@each_layout
@each_type
def test_a_byte_per_number_halves_a_block(layout: str, dtype: torch.dtype) -> None:
    places, wide = (LAYOUTS[layout](**SIZES, dtype=one) for one in (dtype, torch.float16))
    assert places.x == 16
    assert 2 * places.bytes_per_block == wide.bytes_per_block
    tensors = places.empty()
    assert [tensor.dtype for tensor in tensors] == [dtype, dtype]
    assert sum(tensor.numel() for tensor in tensors) == places.bytes_per_block * 3


@pytest.mark.parametrize("name", TRIALS)
def test_every_trial_finds_nothing_wrong(name: str) -> None:
    """The wrong examples of tests/wrong/ are tried on the same."""
    assert TRIALS[name]() == ""


def test_a_torch_without_these_types_is_refused_in_one_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(torch, "float8_e5m2")
    with pytest.raises(ImportError, match=r"torch .* has no float8_e5m2; .* torch 2\.9 or newer"):
        importlib.reload(quantization)
