"""An 8-bit cache: K and V as float8, with one scale per tensor or one per KV head.

    stored = float8(number / scale)     number = stored * scale

float8_e4m3fn has 4 bits of exponent and 3 of mantissa, up to 448, and no infinity; float8_e5m2 has
5 and 2, up to 57,344. Larger numbers are stored as the largest one (they *saturate*).
Source: Micikevicius et al., "FP8 Formats for Deep Learning", 2022; vLLM,
csrc/quantization/fp8/nvidia/quant_utils.cuh.
"""

import torch
from torch import Tensor

from pa_tutorial.arguments import (
    FLT_MAX,
    real_number,
    require,
    require_shape,
    require_tensor,
)

for _name in ("float8_e4m3fn", "float8_e5m2"):
    if not hasattr(torch, _name):
        raise ImportError(f"torch {torch.__version__} has no {_name}; install torch 2.9 or newer")

FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2)
# How our CPU and Triton kernels see the bytes: the type of integer tells the format.
AS_INTEGERS = dict(zip(FLOAT8, (torch.uint8, torch.int8), strict=True))
Scale = Tensor | float | None


def checked_scale(name: str, scale: Scale, num_kv_heads: int, cached: Tensor) -> Tensor | None:
    """The scale of a cache per KV head, [num_kv_heads] float32; None for a cache of another type.

    scale   a number, a tensor with one number or [num_kv_heads]; None: 1
    cached  k_cache or v_cache

    The scale is copied. Raises TypeError or ValueError for anything else, for a number that isn't
    positive and finite as a float32 (which isn't checked for a tensor on a GPU: reading it would
    wait), and for a scale of a cache that isn't 8-bit.
    """
    if cached.dtype not in FLOAT8:
        allowed = f"None: the cache is {cached.dtype}, and only an 8-bit cache has scales"
        require(scale is None, name, scale, allowed)
        return None
    allowed = "positive and finite, as a float32"
    if isinstance(scale, Tensor):
        require_tensor(name, scale)
        require(scale.is_floating_point(), f"{name}.dtype", scale.dtype, "a floating-point dtype")
    else:
        number = 1.0 if scale is None else real_number(name, scale)
        require(0 < number <= FLT_MAX, name, number, allowed)
        scale = torch.tensor(number, dtype=torch.float64)
    must = f"it must have one number, or [{num_kv_heads}]: one per KV head"
    require_shape(scale.numel() == 1 or scale.shape == (num_kv_heads,), name, scale, must)
    numbers = scale.detach().float().reshape(-1)
    if not scale.is_cuda:
        for given, number in zip(scale.reshape(-1).tolist(), numbers.tolist(), strict=True):
            require(0 < number <= FLT_MAX, name, given, allowed)
    return numbers.expand(num_kv_heads).to(cached.device, copy=True)


def quantized(numbers: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    """float8 of the float32 numbers / scale, rounded to the nearest, ties to even; NaN remains NaN.

    numbers  [..., num_kv_heads, head_size]
    scale    [num_kv_heads]
    """
    most = torch.finfo(dtype).max
    return (numbers.float() / scale[:, None]).clamp(-most, most).to(dtype)


def dequantized(stored: Tensor, scale: Tensor) -> Tensor:
    """The numbers, in float32. The shapes are those of `quantized`."""
    return stored.float() * scale[:, None]
