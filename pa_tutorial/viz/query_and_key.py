"""The figures of notebook 10: which thread reads which bytes of q and K, and q times k."""

from dataclasses import replace
from functools import cache
from itertools import chain
from typing import NamedTuple

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numba import cuda, float32

from pa_tutorial.checks.problem import DecodeProblem
from pa_tutorial.kernels.cuda_backends import CudaBackend, PagedBackend, v1_backend
from pa_tutorial.kernels.cuda_launch import PagedLaunch, as_stored
from pa_tutorial.kernels.geometry import Geometry
from pa_tutorial.kernels.v1 import (
    BLOCK_SIZE,
    K_VECS_SHAPE,
    Q_VECS_SHAPE,
    THREAD_GROUP_SIZE,
    index_t,
    load_key,
    load_query,
    qk_dot,
    scalar_t,
)
from pa_tutorial.kernels.vectors import as_float
from pa_tutorial.viz import style
from pa_tutorial.viz.drawing import (
    SMALL,
    arrow,
    board,
    box,
    cell,
    cells,
    note,
    plural,
    span,
    write,
)
from pa_tutorial.viz.kernel_runs import REFERENCE, Run, of_block, places, run_v1
from pa_tutorial.viz.traces import elements_of_records
from simt import Snapshot, Trace, launch, shared_traffic
from simt.traffic import NUM_BANKS, WORD

VECS_SHOWN = 16  # of q
VECS_DRAWN = 8  # of a thread's share of K


class Dealt(NamedTuple):
    """What a place of q_vecs got: the number of a vec of q, or None if it isn't a whole one, and
    the thread groups that copied it."""

    vec: int | None
    groups: set[int]


NOT_DEALT = Dealt(None, set())


