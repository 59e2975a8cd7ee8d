"""q on its way to shared memory, and its banks, drawn from traces."""

from dataclasses import replace
from functools import cache

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pa_tutorial.kernels.changed import changed
from pa_tutorial.kernels.geometry import Geometry
from pa_tutorial.kernels.launch import prepare_v1
from pa_tutorial.kernels.loads import LoadsOf, element_loads
from pa_tutorial.kernels.paged_attention import paged_attention
from pa_tutorial.simt import Trace, shared_traffic
from pa_tutorial.simt.traffic import NUM_BANKS, SECTOR, WORD
from pa_tutorial.viz import style
from pa_tutorial.viz.kernel_runs import REFERENCE, Run, run_v1, watched
from pa_tutorial.walk.problem import DecodeProblem

MOST_TICKS = 16  # numbers of bytes that have room below a row of vecs

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


def query_bytes(run: Run) -> dict[int, tuple[int, int]]:
    """vec of q -> its first and its last byte, from the start of the head, as they are read."""
    geometry, reads = run.geometry, run.trace.only(array="q")
    head = reads.the_array().address + run.head * geometry.HEAD_SIZE * geometry.ITEMSIZE
    first = reads.records.address - head
    last = first + reads.records.num_bytes - 1
    vecs = first // (geometry.VEC_SIZE * geometry.ITEMSIZE)
    return {
        vec: (int(first[vecs == vec].min()), int(last[vecs == vec].max()))
        for vec in np.unique(vecs).tolist()
    }


@style.styled
def draw_query_load(run: Run) -> Figure:
    """q in global memory, with the thread that loads each vec; and where it stands in q_vecs."""
    geometry, moves = run.geometry, query_moves(run)
    threads = {thread for thread, *_ in moves}
    idle = geometry.NUM_THREADS - len(threads)
    figure, (above, below) = style.new_figure(
        f"{len(threads)} threads bring {len(moves)} vecs of q to shared memory; "
        f"{idle} threads load nothing",
        1.7 + 0.24 * geometry.THREAD_GROUP_SIZE,
        nrows=2,
        height_ratios=(1.7, geometry.THREAD_GROUP_SIZE),
    )
    size = geometry.VEC_SIZE
    above.set_title(
        f"q of one head, in vecs of {size} elements, {size * geometry.ITEMSIZE} bytes; "
        "a number is the thread that loads the vec",
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
    _byte_ticks(above, query_bytes(run))
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


def _byte_ticks(axes: Axes, ranges: dict[int, tuple[int, int]]) -> None:
    """Below the vecs: where every 32nd byte, or every 64th, begins, and the end."""
    end = max(last for _, last in ranges.values()) + 1
    step = SECTOR if end <= MOST_TICKS * SECTOR else 2 * SECTOR
    places = {first: vec for vec, (first, _) in ranges.items() if first % step == 0}
    for byte, x in {**places, end: len(ranges)}.items():
        words, side = (f"byte {byte}", "left") if byte == 0 else (str(byte), "center")
        side = "right" if byte == end else side
        axes.plot((x, x), (1, 1.15), color=style.QUIET, lw=0.8, clip_on=False)
        axes.text(x, 1.4, words, ha=side, va="center", color=style.QUIET)
    axes.set_ylim(1.7, -0.05)


def _row_color(row: int, geometry: Geometry) -> str:
    return style.lighter(style.Q, 0.75 * row / geometry.THREAD_GROUP_SIZE)


def draw_reference_query_load() -> Figure:
    return draw_query_load(run_v1(REFERENCE))


# Banks ---------------------------------------------------------------------------------------


SHAPE = "Q_VECS_SHAPE = (THREAD_GROUP_SIZE, NUM_VECS_PER_THREAD, VEC_SIZE)"


@cache
def padded_run(geometry: Geometry, padding: int, loads: LoadsOf = element_loads) -> Run:
    """The kernel on one full block of tokens; `padding` unused vecs end each row of q_vecs."""
    inputs = vars(one_block(geometry).paged("vllm"))
    ready = prepare_v1(**inputs, num_threads=geometry.num_threads, loads=loads)
    if padding:
        longer = SHAPE.replace("PER_THREAD,", f"PER_THREAD + {padding},")
        kernel = changed(paged_attention, SHAPE, longer)(ready.geometry, loads)
        ready = replace(ready, kernel=kernel)
    return watched(ready)


def one_block(geometry: Geometry) -> DecodeProblem:
    """A decode step of this geometry over one full block."""
    return DecodeProblem(
        "one_block",
        "the reads of q_vecs for one key token",
        "",
        seq_lens=(geometry.block_size,),
        num_heads=geometry.num_queries_per_kv,
        num_kv_heads=1,
        head_size=geometry.head_size,
        block_size=geometry.block_size,
        dtype=geometry.dtype,
    )


def query_reads(geometry: Geometry, padding: int = 0, loads: LoadsOf = element_loads) -> Trace:
    """How the first warp reads q_vecs in the kernel, for one key token of each thread group."""
    return padded_run(geometry, padding, loads).trace.only(array="q_vecs", kind="read", warp=0)


@style.styled
def draw_query_banks(geometry: Geometry) -> Figure:
    """q_vecs in its banks, and the first read of it: as in vLLM, and with one vec of padding."""
    rows, wavefronts = geometry.THREAD_GROUP_SIZE, []
    figure, panels = style.new_figure("", 0.9 + 0.5 * rows, nrows=2)
    for axes, padding in zip(panels, (0, 1), strict=True):
        reads = query_reads(geometry, padding)
        first = reads.only(instruction=int(reads.records.instruction.min()))
        wavefronts.append(shared_traffic(first).total("wavefronts"))
        words = "as in vLLM" if padding == 0 else "one vec more in each row"
        count = f"{wavefronts[-1]} wavefront{'s' * (wavefronts[-1] > 1)}"
        axes.set_title(f"q_vecs {words}: {count}", weight="normal")
        _banks_of_rows(axes, first, geometry, padding)
    figure.suptitle(
        f"The {rows} rows of q_vecs begin in the same bank: {wavefronts[0]} wavefronts for a read. "
        f"One vec of padding: {wavefronts[1]}",
        **style.TITLE,
    )
    return figure


def _banks_of_rows(axes: Axes, read: Trace, geometry: Geometry, padding: int) -> None:
    """A cell is a vec, the number its first bank; dark: read by the request, hatched: padding."""
    array = read.the_array()
    rows, columns, size = array.shape
    style.bare(axes, columns, rows)
    axes.set_aspect("auto")
    row, vec, _ = array.indices(read.records.address)
    wanted = {*zip(row.tolist(), vec.tolist(), strict=True)}
    vec_bytes = size * geometry.ITEMSIZE
    for number in range(rows * columns):
        place = divmod(number, columns)
        bank = (array.address + number * vec_bytes) // WORD % NUM_BANKS
        color = style.Q if place in wanted else style.lighter(style.Q, 0.8)
        unused = place[1] >= columns - padding
        style.cell(axes, place[1], place[0], color, "" if unused else str(bank), unused=unused)
    for row in range(rows):
        words = f"offset {row}: bank"
        axes.text(-0.1, row + 0.5, words, ha="right", va="center", color=style.QUIET)


def draw_reference_query_banks() -> Figure:
    return draw_query_banks(run_v1(REFERENCE).geometry)
