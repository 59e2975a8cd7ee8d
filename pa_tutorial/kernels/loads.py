"""How a vec is read: element by element.

The kernel takes these five functions as an argument, so that loads of 8 or 16 bytes at once
change nothing else. Each reads one vec from an offset, counted in elements.

Offsets are made unsigned here, because for a signed one Numba's code must check at every load
whether it counts from the end of the array.
"""

from collections.abc import Callable
from typing import NamedTuple

from numba import cuda, uint64

from pa_tutorial.kernels.dtypes import SCALAR_TYPES, TO_FLOAT
from pa_tutorial.kernels.geometry import Geometry, require_geometry


class Loads(NamedTuple):
    """The five kinds of access; the first argument receives the vec.

    load_q(q_vec, q, offset)                 VEC_SIZE elements, global -> shared, as they are
    load_q_vec(q_vec, q_vecs, i)             vec i of a row, shared -> registers, as float32
    load_k(k_vec, k_cache, offset)           VEC_SIZE elements, global -> registers, as float32
    load_logits(logits_vec, logits, offset)  V_VEC_SIZE weights, shared -> registers
    load_v(v_vec, v_cache, offset)           V_VEC_SIZE elements, global -> registers, as float32
    """

    load_q: Callable
    load_q_vec: Callable
    load_k: Callable
    load_logits: Callable
    load_v: Callable


LoadsOf = Callable[[Geometry], Loads]


def element_loads(geometry: Geometry) -> Loads:
    """One element at a time: VEC_SIZE or V_VEC_SIZE small loads where vLLM has one wide load."""
    require_geometry(geometry)
    VEC_SIZE, V_VEC_SIZE = geometry.VEC_SIZE, geometry.V_VEC_SIZE
    to_float = SCALAR_TYPES[geometry.dtype].to_float
    cached_to_float = TO_FLOAT[geometry.cache_dtype or geometry.dtype]

    @cuda.jit(device=True)
    def load_q(q_vec, q, offset):
        for e in range(VEC_SIZE):
            q_vec[e] = q[uint64(offset + e)]

    @cuda.jit(device=True)
    def load_q_vec(q_vec, q_vecs, i):
        for e in range(VEC_SIZE):
            q_vec[e] = to_float(q_vecs[i, e])

    @cuda.jit(device=True)
    def load_k(k_vec, k_cache, offset):
        for e in range(VEC_SIZE):
            k_vec[e] = cached_to_float(k_cache[uint64(offset + e)])

    @cuda.jit(device=True)
    def load_logits(logits_vec, logits, offset):
        for e in range(V_VEC_SIZE):
            logits_vec[e] = logits[uint64(offset + e)]

    @cuda.jit(device=True)
    def load_v(v_vec, v_cache, offset):
        for e in range(V_VEC_SIZE):
            v_vec[e] = cached_to_float(v_cache[uint64(offset + e)])

    return Loads(load_q, load_q_vec, load_k, load_logits, load_v)
