"""How an answer of notebook 09 is graded: rows of q in shared memory."""

import numpy as np

from pa_tutorial.exercises import kernels
from pa_tutorial.exercises.kernels import Enough
from pa_tutorial.kernels.geometry import Geometry
from pa_tutorial.simt import Trace, shared_traffic
from pa_tutorial.simt.races import WARP_SIZE
from pa_tutorial.simt.traffic import SECTOR
from pa_tutorial.walk.calls import AnswerError


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
