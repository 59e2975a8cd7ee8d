"""The exercise of notebook 10: q in shared memory without bank conflicts."""

from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from numba import cuda, float32

from pa_tutorial.checks.calls import AnswerError
from pa_tutorial.exercises import kernel_grading as grading
from pa_tutorial.exercises.exercise import Exercise
from pa_tutorial.exercises.kernel_grading import Enough, Task, on_tasks
from pa_tutorial.exercises.random_inputs import seeded
from pa_tutorial.kernels.dtypes import SCALAR_TYPES
from pa_tutorial.kernels.geometry import Geometry
from simt import Trace, shared_traffic
from simt.gpus import WARP_SIZE
from simt.traffic import SECTOR


# 1. ---------------------------------------------------------------------------------------------
def query_to_shared(geometry: Geometry) -> Callable:
    """A kernel: q goes to shared memory once, then every thread reads its share.

    geometry  block_size 8, 16 or 32 (THREAD_GROUP_SIZE 4, 2 or 1); float16 or float32
    returns   kernel(out, q)
        q    [HEAD_SIZE]
        out  [NUM_ELEMS_PER_THREAD, NUM_THREADS] float32: out[:, t] is the share of thread
             t, its vecs of q one after the other
    """
    THREAD_GROUP_SIZE, NUM_THREAD_GROUPS = geometry.THREAD_GROUP_SIZE, geometry.NUM_THREAD_GROUPS
    NUM_VECS_PER_THREAD, VEC_SIZE = geometry.NUM_VECS_PER_THREAD, geometry.VEC_SIZE
    ROOM = 2 * geometry.HEAD_SIZE  # elements: more than you need
    scalar_t = SCALAR_TYPES[geometry.dtype].scalar_t

    @cuda.jit
    def kernel(out, q):
        thread_group_idx = cuda.threadIdx.x // THREAD_GROUP_SIZE
        thread_group_offset = cuda.threadIdx.x % THREAD_GROUP_SIZE
        q_smem = cuda.shared.array(ROOM, scalar_t)
        # 1. where in q_smem is vec j of each share, so that the lanes of a group meet in no bank,
        #    and every vec begins at a multiple of VEC_SIZE? Does it hold for every head size?
        # 2. all groups together load q, each vec once: which ones does this group load?
        # 3. wait; then this thread reads its share: out[0, t], out[1, t], …
        ### BEGIN SOLUTION
        SHARE = (NUM_VECS_PER_THREAD | 1) * VEC_SIZE  # an odd number of vecs
        start = thread_group_offset * SHARE
        for j in range(thread_group_idx, NUM_VECS_PER_THREAD, NUM_THREAD_GROUPS):
            vec_idx = thread_group_offset + j * THREAD_GROUP_SIZE
            for e in range(VEC_SIZE):
                q_smem[start + j * VEC_SIZE + e] = q[vec_idx * VEC_SIZE + e]
        cuda.syncthreads()
        for i in range(NUM_VECS_PER_THREAD * VEC_SIZE):
            out[i, cuda.threadIdx.x] = float32(q_smem[start + i])
        ### END SOLUTION

    return kernel


_BRING = "Vec j of a share is vec r + j * THREAD_GROUP_SIZE of q; each group brings some of them."
_BANKS = "Shares of 128 bytes begin in the same bank: make them longer by a vec, or keep q's order."
_LONGER = "These shares need no padding. With it, they may begin in the same bank."
QUERY_CASES = (
    # name, what it isolates, what its failure means, head size, block size, type, threads
    ("worked_example", "groups of 4, 16 bytes each", _BRING, Geometry(32, 8, torch.float16, 64)),
    ("groups_of_2", "shares of 128 bytes", _BANKS, Geometry(128, 16, torch.float16, 64)),
    ("groups_of_4", "float32, shares of 128 bytes", _BANKS, Geometry(128, 8, torch.float32, 64)),
    ("shares_of_64_bytes", "groups of 4, two meet", _BANKS, Geometry(128, 8, torch.float16, 64)),
    ("more_vecs_than_groups", "64 vecs a share, 32 groups", "Groups go on in steps of all groups.",
     Geometry(256, 16, torch.float32, 64)),
    ("odd_size", "head size 80, 128 threads", _BRING, Geometry(80, 16, torch.float16, 128)),
    ("15_vecs_a_share", "shares of 60 bytes", _LONGER, Geometry(120, 8, torch.float16, 64)),
    ("14_vecs_a_share", "shares of 112 bytes", _LONGER, Geometry(112, 16, torch.float16, 64)),
    ("one_share", "groups of 1", _BRING, Geometry(64, 32, torch.float16, 64)),
)  # fmt: skip


def require_good_shares(geometry: Geometry, trace: Trace) -> None:
    _require_together(geometry, trace.only(array="q", kind="read"))
    # Elements one by one: each of VEC_SIZE transactions touches the sectors of all vecs again.
    sectors = -(-geometry.head_size * geometry.ITEMSIZE // SECTOR)
    transactions = -(-geometry.head_size // geometry.VEC_SIZE // WARP_SIZE)
    enough = Enough(geometry.VEC_SIZE * sectors, geometry.VEC_SIZE * transactions)
    grading.require_few(trace, "q", enough)
    shares = trace.only(space="shared", kind="read")
    vec_bytes = geometry.VEC_SIZE * geometry.ITEMSIZE
    for thread in range(geometry.THREAD_GROUP_SIZE):
        vecs = np.unique(shares.records.address[shares.threads == thread] // vec_bytes)
        if len(vecs) > geometry.NUM_VECS_PER_THREAD:
            raise AnswerError(
                f"the answer is right, but some vecs of share {thread} in shared memory don't "
                f"begin at a multiple of their size, {vec_bytes} bytes: no thread could read one "
                "at once"
            )
    table = shared_traffic(shares)
    found, ideal = table.total("wavefronts"), table.total("ideal")
    if found > ideal:
        raise AnswerError(
            "the answer is right, but there are bank conflicts when the shares are read: "
            f"{found:,} wavefronts, where {ideal:,} would do"
        )
    most = geometry.NUM_WARPS * geometry.NUM_ELEMS_PER_THREAD
    grading.require_shared_transactions(trace, "read", most)


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


def query_task(draw: int, geometry: Geometry) -> Task:
    dtype = np.float16 if geometry.dtype == torch.float16 else np.float32
    q = seeded(geometry.head_size, draw).standard_normal(geometry.head_size).astype(dtype)
    shares = [q[list(geometry.head_elements(r))] for r in range(geometry.THREAD_GROUP_SIZE)]
    expected = np.tile(np.stack(shares, axis=1), geometry.NUM_THREAD_GROUPS).astype(np.float32)
    also = partial(require_good_shares, geometry)
    return Task(geometry.num_threads, (q,), expected, {}, also=also)


QUERY = Exercise(
    solution=query_to_shared,
    cases=on_tasks(QUERY_CASES, query_task, ("element of the share", "thread"), is_made=True),
)


EXERCISES = (QUERY,)
