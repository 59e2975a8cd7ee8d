"""Paged attention for the CPU: one decode step on all cores, compiled with numba.njit.

It reads the plain layout, K and V [num_blocks, num_kv_heads, block_size, head_size], in which one
block of K (all heads of 16 tokens) is contiguous in memory. A core goes through a sequence in turns
of TURN tokens:

    score   qk = q . k for every head and token      K is read from the start of a block to its end
    weigh   online softmax of the turn: maximum, weights, sum
    add     accs += weight * v                       V is read from the start of a block to its end

These three choose their vectors themselves (vectors.py). The blocks of the batch are cut into
equal shares, runs of blocks that may start and end inside a sequence, and a free core takes the
next share. The part of a share that belongs to one sequence is a partition, as in v2. The core that
finishes the last partition of a sequence merges them, also as in v2. Some steps are cut by KV heads
too: see `cut` in backend.py.
"""

import sys
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

import numpy as np
from numba import cfunc, njit, prange, types

from pa_tutorial.kernels.cpu import vectors
from pa_tutorial.kernels.cpu.vectors import (
    CACHE_LINE,
    LANES,
    REORDER,
    Pointer,
    Value,
    Variable,
    call,
    chunks,
    count_up,
    e_to_the,
    element,
    fetch_add,
    index,
    largest,
    loop,
    maximum,
    padded,
    prefetch,
    select,
    sums,
    unrolled,
    when,
    zeros,
)
from pa_tutorial.private_names import ParallelOptions

# Numba parallelises the loops over prange and nothing else. Looking for whole-array expressions
# too would take up to a third of the compile time, and outside these loops none is worth
# parallelising. Not a dict, because `njit` empties it and the next kernel would get nothing.
OTHERS = ("comprehension", "reduction", "inplace_binop", "setitem", "numpy", "stencil", "fusion")
ONLY_LOOPS = ParallelOptions(dict.fromkeys(OTHERS, False))
ARITHMETIC = {"fastmath": set(REORDER), "error_model": "numpy"}
COMPILED = {"parallel": ONLY_LOOPS, **ARITHMETIC}
# A piece of the kernel is only called from compiled code, so it needs no wrapper for Python.
# LLVM optimises a piece again with each piece that calls it, level by level, so most are `inline`:
# their callers are compiled with a copy of them.
PIECE = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True, **ARITHMETIC}

TOKENS = 4  # whose scores are computed together
HEADS = LANES // TOKENS  # query heads of a KV head that go through K and V together, at most
TURN = 64  # tokens between two looks at the maximum
AHEAD = 8192  # how far ahead of its use a cache line is prefetched, in bytes of K or V


class Inner(NamedTuple):
    """Addresses of the functions that depend on dtypes. They are compiled for each dtype, and the
    rest of the kernel, to which the rows of q, K, V and the output are bytes, only once."""

    read: int  # multiplies a row of q
    write: int  # multiplies a row of the output
    score: int
    add: int


class Inputs(NamedTuple):
    """A decode step as arrays; q, K and V are bytes, uint8."""

    q: np.ndarray  # [num_seqs, num_heads, bytes of a row]
    k_cache: np.ndarray  # [num_blocks, num_kv_heads, block_size, bytes of a row]
    v_cache: np.ndarray
    block_tables: np.ndarray  # [num_seqs, max_num_blocks_per_seq]
    seq_lens: np.ndarray  # [num_seqs]
    k_scales: np.ndarray  # [num_heads] float32: what q is multiplied by, and with it the score
    v_scales: np.ndarray  # [num_heads] float32, for the output; ones unless the cache is 8-bit
    slopes: np.ndarray  # [num_heads] float32, zeros without ALiBi


class Schedule(NamedTuple):
    """Who computes what. Each run fills the arrays anew."""

    num_parts: int  # of the KV heads; each is cut into equally many shares
    max_shares: int  # of the blocks; there is at most one per block
    taken: np.ndarray  # [num_workers] int64: the next of each worker's shares
    first_block: np.ndarray  # [num_seqs + 1] int64: how many blocks the earlier sequences have
    finished: np.ndarray  # [num_parts, num_seqs] int64: partitions of each sequence


