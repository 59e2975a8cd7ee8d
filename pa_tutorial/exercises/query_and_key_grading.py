"""How answers of notebook 09 are graded: what the kernel reads of K, and rows of q."""

from collections.abc import Callable
from functools import lru_cache

import numpy as np
import torch
from numba import cuda, float32
from torch import Tensor

from pa_tutorial.exercises import kernels
from pa_tutorial.exercises.drawing import seeded
from pa_tutorial.exercises.kernels import Enough
from pa_tutorial.kernels.dtypes import SCALAR_TYPES
from pa_tutorial.kernels.geometry import Geometry
from pa_tutorial.kernels.launch import prepare_v1
from pa_tutorial.simt import Trace, shared_traffic
from pa_tutorial.simt.races import WARP_SIZE
from pa_tutorial.simt.traffic import SECTOR
from pa_tutorial.walk.calls import AnswerError


@lru_cache(maxsize=64)
def reads_of_k(
    sizes: tuple, draw: int
) -> tuple[Geometry, int, Tensor, tuple[int, int], np.ndarray]:
    """Geometry, head, blocks [turns, NUM_WARPS], strides, and the kernel's own reads of K.

    The reads are [NUM_THREADS, turns, NUM_VECS_PER_THREAD]: the first element of each vec. A turn
    is one block of each warp.
    """
    block_size, dtype, head_size, num_threads, num_kv_heads, queries, gap = sizes
    x, num_blocks, turns = 16 // dtype.itemsize, num_threads // WARP_SIZE * 2, 2
    pool, heads, pieces = num_blocks + 3, num_kv_heads + gap, head_size // x
    k_cache = torch.zeros(pool, heads, pieces + gap, block_size, x, dtype=dtype)
    v_cache = torch.zeros(pool, heads, head_size + gap * x, block_size, dtype=dtype)
    k_cache, v_cache = k_cache[:, gap:, :pieces], v_cache[:, gap:, :head_size]
    q = torch.zeros(1, num_kv_heads * queries, head_size, dtype=dtype)
    table = (torch.arange(num_blocks) * 7 + 3) % pool  # pool and 7 have no common factor
    if draw:
        table = torch.from_numpy(seeded(pool, draw).permutation(pool)[:num_blocks])
    seq_lens = torch.tensor([num_blocks * block_size - 3], dtype=torch.int32)
    arguments = q, k_cache, v_cache, table[None].int(), seq_lens, 1.0
    ready = prepare_v1(*arguments, num_threads=num_threads)
    geometry, head_idx = ready.geometry, q.shape[1] - 1
    trace = ready.simulate(trace=head_idx).trace.only(array="k_cache")
    by_thread = np.argsort(trace.threads, kind="stable")
    offsets = (trace.records.address - trace.the_array().address)[by_thread] // dtype.itemsize
    shape = num_threads, turns, geometry.NUM_VECS_PER_THREAD, geometry.VEC_SIZE
    first = offsets.reshape(shape)[..., 0]
    return geometry, head_idx, table.reshape(turns, -1), k_cache.stride()[:2], first


def kernel_around(geometry: Geometry, answer: Callable) -> Callable:
    """kernel(out, q, k): thread group g has token g; out [THREAD_GROUP_SIZE, tokens]."""
    qk_dot = kernels.require_device_function(answer)
    THREAD_GROUP_SIZE, VEC_SIZE = geometry.THREAD_GROUP_SIZE, geometry.VEC_SIZE
    NUM_VECS_PER_THREAD = geometry.NUM_VECS_PER_THREAD
    K_VECS_SHAPE = NUM_VECS_PER_THREAD, VEC_SIZE
    Q_VECS_SHAPE = THREAD_GROUP_SIZE, *K_VECS_SHAPE
    scalar_t = SCALAR_TYPES[geometry.dtype].scalar_t

    @cuda.jit
    def thread_groups(out, q, k):
        thread_group_idx = cuda.threadIdx.x // THREAD_GROUP_SIZE
        thread_group_offset = cuda.threadIdx.x % THREAD_GROUP_SIZE
        q_vecs = cuda.shared.array(Q_VECS_SHAPE, scalar_t)
        k_vecs = cuda.local.array(K_VECS_SHAPE, float32)
        for j in range(NUM_VECS_PER_THREAD):
            for e in range(VEC_SIZE):
                d = (thread_group_offset + j * THREAD_GROUP_SIZE) * VEC_SIZE + e
                if thread_group_idx == 0:
                    q_vecs[thread_group_offset, j, e] = q[d]
                k_vecs[j, e] = float32(k[thread_group_idx, d])
        cuda.syncthreads()
        qk = qk_dot(q_vecs, k_vecs, thread_group_offset)
        out[thread_group_offset, thread_group_idx] = qk

    return thread_groups


def require_good_rows(geometry: Geometry, trace: Trace) -> None:
    _require_together(geometry, trace.only(array="q", kind="read"))
    # Elements one by one: each of VEC_SIZE requests touches the sectors of all vecs again.
    sectors = -(-geometry.head_size * geometry.ITEMSIZE // SECTOR)
    requests = -(-geometry.head_size // geometry.VEC_SIZE // WARP_SIZE)
    enough = Enough(geometry.VEC_SIZE * sectors, geometry.VEC_SIZE * requests)
    kernels.require_few(trace, "q", enough)
    rows = trace.only(space="shared", kind="read")
    vec_bytes = geometry.VEC_SIZE * geometry.ITEMSIZE
    for thread in range(geometry.THREAD_GROUP_SIZE):
        vecs = np.unique(rows.records.address[rows.threads == thread] // vec_bytes)
        if len(vecs) > geometry.NUM_VECS_PER_THREAD:
            raise AnswerError(
                f"the answer is right, but in shared memory some vecs of row {thread} do not begin "
                f"at a multiple of their size, {vec_bytes} bytes: no thread could read one at once"
            )
    table = shared_traffic(rows)
    found, ideal = table.total("wavefronts"), table.total("ideal")
    if found > ideal:
        raise AnswerError(
            "the answer is right, but there are bank conflicts when the rows are read: "
            f"{found:,} wavefronts, where {ideal:,} would do"
        )
    most = geometry.NUM_WARPS * geometry.NUM_ELEMS_PER_THREAD
    kernels.require_shared_requests(trace, "read", most)


def _require_together(geometry: Geometry, loads: Trace) -> None:
    """q is read once, by as many threads as there are vecs."""
    if len(loads) > geometry.head_size:
        raise AnswerError(
            f"the answer is right, but elements of q are read {len(loads):,} times; "
            f"{geometry.head_size} are enough: each element once"
        )
    found = len(np.unique(loads.threads))
    wanted = min(geometry.num_threads, geometry.head_size // geometry.VEC_SIZE)
    if found < wanted:
        raise AnswerError(
            f"the answer is right, but q is brought by {found} of the threads; {wanted} could do it"
        )
