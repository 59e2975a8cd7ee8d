"""float32, float16, bfloat16 and float8 in a kernel: how an element is stored and converted.

A kernel computes in float32. Neither NumPy nor Numba has bfloat16, so its 16 bits are stored as
uint16. They are the upper half of a float32, so widening is a shift. A float8 is stored as uint8.
Source: vLLM, csrc/attention/dtype_float32.cuh, dtype_float16.cuh, dtype_bfloat16.cuh.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from numba import cuda, float32, int16, int32, types, uint16, uint32
from numba.cuda import libdevice

from pa_tutorial.paging.quantization import FLOAT8
from simt import LaneAccess, twin

float16 = types.float16
SIGN_CLEARED = 0x7FFFFFFF
INFINITY = 0x7F800000  # bits of a float32; larger ones, ignoring the sign, are NaN
NAN = 0x7FC00000
BFLOAT16_NAN = 0x7FFF


class ScalarType(NamedTuple):
    """One type of element.

    scalar_t    Numba's type for it in memory
    to_float    element -> float32
    from_float  float32 -> element, rounded to the nearest, ties to even
    """

    scalar_t: object
    to_float: Callable
    from_float: Callable


@twin(libdevice.int_as_float)
def _int_as_float(access: LaneAccess, bits: np.ndarray) -> np.ndarray:
    return np.asarray(bits, np.int32).view(np.float32)[()]


@twin(libdevice.float_as_int)
def _float_as_int(access: LaneAccess, value: np.ndarray) -> np.ndarray:
    return np.asarray(value, np.float32).view(np.int32)[()]


@twin(libdevice.half2float)
def _half_to_float(access: LaneAccess, bits: np.ndarray) -> np.ndarray:
    return np.asarray(bits, np.int16).view(np.float16).astype(np.float32)[()]


@cuda.jit(device=True)
def _widened(value):
    return float32(value)


@cuda.jit(device=True)
def _same(value):
    return value


@cuda.jit(device=True)
def _to_float16(value):
    return float16(value)


@cuda.jit(device=True)
def bfloat16_to_float(bits):
    return libdevice.int_as_float(int32(uint32(bits) << uint32(16)))


@cuda.jit(device=True)
def float_to_bfloat16(value):
    bits = uint32(libdevice.float_as_int(value))
    if bits & uint32(SIGN_CLEARED) > uint32(INFINITY):
        return uint16(BFLOAT16_NAN)
    # Adding just under half of the lower 16 bits carries into the upper ones where they are
    # over one half; the last bit that stays decides a tie.
    last = (bits >> uint32(16)) & uint32(1)
    return uint16((bits + uint32(0x7FFF) + last) >> uint32(16))


@cuda.jit(device=True)
def float8_e5m2_to_float(byte):
    return libdevice.half2float(int16(uint32(byte) << uint32(8)))  # the upper half of a float16


@cuda.jit(device=True)
def float8_e4m3_to_float(byte):
    # A float16 has one bit of exponent more, and a bias of 15 in place of 7: with the same bits it
    # is 2**8 too small. This holds without the hidden 1, too.
    bits = uint32(byte) & uint32(0x7F)
    sign = (uint32(byte) & uint32(0x80)) << uint32(8)
    number = float32(256) * libdevice.half2float(int16(sign | bits << uint32(7)))
    return libdevice.int_as_float(int32(NAN)) if bits == uint32(0x7F) else number


SCALAR_TYPES = {
    torch.float32: ScalarType(float32, _same, _same),
    torch.float16: ScalarType(float16, _widened, _to_float16),
    torch.bfloat16: ScalarType(uint16, bfloat16_to_float, float_to_bfloat16),
}
# What an element of the cache becomes: as of q, and of an 8-bit cache.
TO_FLOAT = {dtype: scalar.to_float for dtype, scalar in SCALAR_TYPES.items()}
TO_FLOAT |= zip(FLOAT8, (float8_e4m3_to_float, float8_e5m2_to_float), strict=True)