class Partitions(NamedTuple):
    """What each partition found. Share i uses row i + seq for sequence seq; from one partition to
    the next, the share or the sequence goes up, so no row is used twice."""

    max_logits: np.ndarray  # [num_shares + num_seqs, num_heads] float32
    exp_sums: np.ndarray  # the same
    tmp_out: np.ndarray  # [num_shares + num_seqs, num_heads, head_size] float32, not divided yet


class Outputs(NamedTuple):
    """What a step computes, in float32, and the output also in the dtype of q."""

    qk_max: np.ndarray  # [num_seqs, num_heads]
    exp_sum: np.ndarray  # [num_seqs, num_heads]
    accs: np.ndarray  # [num_seqs, num_heads, head_size], or [0, ...] if out is float32 already
    out: np.ndarray  # [num_seqs, num_heads, bytes of a row]


class Own(NamedTuple):
    """What one worker writes all the time. A cache line that two cores write to travels between
    them, so each worker has separate arrays."""

    query: np.ndarray  # [num_heads, head_size]   q of a sequence, times the scale
    qk: np.ndarray  # [num_heads, TURN]   scores of a turn, then weights
    m: np.ndarray  # [num_heads]   the largest score so far
    l: np.ndarray  # [num_heads]   the sum of the weights so far
    accs: np.ndarray  # [num_heads, head_size]   the sum of weight * v so far


class Heads(NamedTuple):
    """The heads of one part; a part may be all heads."""

    first_kv: int
    end_kv: int
    first: int
    end: int


def tiles(count: Value, size: int) -> Iterator[tuple[Value, int]]:
    """(start, size) of each tile of `count`: tiles of `size` while they fit, then smaller ones."""
    first = index(0)
    while size:
        stop = count // size * size
        for start in loop(first, stop, size):
            yield start, size
        first, size = stop, size // 2


def place_ahead(rows: Pointer, left: Value, after: Value) -> Value:
    """The address of what is read AHEAD bytes after these rows: in this block, of which `left`
    bytes are still to be read, or in the one at the address `after`."""
    beyond = left - AHEAD
    return select(beyond > 0, rows.number + AHEAD, after - beyond)


