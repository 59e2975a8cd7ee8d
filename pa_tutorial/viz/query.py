"""The banks of q in shared memory, drawn from traces."""

from dataclasses import replace
from functools import cache

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pa_tutorial.kernels.geometry import Geometry
from pa_tutorial.kernels.launch import prepare_v1
from pa_tutorial.kernels.loads import LoadsOf, element_loads
from pa_tutorial.kernels.running import with_names
from pa_tutorial.simt import Trace, shared_traffic
from pa_tutorial.simt.traffic import NUM_BANKS, WORD
from pa_tutorial.viz import style
from pa_tutorial.viz.kernel_runs import REFERENCE, Run, run_v1, watched
from pa_tutorial.walk.problem import DecodeProblem


@cache
def padded_run(geometry: Geometry, padding: int, loads: LoadsOf = element_loads) -> Run:
    """The kernel on one full block of tokens; `padding` unused vecs end each row of q_vecs."""
    inputs = vars(one_block(geometry).paged("vllm"))
    prepared = prepare_v1(**inputs, num_threads=geometry.num_threads, loads=loads)
    if padding:
        g = prepared.geometry
        shape = g.THREAD_GROUP_SIZE, g.NUM_VECS_PER_THREAD + padding, g.VEC_SIZE
        prepared = replace(prepared, kernel=with_names(prepared.kernel, Q_VECS_SHAPE=shape))
    return watched(prepared)


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
