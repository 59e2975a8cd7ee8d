"""Loads of 4, 8 and 16 bytes a lane: an intrinsic for Numba's compiler, a twin for the simulator.

Every kernel uses all numbers of its vectors. Where it uses only one, PTX still loads the vector,
but the GPU's code made of that PTX loads the one number.

Where numba-cuda has no wheels, there is no compiler either; the twin is enough there.
"""

from collections.abc import Callable
from functools import cache
from importlib.util import find_spec

import numpy as np
from numba import cuda, float32

from pa_tutorial.simt import LaneAccess, twin
from simt_kernels.example import example, from_text, traffic
from simt_kernels.traffic import WARP, floats, moved, nothing, whole


@cache
def vector_load(count: int) -> Callable:
    """load(array, index): `count` neighbouring float32 at once, from an aligned address."""
    load = _intrinsic(count) if find_spec("numba_cuda") else lambda array, index: None

    @twin(load)
    def _load(access: LaneAccess, array, index):
        return access.load(array, index, count)

    return load


def _intrinsic(count: int) -> Callable:
    from llvmlite import ir
    from numba.core import types
    from numba.cuda import cgutils
    from numba.cuda.extending import intrinsic

    @intrinsic
    def load(typingctx, array, index):
        signature = types.UniTuple(types.float32, count)(array, index)

        def codegen(context, builder, signature, args):
            array_type, index_type = signature.args
            array = context.make_array(array_type)(context, builder, args[0])
            index = context.cast(builder, args[1], index_type, types.intp)
            pointer = cgutils.get_item_pointer(
                context, builder, array_type, array, [index], wraparound=False
            )
            vector = ir.VectorType(ir.FloatType(), count)
            loaded = builder.load(builder.bitcast(pointer, vector.as_pointer()), align=4 * count)
            numbers = [
                builder.extract_element(loaded, ir.Constant(ir.IntType(32), i))
                for i in range(count)
            ]
            return context.make_tuple(builder, signature.return_type, numbers)

        return signature, codegen

    return load


def sums(a: np.ndarray, count: int) -> np.ndarray:
    """Of `count` neighbours each."""
    return a.reshape(-1, count).sum(axis=1)


def two_rules(requests: int, at_once: tuple[int, int], in_parts: tuple[int, int]) -> dict[str, int]:
    """Shared accesses wider than a word: (wavefronts, ideal) by each rule."""
    counts = {"requests": requests}
    for rule, (wavefronts, ideal) in (("", at_once), (" in parts", in_parts)):
        counts[f"wavefronts{rule}"], counts[f"ideal{rule}"] = wavefronts, ideal
        counts[f"degree{rule}"] = wavefronts // ideal
    return counts


load1, load2, load4 = vector_load(1), vector_load(2), vector_load(4)


@traffic(
    {
        ("load1(a, t)", "read"): whole(1, 128),
        ("load2(a, 2 * t)", "read"): whole(1, 256),
        ("load4(a, 4 * t)", "read"): whole(1, 512),
        ("out[t]", "write"): whole(1, 128),
    }
)
@example(
    1,
    WARP,
    lambda rng: (floats(rng, 128), nothing(WARP)),
    lambda a, out: {1: a[:32] + sums(a[:64], 2) + sums(a, 4)},
    rtol=1e-5,
)
@cuda.jit
def vectors_of_4_8_and_16_bytes(a, out):
    t = cuda.threadIdx.x
    (total,) = load1(a, t)
    x, y = load2(a, 2 * t)
    total += x + y
    x, y, z, w = load4(a, 4 * t)
    out[t] = total + x + y + z + w


# 16 of every 32 bytes: half of each sector. 8 of every 16: half of them as well.
@traffic(
    {
        ("load4(a, 8 * t)", "read"): moved(1, 32, sectors=(32, 16), lines=(8, 4)),
        ("load2(a, 4 * t + 2)", "read"): moved(1, 32, sectors=(16, 8), lines=(4, 2)),
        ("out[t]", "write"): whole(1, 128),
    }
)
@example(
    1,
    WARP,
    lambda rng: (floats(rng, 256), nothing(WARP)),
    lambda a, out: {1: sums(a, 4)[::2] + sums(a[:128], 2)[1::2]},
    rtol=1e-5,
)
@cuda.jit
def vectors_with_gaps(a, out):
    t = cuda.threadIdx.x
    x, y, z, w = load4(a, 8 * t)
    total = x + y + z + w
    x, y = load2(a, 4 * t + 2)
    out[t] = total + x + y


def from_shared(name: str, loads: str, answer: Callable, reads: dict[str, dict]) -> None:
    """Registers a kernel that copies 128 floats to s, a word a lane, four times; then it loads."""
    counts = {
        ("a[t + 32 * i]", "read"): whole(4, 512),
        ("s[t + 32 * i]", "write"): two_rules(4, (4, 4), (4, 4)),
        ("out[t]", "write"): whole(1, 128),
    }
    body = f"""t = cuda.threadIdx.x
s = cuda.shared.array(128, float32, alignment=16)
for i in range(4):
    s[t + 32 * i] = a[t + 32 * i]
cuda.syncthreads()
{loads}"""
    names = {"load2": load2, "load4": load4, "float32": float32, "__name__": __name__}
    counts |= {(load, "read"): cost for load, cost in reads.items()}
    kernel = traffic(counts)(from_text(name, "a, out", body, names))
    words = lambda rng: (floats(rng, 128), nothing(WARP))  # noqa: E731
    example(1, WARP, words, lambda a, out: {1: answer(a)}, rtol=1e-5)(kernel)


# All words differ: 2 or 4 in each bank, in 2 or 4 wavefronts by either rule.
from_shared(
    "shared_vectors_of_neighbours",
    "x, y = load2(s, 2 * t)\np, q, r, w = load4(s, 4 * t)\nout[t] = x + y + p + q + r + w",
    lambda a: sums(a[:64], 2) + sums(a, 4),
    {
        "load2(s, 2 * t)": two_rules(1, (2, 2), (2, 2)),
        "load4(s, 4 * t)": two_rules(1, (4, 4), (4, 4)),
    },
)
# Two rows of 128 bytes, read by even and by odd lanes (the q_vecs of vLLM's kernel): 2 vectors in
# the same two banks. At once: 4 words, 2 wavefronts where 1 would do; in halves twice that.
from_shared(
    "shared_vectors_of_two_rows",
    "x, y = load2(s, t % 2 * 32)\nout[t] = x + y",
    lambda a: sums(a, 2)[np.arange(WARP) % 2 * 16],
    {"load2(s, t % 2 * 32)": two_rules(1, (2, 1), (4, 2))},
)
# Four lanes for each vector: 8 vectors of 16 bytes are 32 words, one wavefront at once. A quarter
# of the warp reads 8 words, so 4 quarters take 4.
from_shared(
    "shared_vectors_for_four_lanes",
    "x, y, z, w = load4(s, t // 4 * 4)\nout[t] = x + y + z + w",
    lambda a: sums(a, 4)[np.arange(WARP) // 4],
    {"load4(s, t // 4 * 4)": two_rules(1, (1, 1), (4, 4))},
)