def ask(place: Value, size: int, part: int = 0, parts: int = 1) -> None:
    """Prefetch one of `parts` parts of the cache lines of `size` bytes."""
    lines = -(-size // CACHE_LINE)
    for line in range(part * lines // parts, (part + 1) * lines // parts):
        prefetch(place + line * CACHE_LINE)


@unrolled
def score(
    q: Pointer,
    k: Pointer,
    left: Value,
    after: Value,
    num_tokens: Value,
    group: Value,
    qk: Pointer,
    HEAD_SIZE: int,
) -> None:
    """qk[head, token] = q . k for one KV head of one block.

    q     [group, HEAD_SIZE] float32, already multiplied by the scale
    k     [num_tokens, HEAD_SIZE]
    left, after  see place_ahead
    qk    [group, TURN], starting at the block's first token
    """
    size = HEAD_SIZE * k.itemsize
    parts = list(chunks(HEAD_SIZE))
    for t in loop(0, num_tokens, TOKENS):
        # A block ends with a whole tile. Empty slots, even with NaN, get no weight in `weigh`.
        rows = [k + (t + i) * HEAD_SIZE for i in range(TOKENS)]
        place = place_ahead(k + t * HEAD_SIZE, left - t * size, after)
        for head, heads in tiles(group, HEADS):
            queries = [q + (head + h) * HEAD_SIZE for h in range(heads)]
            qks = [zeros() for _ in range(heads * TOKENS)]
            for part, (d, width) in enumerate(parts):
                ask(place, TOKENS * size, part, len(parts))
                k_vecs = [padded(row.load(d, width)) for row in rows]
                for h, query in enumerate(queries):
                    q_vec = padded(query.load(d, width))
                    for i, k_vec in enumerate(k_vecs):
                        qks[h * TOKENS + i] += q_vec * k_vec
            scores = sums(qks)
            for h in range(heads):
                own = scores.shuffled(range(h * TOKENS, (h + 1) * TOKENS))
                (qk + (head + h) * TURN + t).store(0, own)


@unrolled
def weigh(
    qk: Pointer,
    slopes: Pointer,
    qk_max: Pointer,
    exp_sum: Pointer,
    accs: Pointer,
    num_heads: Value,
    num_tokens: Value,
    distance: Value,
    head_size: Value,
) -> None:
    """Turn the scores of a turn into weights: one update of the online softmax for every head.

    qk               [num_heads, TURN]   scores, then weights
    distance         from the query to the turn's first token, 0 or less; for ALiBi
    qk_max, exp_sum  [num_heads], and accs [num_heads, head_size]: over all turns so far
    """
    for head in loop(0, num_heads):
        scores = qk + head * TURN
        m, l = qk_max + head, exp_sum + head
        slope = (slopes + head).load(0, 0)
        rows = []
        for t in range(0, TURN, LANES):
            token = count_up() + t
            row = scores.load(t) + slope * (token + distance.to_float())
            rows.append(select(token < num_tokens.to_float(), row, zeros() - float("inf")))
        top = rows[0]
        for row in rows[1:]:
            top = maximum(row, top)
        m_old = m.load(0, 0)
        m_new = maximum(largest(top), m_old)
        for _ in when(m_new > m_old):
            # m' > m: what was summed relative to m counts e**(m - m') relative to m'
            factor = e_to_the(m_old - m_new)
            m.store(0, m_new)
            l.store(0, l.load(0, 0) * factor)
            own = accs + head * head_size
            for d, width in tiles(head_size, LANES):
                own.store(d, own.load(d, width) * factor)
        total = zeros()
        for i, row in enumerate(rows):
            weights = e_to_the(row - m_new)
            scores.store(i * LANES, weights)
            total += weights
        l.store(0, l.load(0, 0) + element(sums([total]), 0))


@unrolled
def add(
    weights: Pointer,
    v: Pointer,
    left: Value,
    after: Value,
    num_tokens: Value,
    group: Value,
    accs: Pointer,
    HEAD_SIZE: int,
) -> None:
    """accs[head] += weights[head, token] * v for one KV head of one block; see score."""
    size = HEAD_SIZE * v.itemsize
    parts = list(chunks(HEAD_SIZE))
    for head, heads in tiles(group, HEADS):
        columns = LANES // heads  # how many vectors of each head fit into the registers
        for first in range(0, len(parts), columns):
            places = [
                (h, d, width) for d, width in parts[first : first + columns] for h in range(heads)
            ]
            rows = [accs + (head + h) * HEAD_SIZE for h in range(heads)]
            own = [weights + (head + h) * TURN for h in range(heads)]
            totals = {(h, d): Variable(rows[h].load(d, width)) for h, d, width in places}
            for t in loop(0, num_tokens):
                row = v + t * HEAD_SIZE
                if first == 0:
                    ask(place_ahead(row, left - t * size, after), size)
                weight = [(own[h] + t).load(0, 0) for h in range(heads)]
                v_vecs = {d: row.load(d, width) for _, d, width in places}
                for h, d, _ in places:
                    totals[h, d].value += weight[h] * v_vecs[d]
            for h, d, _ in places:
                rows[h].store(d, totals[h, d].value)


@unrolled
def multiply(source: Pointer, factor: Value, target: Pointer, size: Value) -> None:
    """target = source * factor, [size]; each in its own dtype."""
    for i, width in tiles(size, LANES):
        target.store(i, source.load(i, width) * factor)


exp = unrolled(e_to_the)


@unrolled
def convert(function: Value, source: Pointer, factor: Value, target: Pointer, size: Value) -> None:
    """Call Inner.read or Inner.write."""
    call(function, source.number, factor, target.number, size)


@unrolled
def run(
    function: Value,
    source: Pointer,
    rows: Pointer,
    left: Value,
    after: Value,
    num_tokens: Value,
    group: Value,
    target: Pointer,
) -> None:
    """Call Inner.score or Inner.add."""
    call(function, source.number, rows.number, left, after, num_tokens, group, target.number)


@unrolled
def address(memory: Pointer) -> int:
    return memory.number


@unrolled
def take(counter: Pointer) -> int:
    return fetch_add(counter, 1)


@njit(**PIECE)
def deal_out(inputs, schedule):
    """Count the blocks, set the counters, return the number of shares, at most one per block."""
    num_parts, max_shares, taken, first_block, finished = schedule
    first_block[0] = 0
    for seq in range(len(inputs.seq_lens)):
        num_blocks = -(-inputs.seq_lens[seq] // inputs.k_cache.shape[2])
        first_block[seq + 1] = first_block[seq] + num_blocks
        for part in range(num_parts):
            finished[part, seq] = 0
    num_shares = min(max_shares, first_block[-1])
    for worker in range(len(taken)):
        taken[worker] = worker * num_parts * num_shares // len(taken)
    return num_shares


@njit(**PIECE)
def work(worker, num_shares, inputs, schedule, partitions, outputs, inner):
    """One core's work: first its own shares, which its caches may still hold, then the others'."""
    _, num_heads, head_size = partitions.tmp_out.shape
    num_workers = len(schedule.taken)
    own = Own(
        np.empty((num_heads, head_size), np.float32),
        np.empty((num_heads, TURN), np.float32),
        np.empty(num_heads, np.float32),
        np.empty(num_heads, np.float32),
        np.empty((num_heads, head_size), np.float32),
    )
    for i in range(num_workers):
        owner = (worker + i) % num_workers
        end = (owner + 1) * schedule.num_parts * num_shares // num_workers
        share = take(schedule.taken, owner)
        while share < end:
            attend_share(share, num_shares, inputs, schedule, partitions, outputs, own, inner)
            share = take(schedule.taken, owner)


@njit(inline="always")
def attend_share(share, num_shares, inputs, schedule, partitions, outputs, own, inner):
    """Compute the partitions of a share, one after the other."""
    num_parts, _, _, first_block, finished = schedule
    num_blocks, num_kv_heads = first_block[-1], inputs.k_cache.shape[1]
    part, place = share // num_shares, share % num_shares
    first_kv, end_kv = part * num_kv_heads // num_parts, (part + 1) * num_kv_heads // num_parts
    group = inputs.q.shape[1] // num_kv_heads
    heads = Heads(first_kv, end_kv, first_kv * group, end_kv * group)
    # A share ends where the next one starts.
    start, end = place * num_blocks // num_shares, (place + 1) * num_blocks // num_shares
    seq = np.int64(0)
    while first_block[seq + 1] <= start:
        seq += 1
    while start < end:
        stop = min(end, first_block[seq + 1])
        attend(inputs, own, seq, heads, start - first_block[seq], stop - first_block[seq], inner)
        # Block b is in the last share i with i * num_blocks < (b + 1) * num_shares
        first = ((first_block[seq] + 1) * num_shares - 1) // num_blocks
        last = (first_block[seq + 1] * num_shares - 1) // num_blocks
        is_last = first == last
        if not is_last:
            leave(own, heads, partitions, place + seq)
            is_last = take(finished, part * len(inputs.seq_lens) + seq) == last - first
            if is_last:
                merge(partitions, first + seq, last + seq, heads, own)
        if is_last:
            write(own, seq, heads, inputs.v_scales, outputs, inner)
        start, seq = stop, seq + 1


@njit(inline="always")
def attend(inputs, own, seq, heads, start_idx, end_idx, inner):
    """Compute a partition: the blocks start_idx to end_idx - 1 of a sequence."""
    block_size, seq_len = inputs.k_cache.shape[2], np.int64(inputs.seq_lens[seq])
    _, num_heads, row = inputs.q.shape
    head_size = own.accs.shape[1]
    for head in range(heads.first, heads.end):
        own.m[head], own.l[head], accs = -np.inf, 0, own.accs[head]
        for d in range(len(accs)):
            accs[d] = 0
        # Multiplied here, the scale of K costs nothing per token.
        scale, place = inputs.k_scales[head], (seq * num_heads + head) * row
        convert(inner.read, inputs.q, place, scale, own.query, head * head_size, head_size)
    k, v = inputs.k_cache, inputs.v_cache
    for turn in range(start_idx, end_idx, TURN // block_size):
        turn_end = min(turn + TURN // block_size, end_idx)
        go_through(inputs, own, seq, heads, turn, turn_end, k, v, turn, True, inner)
        token = turn * block_size
        num_tokens = min(turn_end * block_size, seq_len) - token
        distance = token - (seq_len - 1)
        weigh(
            own.qk, heads.first * TURN, inputs.slopes, heads.first,
            own.m, heads.first, own.l, heads.first, own.accs, heads.first * head_size,
            heads.end - heads.first, num_tokens, distance, head_size,
        )  # fmt: skip
        following = min(turn_end, end_idx - 1)  # the block whose K is read after the V of these
        go_through(inputs, own, seq, heads, turn, turn_end, v, k, following, False, inner)


@njit(**PIECE)
def go_through(inputs, own, seq, heads, turn, turn_end, cache, other, other_idx, is_k, inner):
    """The blocks turn to turn_end - 1 of one cache, block by block, head by head. K gives the
    scores (is_k), V is added. `other` is the other cache, and other_idx its block that is read
    afterwards.

    No row of a table is taken as an array, because that would count references on a cache line
    that all cores share.
    """
    tables = inputs.block_tables
    _, num_kv_heads, block_size, row = cache.shape
    seq_len, head_size = inputs.seq_lens[seq], own.accs.shape[1]
    group, ROWS = inputs.q.shape[1] // num_kv_heads, block_size * row
    BLOCK, piece = num_kv_heads * ROWS, heads.first_kv * ROWS  # where in a block its heads begin
    for block_idx in range(turn, turn_end):
        after = address(other, tables[seq, other_idx] * BLOCK + piece)
        if block_idx + 1 < turn_end:
            after = address(cache, tables[seq, block_idx + 1] * BLOCK + piece)
        token = (block_idx - turn) * block_size
        num_tokens = min(block_size, seq_len - block_idx * block_size)
        for kv_head in range(heads.first_kv, heads.end_kv):
            head, rows = kv_head * group, tables[seq, block_idx] * BLOCK + kv_head * ROWS
            left = (heads.end_kv - kv_head) * ROWS
            if is_k:
                run(
                    inner.score, own.query, head * head_size, cache, rows,
                    left, after, num_tokens, group, own.qk, head * TURN + token,
                )  # fmt: skip
            else:
                run(
                    inner.add, own.qk, head * TURN + token, cache, rows,
                    left, after, num_tokens, group, own.accs, head * head_size,
                )  # fmt: skip


@njit(inline="always")
def leave(own, heads, partitions, row):
    """Store a partition for the core that merges."""
    for head in range(heads.first, heads.end):
        partitions.max_logits[row, head] = own.m[head]
        partitions.exp_sums[row, head] = own.l[head]
        accs, kept = own.accs[head], partitions.tmp_out[row, head]
        for d in range(len(accs)):
            kept[d] = accs[d]


@njit(inline="always")
def merge(partitions, first_row, last_row, heads, own):
    """Merge the partitions of a sequence into m, l and accs, in order, whichever core does it."""
    for head in range(heads.first, heads.end):
        m, l, accs = partitions.max_logits[first_row, head], np.float32(0), own.accs[head]
        for row in range(first_row + 1, last_row + 1):
            m = max(m, partitions.max_logits[row, head])
        for d in range(len(accs)):
            accs[d] = 0
        for row in range(first_row, last_row + 1):
            # Relative to the common maximum, a partition counts e**(its maximum - the common one)
            factor = exp(partitions.max_logits[row, head] - m)
            l += factor * partitions.exp_sums[row, head]
            kept = partitions.tmp_out[row, head]
            for d in range(len(accs)):
                accs[d] += factor * kept[d]
        own.m[head], own.l[head] = m, l


@njit(inline="always")
def write(own, seq, heads, v_scales, outputs, inner):
    """Write the output of a sequence.

    The scale of V comes in only here. Until then everything is a sum over rows of V, so partitions
    can be merged without it, and it costs one multiplication per head.
    """
    _, num_heads, row = outputs.out.shape
    head_size = own.accs.shape[1]
    for head in range(heads.first, heads.end):
        outputs.qk_max[seq, head] = own.m[head]
        outputs.exp_sum[seq, head] = own.l[head]
        source, target = head * head_size, seq * num_heads + head
        factor = v_scales[head] / own.l[head]
        convert(inner.write, own.accs, source, factor, outputs.out, target * row, head_size)
        if len(outputs.accs):
            multiply(own.accs, source, factor, outputs.accs, target * head_size, head_size)


COMPILING = "Compiling the CPU kernel, once: this takes 5 to 15 seconds.\n"
# Numba recompiles what it cached on disk if this file changes, or a name that a function takes from
# the one around it. It doesn't look at vectors.py.
CHECKSUM = crc32(Path(vectors.__file__).read_bytes())
FLOAT32, WHOLE, FLOATS = types.float32, types.int64, types.CPointer(types.float32)


@cache
def cpu_kernel() -> Callable:
    """kernel(inputs, schedule, partitions, outputs, inner), each a plain tuple, because recognising
    a NamedTuple takes Numba 0.7 µs per call. It is compiled at its first call.
    """
    VECTORS = CHECKSUM

    def kernel(inputs, schedule, partitions, outputs, inner):
        VECTORS  # noqa: B018
        num_shares = deal_out(Inputs(*inputs), Schedule(*schedule))
        num_workers = len(Schedule(*schedule).taken)
        for worker in prange(num_workers):
            work(
                np.int64(worker), num_shares, Inputs(*inputs), Schedule(*schedule),
                Partitions(*partitions), Outputs(*outputs), Inner(*inner),
            )  # fmt: skip

    compiled = kept(partial(njit, **COMPILED), kernel)
    # Only if Numba has nothing on disk at all
    folder = compiled.stats.cache_path
    if not (folder and any(Path(folder).glob(f"{Path(__file__).stem}.cpu_kernel*.nbc"))):
        print(COMPILING, end="", file=sys.stderr, flush=True)
    return compiled


@cache
def converters(dtype: types.Type) -> tuple[Callable, Callable]:
    """Inner.read and Inner.write for a dtype of q, compiled in a tenth of a second."""
    VECTORS = CHECKSUM

    def scaled(source, factor, target, size):
        VECTORS  # noqa: B018
        multiply(source, 0, factor, target, 0, size)

    given = types.CPointer(dtype)
    read = c_function(scaled, given, FLOAT32, FLOATS, WHOLE)
    return read, c_function(scaled, FLOATS, FLOAT32, given, WHOLE)


@cache
def loops(HEAD_SIZE: int, dtype: types.Type) -> tuple[Callable, Callable]:
    """Inner.score and Inner.add for a head size and a dtype of the cache, compiled in 0.3 s."""
    VECTORS = CHECKSUM

    def scores(q, k, left, after, num_tokens, group, qk):
        VECTORS  # noqa: B018
        score(q, 0, k, 0, left, after, num_tokens, group, qk, 0, HEAD_SIZE)

    def adds(weights, v, left, after, num_tokens, group, accs):
        VECTORS  # noqa: B018
        add(weights, 0, v, 0, left, after, num_tokens, group, accs, 0, HEAD_SIZE)

    arguments = FLOATS, types.CPointer(dtype), *[WHOLE] * 4, FLOATS
    return c_function(scores, *arguments), c_function(adds, *arguments)


def c_function(function: Callable, *arguments: types.Type) -> Callable:
    """Compiled for these types, with an address to call it at."""
    return kept(partial(cfunc, types.void(*arguments), **ARITHMETIC), function)


def kept(compiling: Callable, function: Callable) -> Callable:
    """The function for Numba to compile and keep on disk; not kept where that isn't possible."""
    try:
        return compiling(cache=True)(function)
    except RuntimeError:  # no folder that can be written, or no file (a changed copy of this one)
        return compiling()(function)