def deal_of_query(run: Run) -> dict[tuple[int, int], Dealt]:
    """(share, place in the share) -> what load_query put there, from the trace.

    What a thread reads from q is what it writes next to q_vecs.
    """
    g, found = run.geometry, {}
    read, written = run.trace.only(array="q"), run.trace.only(array="q_vecs", kind="write")
    for thread in np.unique(written.threads).tolist():
        of_thread = (replace(t, records=t.records[t.threads == thread]) for t in (read, written))
        sources, targets = (chain(*elements_of_records(trace)) for trace in of_thread)
        for source, target in zip(sources, targets, strict=False):
            place = divmod(target // g.VEC_SIZE, g.NUM_VECS_PER_THREAD)
            elements, groups = found.setdefault(place, ({}, set()))
            elements[target % g.VEC_SIZE] = source % g.HEAD_SIZE
            groups.add(thread // g.THREAD_GROUP_SIZE)
    return {at: Dealt(vec_of(elements, g.VEC_SIZE), who) for at, (elements, who) in found.items()}


def vec_of(elements: dict[int, int], size: int) -> int | None:
    """The number of the vec that consists of these elements of a head, each at its place in it."""
    starts = {elements.get(place, -1) - place for place in range(size)}
    return start // size if len(starts) == 1 and (start := min(starts)) % size == 0 else None


@style.styled
def draw_shares(problem: DecodeProblem, backend: PagedBackend = v1_backend) -> Figure:
    """The vecs of q along the head, and below them the shares of q_vecs into which they go."""
    run = run_v1(problem, backend=backend)
    g, deal = run.geometry, deal_of_query(run)
    shares, in_all = g.THREAD_GROUP_SIZE, g.THREAD_GROUP_SIZE * g.NUM_VECS_PER_THREAD
    places = min(g.NUM_VECS_PER_THREAD, VECS_SHOWN // shares)
    wide = min(2, VECS_SHOWN / places)
    figure, axes = style.new_figure(_finding_of_deal(g, deal), 1.35 + 0.27 * shares)
    board(axes, VECS_SHOWN + 0.05, shares + 4, left=-4)
    shades = [style.lighter(style.Q, 0.8 * share / shares) for share in range(shares)]
    share_of = {dealt.vec: share for (share, _), dealt in deal.items()}
    for vec in range(min(in_all, VECS_SHOWN)):
        box(axes, vec, 0, 1, 1, shades[share_of[vec]] if vec in share_of else style.EMPTY, vec)
    if in_all > VECS_SHOWN:
        note(axes, VECS_SHOWN, 1.4, f"… up to vec {in_all - 1}", "right")
    for share in range(shares):
        note(axes, -4, share + 3.3, f"share {share}: q_vecs[{share}]", "left")
        for place in range(places):
            vec = deal.get((share, place), NOT_DEALT).vec
            text = "?" if vec is None else vec
            box(axes, wide * place, share + 2.8, wide, 1, shades[share], text)
    note(axes, -4, 0.5, "vecs of q", "left")
    note(axes, -4, 2.4, "place in the share", "left")
    note(axes, -4, shares + 3.3, "copied by group", "left")
    for place in range(places):
        dealt = (deal.get((share, place), NOT_DEALT) for share in range(shares))
        groups = sorted({group for one in dealt for group in one.groups})
        note(axes, wide * (place + 0.5), 2.4, place)
        note(axes, wide * (place + 0.5), shares + 3.3, ", ".join(map(str, groups)))
    return figure


def _finding_of_deal(g: Geometry, deal: dict[tuple[int, int], Dealt]) -> str:
    shares, vecs = g.THREAD_GROUP_SIZE, g.NUM_VECS_PER_THREAD
    for share, place in np.ndindex(shares, vecs):
        wanted, found = share + place * shares, deal.get((share, place), NOT_DEALT).vec
        if found != wanted:
            words = (
                f"The deal puts vec {wanted} into place {place} of share {share}; this run puts "
            )
            return words + ("no whole vec there" if found is None else f"vec {found} there")
    return (
        f"The {plural(shares * vecs, 'vec')} of q are dealt out like cards: "
        f"{plural(shares, 'share')} of {vecs}, one for each thread of a group"
    )


@style.styled
def draw_blocks_of_warps(run: Run) -> Figure:
    """Which warp reads K of which block, and which threads handle which token in it."""
    (table,), geometry = run["block_tables"].tolist(), run.geometry
    reads = run.trace.only(array="k_cache")
    physical = places(reads)[0]
    used = {*physical.tolist()}
    table = [number for number in table if number in used]
    readers = {b: np.unique(reads.records.warp[physical == b]).tolist() for b in used}
    in_turn = [[block_idx % geometry.NUM_WARPS] for block_idx in range(len(table))]
    who = f"Warp w takes blocks w, w + {geometry.NUM_WARPS}, …, "
    if [readers[number] for number in table] != in_turn:
        who = f"{geometry.NUM_WARPS} warps share {plural(len(table), 'block')}, "
    who += f"and in a block each group of {geometry.THREAD_GROUP_SIZE} threads takes a token"
    figure, axes = style.new_figure(who, 2.4)
    board(axes, len(table), geometry.NUM_WARPS + 3.4, top=-0.8)
    note(axes, 0, -0.45, "logical block index", "left")
    for block_idx, number in enumerate(table):
        write(axes, block_idx + 0.5, 0.35, block_idx)
        for warp in range(geometry.NUM_WARPS):
            here = warp in readers[number]
            shade = style.lighter(style.K, 0.7 * warp / geometry.NUM_WARPS)
            color = shade if here else style.EMPTY
            cell(axes, block_idx, warp + 0.8, color, f"block {number}" if here else "")
    for warp in range(geometry.NUM_WARPS):
        note(axes, -0.1, warp + 1.3, f"warp {warp}", "right")
    _tokens_of_block(axes, run, table[:2][-1], len(table), geometry.NUM_WARPS + 2.2)
    return figure


def _tokens_of_block(axes: Axes, run: Run, block: int, width: float, y: float) -> None:
    """The tokens of a block, with the threads that read their K."""
    keys = of_block(run, "k_cache", block)
    *_, token, _ = places(keys)
    size = run.geometry.BLOCK_SIZE
    words = f"block {block}: the threads that read the K of its {size} tokens"
    note(axes, 0, y - 0.4, words, "left")
    for offset in range(size):
        threads = np.unique(keys.threads[token == offset]).tolist()
        words = span(threads) if threads else "none"
        face = style.lighter(style.K, 0.3 + 0.35 * (offset % 2))
        box(axes, offset * width / size, y, width / size, 1, face, words)


def vecs_read(run: Run, thread: int, block: int) -> list[tuple[int, ...]]:
    """The vecs of K that a thread reads in a block, in the order of the trace: the index in k_cache
    of the first element of each."""
    reads, size = of_block(run, "k_cache", block), run.geometry.VEC_SIZE
    *index, element = (axis[reads.threads == thread] for axis in places(reads))
    vecs = zip(*(axis.tolist() for axis in (*index, element // size * size)), strict=True)
    return list(dict.fromkeys(vecs))


def key_terms(run: Run, vec: tuple[int, ...]) -> dict[str, int]:
    """The terms of the offset of a vec, in elements, as notebook 10 writes them."""
    terms = (i * step for i, step in zip(vec, run["k_cache"].stride(), strict=True))
    block, head, piece, token, element = terms
    return {
        "block * of_block": block,
        "kv_head_idx * of_head": head,
        "token * of_token": token,
        "element // X * of_piece": piece,
        "element % X": element,
    }


@style.styled
def draw_key_address(run: Run, thread: int, block: int) -> Figure:
    """From the pool to a vec: each term of the address is a step into the picture.

    thread  if it doesn't read this block, the first that does takes its place
    """
    g, readers = run.geometry, of_block(run, "k_cache", block).threads
    thread = thread if thread in readers else int(readers.min())
    vecs = vecs_read(run, thread, block)
    num_vecs, vecs = len(vecs), vecs[:VECS_DRAWN]
    pieces = range(min(vec[2] for vec in vecs), max(vec[2] for vec in vecs) + 1)
    terms = key_terms(run, vecs[-1])
    figure, axes = style.new_figure(
        f"Five terms add up to element {sum(terms.values())} of k_cache, "
        f"where thread {thread} reads its vec j = {len(vecs) - 1}",
        3.2 + 0.22 * len(pieces),
    )
    columns, top = g.BLOCK_SIZE * g.X // g.VEC_SIZE, 6.4
    bottom = top + len(pieces) + 0.25
    board(axes, columns, bottom + 0.9, top=-0.9)
    num_blocks, num_kv_heads, *_ = run["k_cache"].shape
    names, values = list(terms), list(terms.values())
    _level(axes, 0, num_blocks, block, columns, "block", f"{names[0]} = {values[0]}")
    _level(axes, 2.2, num_kv_heads, run.kv_head, columns, "KV head", f"{names[1]} = {values[1]}")
    order = [(piece, token, element // g.VEC_SIZE) for _, _, piece, token, element in vecs]
    per_piece = g.X // g.VEC_SIZE
    token = order[-1][1]
    write(axes, 0, top - 1.75, f"{names[2]} = {values[2]}: the column of the token", "left")
    below = f"{names[3]} = {values[3]}: the row of the piece;   {names[4]} = {values[4]}: vec j"
    write(axes, 0, top - 1.1, below, "left")
    for piece in pieces:
        y = top + piece - pieces.start
        for column in range(columns):
            own = column // per_piece == token
            face = style.lighter(style.K, 0.6) if own else style.EMPTY
            place = (piece, column // per_piece, column % per_piece)
            text = order.index(place) if place in order else ""
            color = face if text == "" else style.K
            box(axes, column, y, 1, 1, color, text, SMALL, linewidth=1.2)
        write(axes, -0.2, y + 0.5, f"piece {piece}", "right")
    if num_vecs > len(vecs):
        note(axes, -0.2, bottom + 0.2, f"… up to j = {num_vecs - 1}", "right")
    ends = token * per_piece + 0.05, (token + 1) * per_piece - 0.05
    axes.plot(ends, (bottom, bottom), color=style.INK, linewidth=1.2)
    side, end = ("left", ends[0]) if token < g.BLOCK_SIZE // 2 else ("right", ends[1])
    write(axes, end, bottom + 0.5, f"x = {g.X} elements, 16 bytes", side)
    note(axes, -0.2, top - 0.35, "token", "right")
    for offset in range(g.BLOCK_SIZE):
        note(axes, (offset + 0.5) * per_piece, top - 0.35, offset)
    return figure


def _level(
    axes: Axes, y: float, count: int, chosen: int, columns: int, name: str, term: str
) -> None:
    """One step of the zoom: equal parts, one of them chosen."""
    # Where no line of the zoom passes: above the first level, between the lines of the second.
    x, side = (0, "left") if y == 0 else (0.64 * columns, "center")
    write(axes, x, y - 0.4, term, side)
    step = columns / count
    for number in range(count):
        face = style.K if number == chosen else style.EMPTY
        box(axes, number * step, y, step, 1, face, f"{name} {number}")
    for corner, edge in ((chosen * step, 0), ((chosen + 1) * step, columns)):
        axes.plot((corner, edge), (y + 1, y + 1.75), color=style.QUIET, linewidth=0.8)


def plain_key_trace(run: Run) -> Trace:
    """The reads of K of the same kernel, over the same tokens in the plain layout.

    Raises AssertionError if the output differs from the output of `run`.
    """
    prepared, head_size = run.prepared, run.geometry.HEAD_SIZE
    # One piece with all elements of a token: X = HEAD_SIZE.
    plain = run["k_cache"].transpose(2, 3).flatten(3).unsqueeze(2)
    out = torch.full_like(prepared.out, torch.nan)
    arguments = prepared.arguments | {"k_cache": plain, "out": as_stored(out)}
    again = replace(prepared, arguments=arguments, out=out)
    report = with_sizes(run.backend, again, X=head_size).simulate(trace=0)
    assert (out == prepared.out).all(), "another layout of K must not change the output"
    return report.trace.only(array="k_cache")


def with_sizes(backend: CudaBackend, launch: PagedLaunch, **sizes: object) -> PagedLaunch:
    """A launch of v1 with other values for constants of its file."""
    namespace = backend.namespace(**launch.geometry.sizes, **sizes)
    return replace(launch, namespace=namespace, kernel=namespace.paged_attention_v1)


def one_block(geometry: Geometry) -> DecodeProblem:
    """A decode step of this geometry over one full block."""
    sizes = {"head_size": geometry.head_size, "block_size": geometry.block_size}
    sizes |= {"num_heads": geometry.num_queries_per_kv, "num_kv_heads": 1}
    return replace(REFERENCE, seq_lens=(geometry.block_size,), dtype=geometry.dtype, **sizes)


@cache
def query_reads(geometry: Geometry, padding: int, backend: PagedBackend) -> Trace:
    """How a warp reads q_vecs for one key token of each thread group, if `padding` unused vecs end
    each share."""
    step = one_block(geometry).paged("vllm")
    launch = backend.prepare(step, num_threads=geometry.num_threads)
    shares, vecs, size = geometry.q_vecs_shape
    padded = with_sizes(backend, launch, Q_VECS_SHAPE=(shares, vecs + padding, size))
    reads = padded.traced().only(array="q_vecs", kind="read")
    return reads.only(warp=int(reads.records.warp[0]))


@style.styled
def draw_query_banks(geometry: Geometry, backend: PagedBackend = v1_backend) -> Figure:
    """q_vecs in its banks, and the first read of it: as in vLLM, and with one vec of padding."""
    rows, wavefronts = geometry.THREAD_GROUP_SIZE, []
    figure, panels = style.new_figure("", 0.9 + 0.5 * rows, nrows=2)
    for axes, padding in zip(panels, (0, 1), strict=True):
        reads = query_reads(geometry, padding, backend)
        first = reads.only(instruction=int(reads.records.instruction.min()))
        wavefronts.append(shared_traffic(first).total("wavefronts"))
        words = "as in vLLM" if padding == 0 else "one vec more in each share"
        count = f"{wavefronts[-1]} wavefront{'s' * (wavefronts[-1] > 1)}"
        axes.set_title(f"q_vecs {words}: {count}", weight="normal")
        _banks_of_rows(axes, first, geometry, padding)
    figure.suptitle(
        f"The {rows} shares begin in one bank, so a read takes {wavefronts[0]} wavefronts; "
        f"a vec of padding makes it {wavefronts[1]}",
        **style.TITLE,
    )
    return figure


def _banks_of_rows(axes: Axes, read: Trace, geometry: Geometry, padding: int) -> None:
    """A cell is a vec, labelled with its first bank; dark: read at once, hatched: padding."""
    array = read.the_array()
    rows, columns, size = array.shape
    board(axes, columns, rows)
    at, vec, _ = array.indices(read.records.address)
    wanted = {*zip(at.tolist(), vec.tolist(), strict=True)}
    vec_bytes = size * geometry.ITEMSIZE
    for number in range(rows * columns):
        y, x = place = divmod(number, columns)
        bank = (array.address + number * vec_bytes) // WORD % NUM_BANKS
        color = style.Q if place in wanted else style.lighter(style.Q, 0.8)
        unused = x >= columns - padding
        cell(axes, x, y, color, "" if unused else bank, unused=unused)
    for number in range(rows):
        note(axes, -0.1, number + 0.5, f"offset {number}: bank", "right")


VEC_GAP, SUM_GAP, MARGIN = 0.15, 0.7, 1.5  # cells
MOST_ELEMENTS = 8  # per thread, of q and of K: more don't fit
THREAD = 3.1  # cells from one thread to the next


def partial_sums(snapshot: Snapshot, group: int) -> list[np.ndarray]:
    """The sum that each thread of a group should have before and after each shuffle, computed from
    its vecs: [THREAD_GROUP_SIZE].

    snapshot   holds q_vecs [THREAD_GROUP_SIZE, NUM_VECS_PER_THREAD, VEC_SIZE] and, of each thread,
           k_vecs [NUM_VECS_PER_THREAD, VEC_SIZE], in float32
    """
    q_vecs = as_float(snapshot["q_vecs"].data)
    products = q_vecs * of_group(snapshot, "k_vecs", group)
    size = len(q_vecs)
    # One addition after the other, as in the kernel.
    sums = [np.cumsum(products.reshape(size, -1), axis=1, dtype=np.float32)[:, -1]]
    mask = size // 2
    while mask >= 1:
        sums.append(sums[-1] + sums[-1][np.arange(size) ^ mask])
        mask //= 2
    return sums


def of_group(snapshot: Snapshot, name: str, group: int) -> np.ndarray:
    """A variable's value in each thread of a group, [THREAD_GROUP_SIZE, ...]."""
    size = len(snapshot["q_vecs"])
    places = np.searchsorted(snapshot.threads, range(group * size, group * size + size))
    return np.ma.filled(snapshot[name][places], np.nan)


@cuda.jit
def scores_of_block(out, q, k_block):
    """Each warp computes the scores of this block. It is executed in a backend's namespace, so the
    names above are there for readers and linters."""
    thread_idx = index_t(cuda.threadIdx.x)
    q_vecs = cuda.shared.array(Q_VECS_SHAPE, scalar_t)
    load_query(q_vecs, q, thread_idx)
    k_vecs = cuda.local.array(K_VECS_SHAPE, float32)
    load_key(k_vecs, k_block, thread_idx // THREAD_GROUP_SIZE % BLOCK_SIZE, thread_idx)
    qk = qk_dot(q_vecs[thread_idx % THREAD_GROUP_SIZE], k_vecs)
    out[thread_idx] = qk


def look_at_block(problem: DecodeProblem, backend: PagedBackend = v1_backend) -> Snapshot:
    """q_vecs, and k_vecs and qk of each thread, for head 0 and the first block of sequence 0."""
    step = problem.paged("vllm")
    prepared = backend.with_functions(v1=[scores_of_block]).prepare(step)
    q, k_cache = (prepared.arguments[name] for name in ("q", "k_cache"))
    size = prepared.geometry.NUM_THREADS
    given = torch.zeros(size), q[0, 0], k_cache[int(step.block_tables[0, 0]), 0]
    names = "q_vecs", "k_vecs", "qk"
    report = launch(prepared.namespace.scores_of_block, 1, size, *given, watch="end", names=names)
    return report.at("end")[0]


def draw_score(
    problem: DecodeProblem, backend: PagedBackend = v1_backend, group: int = 0
) -> Figure:
    """How the threads of a group come to the score of their token, in the first block."""
    return draw_qk(look_at_block(problem, backend), group, problem.paged("vllm").scale)


@style.styled
def draw_qk(snapshot: Snapshot, group: int, scale: float) -> Figure:
    """One key token in one thread group, with its numbers.

    snapshot  when the threads have q_vecs, k_vecs of this token, and qk; see partial_sums
    group     number of the thread group in the thread block
    scale     the kernel's scale
    """
    q_vecs, k_vecs = as_float(snapshot["q_vecs"].data), of_group(snapshot, "k_vecs", group)
    size, num_vecs, vec_size = k_vecs.shape
    sums, qk = partial_sums(snapshot, group), of_group(snapshot, "qk", group)
    is_right = np.allclose(qk, sums[-1], rtol=1e-4, atol=1e-5)
    if is_right:
        shuffles = plural(len(sums) - 1, "shuffle")
        who = {1: "one thread has", 2: "both threads have"}.get(size, f"all {size} threads have")
        title = f"After {num_vecs * vec_size} products each and {shuffles}, "
        title += f"{who} q · k of their token, {qk[0]:.3f}"
    else:
        found = ", ".join(f"{score:.3f}" for score in qk)
        title = f"For this key token, q · k is {sums[-1][0]:.3f}; "
        title += f"in this run its threads have {found}"
    columns = {f"mask {size >> n}" if n else "sum": values for n, values in enumerate(sums)}
    if is_right:  # the last sums are those of the run
        columns.popitem()
    figure, axes = style.new_figure(title, 0.75 + 0.22 * THREAD * size)
    shown = max(1, MOST_ELEMENTS // vec_size)
    wide = min(shown, num_vecs) * (vec_size + VEC_GAP) + 1.2 * (num_vecs > shown)
    right = wide + 1.7 + len(columns) * (1 + SUM_GAP)
    board(axes, right, THREAD * size - 0.3, -MARGIN, -1.5)
    for thread in range(size):
        vecs = q_vecs[thread, :shown], k_vecs[thread, :shown]
        _thread(axes, THREAD * thread, group * size, *vecs, thread, size)
        if num_vecs > shown:
            words = f"and {num_vecs - shown}\nmore"
            write(axes, wide - 0.6, THREAD * thread + 1, words, size=SMALL)
    note(axes, 0, -1, "above each vec: which elements of the head", "left", size=SMALL)
    note(axes, right, -1, "computed; qk: in the run", "right", size=SMALL)
    _sums(axes, wide + 0.7, columns | {"qk": qk}, is_right)
    words = f"× {scale:.3f} = {scale * qk[0]:.3f}"
    write(axes, right, THREAD * size - 1.2, words, "right", size=SMALL, weight="bold")
    return figure


def _thread(
    axes: Axes, y: float, group_start: int, q: np.ndarray, k: np.ndarray, offset: int, size: int
) -> None:
    """A thread's vecs: share `offset` of q_vecs above, its k_vecs below."""
    name = f"thread {group_start + offset}"
    write(axes, -MARGIN, y - 0.3, name, "left", weight="bold", size=SMALL)
    note(axes, -0.1, y + 0.5, f"q_vecs[{offset}]", "right", size=SMALL)
    note(axes, -0.1, y + 1.5, "k_vecs", "right", size=SMALL)
    num_vecs, vec_size = q.shape
    for j in range(num_vecs):
        x = j * (vec_size + VEC_GAP)
        first = (offset + j * size) * vec_size
        note(axes, x + vec_size / 2, y - 0.3, span((first, first + vec_size - 1)), size=SMALL)
        cells(axes, x, y, map(_rounded, q[j]), style.lighter(style.Q, 0.6), SMALL)
        cells(axes, x, y + 1, map(_rounded, k[j]), style.lighter(style.K, 0.45), SMALL)


def _rounded(value: np.floating) -> str:
    return f"{round(float(value), 3) + 0.0:g}"


def _sums(axes: Axes, x: float, columns: dict[str, np.ndarray], is_right: bool) -> None:
    """One column for the sums before the shuffles and after each; the last one is the run's."""
    for column, (name, values) in enumerate(columns.items()):
        shade = style.lighter(style.LOGITS, max(0, 0.8 - 0.3 * column))
        left, mask, is_run = x + column * (1 + SUM_GAP), len(values) >> column, name == "qk"
        note(axes, left + 0.5, -0.3, name, size=SMALL)
        for thread, value in enumerate(values):
            here = THREAD * thread + 0.5
            box(axes, left, here, 1, 1, shade, _rounded(value), SMALL)
            if column and (is_right or not is_run):
                ends, own, other = (left - SUM_GAP, left), here + 0.5, THREAD * (thread ^ mask) + 1
                axes.plot(ends, (own, own), color=style.QUIET, lw=0.8, zorder=0)
                arrow(axes, (ends[0], other), (ends[1], own))
