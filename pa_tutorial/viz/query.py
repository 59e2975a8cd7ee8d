"""q on its way to shared memory, and its banks, drawn from traces."""

import numpy as np
from matplotlib.figure import Figure
from numba import cuda, float32

from pa_tutorial.kernels.dtypes import SCALAR_TYPES
from pa_tutorial.kernels.geometry import Geometry
from pa_tutorial.kernels.loads import element_loads
from pa_tutorial.simt import Trace, launch, shared_traffic
from pa_tutorial.viz import style
from pa_tutorial.viz.kernel_runs import REFERENCE, Run, run_v1
from pa_tutorial.viz.warps import draw_banks

# q to shared memory --------------------------------------------------------------------------


def query_moves(run: Run) -> list[tuple[int, int, int, int]]:
    """(thread, vec of q, row, column of q_vecs) of every vec, in the order of the vecs."""
    geometry, trace = run.geometry, run.trace
    reads = trace.only(array="q")
    writes = trace.only(array="q_vecs", kind="write")
    head = run.head * geometry.HEAD_SIZE  # the first element of the head
    moves = set()
    for thread in np.unique(reads.threads).tolist():
        source = reads.the_array().indices(reads.records.address[reads.threads == thread])[0]
        place = writes.the_array().indices(writes.records.address[writes.threads == thread])
        for element, row, column in zip(source, *place[:2], strict=True):
            moves.add((thread, int(element - head) // geometry.VEC_SIZE, int(row), int(column)))
    return sorted(moves, key=lambda move: move[1])


@style.styled
def draw_query_load(run: Run) -> Figure:
    """q in global memory, with the thread that loads each vec; and where it stands in q_vecs."""
    geometry, moves = run.geometry, query_moves(run)
    threads = {thread for thread, *_ in moves}
    idle = geometry.NUM_THREADS - len(threads)
    figure, (above, below) = style.new_figure(
        f"{len(threads)} threads bring {len(moves)} vecs of q to shared memory; "
        f"{idle} threads load nothing",
        1.5 + 0.24 * geometry.THREAD_GROUP_SIZE,
        nrows=2,
        height_ratios=(1, geometry.THREAD_GROUP_SIZE),
    )
    size = geometry.VEC_SIZE
    above.set_title(
        f"q of one head, in vecs of {size} elements; a number is the thread that loads the vec",
        weight="normal",
    )
    style.bare(above, len(moves), 1)
    below.set_title(
        f"q_vecs [{geometry.THREAD_GROUP_SIZE}, {geometry.NUM_VECS_PER_THREAD}]; "
        "a number is the vec of q that stands there",
        weight="normal",
    )
    style.bare(below, len(moves), geometry.THREAD_GROUP_SIZE)
    for axes in (above, below):
        axes.set_aspect("auto")
    wide = len(moves) / geometry.NUM_VECS_PER_THREAD / geometry.THREAD_GROUP_SIZE
    for thread, vec, row, column in moves:
        color = _row_color(row, geometry)
        style.cell(above, vec, 0, color, str(thread))
        style.cell(below, column * wide, row, color, str(vec))
    for row in range(geometry.THREAD_GROUP_SIZE):
        who = f"row {row}: read by the threads with thread_group_offset {row}"
        below.text(
            geometry.NUM_VECS_PER_THREAD + 0.4, row + 0.5, who, va="center", color=style.QUIET
        )
    return figure


def _row_color(row: int, geometry: Geometry) -> str:
    return style.lighter(style.Q, 0.75 * row / geometry.THREAD_GROUP_SIZE)


def draw_reference_query_load() -> Figure:
    return draw_query_load(run_v1(REFERENCE))


# Banks ---------------------------------------------------------------------------------------


def query_kernel(geometry: Geometry, padding: int) -> object:
    """The part of the kernel that writes and reads q_vecs; `padding` unused vecs end each row."""
    THREAD_GROUP_SIZE, NUM_THREAD_GROUPS = geometry.THREAD_GROUP_SIZE, geometry.NUM_THREAD_GROUPS
    NUM_VECS_PER_THREAD, VEC_SIZE = geometry.NUM_VECS_PER_THREAD, geometry.VEC_SIZE
    Q_VECS_SHAPE = (THREAD_GROUP_SIZE, NUM_VECS_PER_THREAD + padding, VEC_SIZE)
    scalar_t, to_float, _ = SCALAR_TYPES[geometry.dtype]
    load_q = element_loads(geometry).load_q

    @cuda.jit
    def read_query(out, q):  # out [NUM_THREADS], q [HEAD_SIZE]
        thread_group_idx = cuda.threadIdx.x // THREAD_GROUP_SIZE
        thread_group_offset = cuda.threadIdx.x % THREAD_GROUP_SIZE
        q_vecs = cuda.shared.array(Q_VECS_SHAPE, scalar_t)
        for i in range(thread_group_idx, NUM_VECS_PER_THREAD, NUM_THREAD_GROUPS):
            vec_idx = thread_group_offset + i * THREAD_GROUP_SIZE
            load_q(q_vecs[thread_group_offset, i], q, vec_idx * VEC_SIZE)
        cuda.syncthreads()
        total = float32(0)
        for i in range(NUM_VECS_PER_THREAD):
            for e in range(VEC_SIZE):
                total += to_float(q_vecs[thread_group_offset, i, e])
        out[cuda.threadIdx.x] = total

    return read_query


def query_trace(geometry: Geometry, padding: int = 0) -> Trace:
    q = np.ones(geometry.HEAD_SIZE, np.dtype(f"f{geometry.ITEMSIZE}"))
    out = np.zeros(geometry.NUM_THREADS, np.float32)
    return launch(query_kernel(geometry, padding), 1, len(out), out, q, trace=0).trace


def query_reads(geometry: Geometry, padding: int = 0) -> Trace:
    """How the first warp reads q_vecs, for one token."""
    return query_trace(geometry, padding).only(array="q_vecs", kind="read", warp=0)


@style.styled
def draw_query_banks(geometry: Geometry) -> Figure:
    """The first read of q_vecs, as in vLLM and with one vec of padding in each row."""
    traces = {}
    for padding, heading in ((0, "as in vLLM"), (1, "one vec more in each row")):
        reads = query_reads(geometry, padding)
        traces[heading] = reads.only(instruction=int(reads.records.instruction.min()))
    before, after = (shared_traffic(trace).total("wavefronts") for trace in traces.values())
    rows = geometry.THREAD_GROUP_SIZE
    title = (
        f"The {rows} rows of q_vecs begin in the same bank: {before} wavefronts for a read. "
        f"One vec of padding: {after}"
    )
    return draw_banks(traces, title, height=3.2, color=style.Q)


def draw_reference_query_banks() -> Figure:
    return draw_query_banks(run_v1(REFERENCE).geometry)
