"""Paged attention for the CPU: one decode step on all cores, compiled with numba.njit.

It reads the plain layout, K and V [num_blocks, num_kv_heads, block_size, head_size], so that one
block of K is one piece of memory: all heads of 16 tokens. A core goes through a sequence in turns
of TURN tokens:

    score   qk = q . k for every head and token      K is read from the start of a block to its end
    weigh   online softmax of the turn: maximum, weights, sum
    add     accs += weight * v                       V is read from the start of a block to its end

These three choose their vectors themselves (cpu_vectors.py). The blocks of the batch are cut into
equal shares, runs of blocks that may start and end inside a sequence; a core that is free takes the
next one. The part of a share in one sequence is a partition, as in v2, and the core that finishes
the last partition of a sequence merges them, as in v2.
"""

import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from zlib import crc32

import numpy as np
from numba import njit, prange
from numba.core.event import Event, Listener, register

from pa_tutorial.kernels import cpu_vectors
from pa_tutorial.kernels.cpu_vectors import (
    CACHE_LINE,
    LANES,
    REORDER,
    Pointer,
    Value,
    Variable,
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

# What Numba deals out to the cores: the loops over prange and nothing else. To look for whole-array
# expressions too takes up to a third of the time to compile, and outside these loops stands none
# worth dealing out. Not a dict: `njit` empties it, and the next kernel would get none of it.
OTHERS = ("comprehension", "reduction", "inplace_binop", "setitem", "numpy", "stencil", "fusion")
ONLY_LOOPS = ParallelOptions(dict.fromkeys(OTHERS, False))
COMPILED = {"parallel": ONLY_LOOPS, "fastmath": set(REORDER), "error_model": "numpy"}
# Of a text without a file (a changed copy of this one) nothing can be kept on disk.
KEEP = Path((lambda: None).__code__.co_filename).exists()

TOKENS = 4  # whose scores are computed together
HEADS = LANES // TOKENS  # query heads of a KV head that go through K and V together, at most
TURN = 64  # tokens between two looks at the maximum


def tiles(group: Value) -> Iterator[tuple[Value, int]]:
    """(first head, heads) of the tiles of a group: as many of HEADS as fit, then fewer heads."""
    first, heads = index(0), HEADS
    while heads:
        stop = group // heads * heads
        for head in loop(first, stop, heads):
            yield head, heads
        first, heads = stop, heads // 2


def place_ahead(rows: Pointer, left: Value, after: Value, AHEAD: int) -> Value:
    """The address of what is read AHEAD bytes after these rows: in this block, of which `left`
    bytes are still to be read, or in the one at the address `after`."""
    beyond = left - AHEAD
    return select(beyond > 0, rows.number + AHEAD, after - beyond)


def ask(place: Value, size: int, part: int = 0, parts: int = 1) -> None:
    """Ask for a part of the cache lines of `size` bytes."""
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
    AHEAD: int,
) -> None:
    """qk[head, token] = q . k for one KV head of one block.

    q     [group, HEAD_SIZE] float32, times the scale already
    k     [num_tokens, HEAD_SIZE]
    left, after  see place_ahead
    qk    [group, TURN], from the place of the block's first token on
    """
    size = HEAD_SIZE * k.itemsize
    parts = list(chunks(HEAD_SIZE))
    for t in loop(0, num_tokens, TOKENS):
        # A block ends with a whole tile. What empty slots hold, NaN too, gets no weight in `weigh`.
        rows = [k + (t + i) * HEAD_SIZE for i in range(TOKENS)]
        place = place_ahead(k + t * HEAD_SIZE, left - t * size, after, AHEAD)
        for head, heads in tiles(group):
            queries = [q + (head + h) * HEAD_SIZE for h in range(heads)]
            qks = [zeros() for _ in range(heads * TOKENS)]
            for part, (d, width) in enumerate(parts):
                if AHEAD:
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
    HEAD_SIZE: int,
) -> None:
    """The scores of a turn become weights: one step of the online softmax for every head.

    qk               [num_heads, TURN]   scores, then weights
    distance         of the turn's first token to the query, 0 or less: for ALiBi
    qk_max, exp_sum  [num_heads], and accs [num_heads, HEAD_SIZE]: of all turns so far
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
            # m' > m: what was summed below m counts e**(m - m') below m'
            factor = e_to_the(m_old - m_new)
            m.store(0, m_new)
            l.store(0, l.load(0, 0) * factor)
            own = accs + head * HEAD_SIZE
            for d, width in chunks(HEAD_SIZE):
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
    AHEAD: int,
) -> None:
    """accs[head] += weights[head, token] * v for one KV head of one block; as score."""
    size = HEAD_SIZE * v.itemsize
    parts = list(chunks(HEAD_SIZE))
    for head, heads in tiles(group):
        columns = LANES // heads  # so many vectors of each head fit into the registers
        for first in range(0, len(parts), columns):
            places = [
                (h, d, width) for d, width in parts[first : first + columns] for h in range(heads)
            ]
            rows = [accs + (head + h) * HEAD_SIZE for h in range(heads)]
            own = [weights + (head + h) * TURN for h in range(heads)]
            totals = {(h, d): Variable(rows[h].load(d, width)) for h, d, width in places}
            for t in loop(0, num_tokens):
                row = v + t * HEAD_SIZE
                if AHEAD and first == 0:
                    ask(place_ahead(row, left - t * size, after, AHEAD), size)
                weight = [(own[h] + t).load(0, 0) for h in range(heads)]
                v_vecs = {d: row.load(d, width) for _, d, width in places}
                for h, d, _ in places:
                    totals[h, d].value += weight[h] * v_vecs[d]
            for h, d, _ in places:
                rows[h].store(d, totals[h, d].value)


@unrolled
def multiply(
    source: Pointer, factor: Value, target: Pointer, num_rows: Value, HEAD_SIZE: int
) -> None:
    """target = source * factor, [num_rows, HEAD_SIZE]; each in its own dtype."""
    for i in loop(0, num_rows):
        for d, width in chunks(HEAD_SIZE):
            row = (source + i * HEAD_SIZE).load(d, width)
            (target + i * HEAD_SIZE).store(d, row * factor)


@unrolled
def add_scaled(source: Pointer, factor: Value, target: Pointer, HEAD_SIZE: int) -> None:
    """target += source * factor, [HEAD_SIZE]."""
    for d, width in chunks(HEAD_SIZE):
        target.store(d, target.load(d, width) + source.load(d, width) * factor)


exp = unrolled(e_to_the)


@unrolled
def address(memory: Pointer) -> int:
    return memory.number


@unrolled
def take(counter: Pointer) -> int:
    return fetch_add(counter, 1)


COMPILING = "Compiling the CPU kernel, once: some seconds.\n"


class WhileCompiling(Listener):
    """A line on stderr where Numba begins to compile a kernel that it has not kept on disk."""

    def on_start(self, event: Event) -> None:
        function = event.data["dispatcher"].py_func
        if function.__qualname__ == "cpu_kernel.<locals>.kernel":
            sys.stderr.write(COMPILING)
            sys.stderr.flush()

    def on_end(self, event: Event) -> None:
        pass


register("numba:compile", WhileCompiling())


@cache
def cpu_kernel(HEAD_SIZE: int, BLOCK_SIZE: int, AHEAD: int) -> Callable:
    """Compiled at its first call, for the types that it is given. AHEAD is in bytes; 0: never."""
    BLOCKS = TURN // BLOCK_SIZE  # in a turn
    ROWS = BLOCK_SIZE * HEAD_SIZE  # elements of one KV head in a block
    # Numba compiles anew what it kept on disk if this file changes, or a name that the kernel takes
    # from here. At cpu_vectors.py it does not look.
    VECTORS = crc32(Path(cpu_vectors.__file__).read_bytes())

    @njit(cache=KEEP, **COMPILED)
    def kernel(
        q,  # [num_seqs, num_heads, HEAD_SIZE]
        scale,  # float32
        k_cache,  # [num_blocks * num_kv_heads * BLOCK_SIZE * HEAD_SIZE]: one after the other
        v_cache,
        num_kv_heads,
        block_tables,  # [num_seqs, max_num_blocks_per_seq]
        seq_lens,  # [num_seqs]
        slopes,  # [num_heads] float32, zeros without ALiBi
        num_parts,  # of the KV heads; each has as many shares as the others
        num_shares,  # of the blocks
        taken,  # [num_workers] int64: shares taken of those of each worker
        first_block,  # [num_seqs + 1] int64: how many blocks the sequences before have
        finished,  # [num_parts, num_seqs] int64: partitions of each sequence
        max_logits,  # [2 * num_parts * num_shares, num_heads]. A share has two rows: one for the
        exp_sums,  # [..., num_heads]   sequence that began before it, or with it, and one for the
        tmp_out,  # [..., num_heads * HEAD_SIZE]   sequence that goes on after it
        qk_max,  # [num_seqs, num_heads]
        exp_sum,  # [num_seqs, num_heads]
        out,  # [num_seqs, num_heads * HEAD_SIZE] in the dtype of q
        wide,  # the same in float32, or nothing: [0, ...]
    ):
        VECTORS  # noqa: B018
        num_seqs, num_heads, _ = q.shape
        group = num_heads // num_kv_heads
        BLOCK = num_kv_heads * ROWS
        first_block[0] = 0
        for seq in range(num_seqs):
            first_block[seq + 1] = first_block[seq] + -(-seq_lens[seq] // BLOCK_SIZE)
            for part in range(num_parts):
                finished[part, seq] = 0
        num_blocks = first_block[num_seqs]
        num_shares = min(num_shares, num_blocks)
        num_workers = len(taken)
        for worker in range(num_workers):
            taken[worker] = worker * num_parts * num_shares // num_workers

        for worker in prange(num_workers):
            # A worker's own: where two write to one cache line, it travels between their cores.
            query = np.empty(num_heads * HEAD_SIZE, np.float32)
            qk = np.empty(num_heads * TURN, np.float32)
            m = np.empty(num_heads, np.float32)
            l = np.empty(num_heads, np.float32)
            accs = np.empty(num_heads * HEAD_SIZE, np.float32)
            # First its own shares, which the caches may still hold, then what others have left.
            visited = 0
            while visited < num_workers:
                owner = (worker + visited) % num_workers
                share = take(taken, owner)
                if share >= (owner + 1) * num_parts * num_shares // num_workers:
                    visited += 1
                    continue
                part, own = share // num_shares, share % num_shares
                first_kv_head = part * num_kv_heads // num_parts
                end_kv_head = (part + 1) * num_kv_heads // num_parts
                first_head = first_kv_head * group
                heads = end_kv_head * group - first_head
                element = first_head * HEAD_SIZE
                piece = first_kv_head * ROWS  # of a block: where its heads begin
                size = (end_kv_head - first_kv_head) * ROWS
                # Share i ends where share i + 1 starts: at i + 1 parts of num_shares of all blocks.
                share_start = own * num_blocks // num_shares
                share_end = (own + 1) * num_blocks // num_shares
                seq = 0
                while first_block[seq + 1] <= share_start:
                    seq += 1
                start = share_start
                while start < share_end:
                    stop = min(share_end, first_block[seq + 1])
                    seq_len, table = np.int64(seq_lens[seq]), block_tables[seq]
                    multiply(q[seq], element, scale, query, element, heads, HEAD_SIZE)
                    for head in range(first_head, first_head + heads):
                        m[head] = -np.inf
                        l[head] = 0
                    for i in range(element, element + heads * HEAD_SIZE):
                        accs[i] = 0
                    last_idx = stop - first_block[seq] - 1
                    for turn in range(start - first_block[seq], last_idx + 1, BLOCKS):
                        turn_end = min(turn + BLOCKS, last_idx + 1)
                        for block_idx in range(turn, turn_end):
                            block = table[block_idx] * BLOCK + piece
                            after = address(v_cache, table[turn] * BLOCK + piece)
                            if block_idx + 1 < turn_end:
                                after = address(k_cache, table[block_idx + 1] * BLOCK + piece)
                            num_tokens = min(BLOCK_SIZE, seq_len - block_idx * BLOCK_SIZE)
                            token = (block_idx - turn) * BLOCK_SIZE
                            for kv_head in range(first_kv_head, end_kv_head):
                                head, done = kv_head * group, (kv_head - first_kv_head) * ROWS
                                left = (size - done) * k_cache.itemsize
                                score(
                                    query, head * HEAD_SIZE, k_cache, block + done, left, after,
                                    num_tokens, group, qk, head * TURN + token, HEAD_SIZE, AHEAD,
                                )  # fmt: skip
                        token = turn * BLOCK_SIZE
                        num_tokens = min(turn_end * BLOCK_SIZE, seq_len) - token
                        distance = token - (seq_len - 1)
                        weigh(
                            qk, first_head * TURN, slopes, first_head, m, first_head, l, first_head,
                            accs, element, heads, num_tokens, distance, HEAD_SIZE,
                        )  # fmt: skip
                        for block_idx in range(turn, turn_end):
                            block = table[block_idx] * BLOCK + piece
                            next_idx = min(turn_end, last_idx)
                            after = address(k_cache, table[next_idx] * BLOCK + piece)
                            if block_idx + 1 < turn_end:
                                after = address(v_cache, table[block_idx + 1] * BLOCK + piece)
                            num_tokens = min(BLOCK_SIZE, seq_len - block_idx * BLOCK_SIZE)
                            token = (block_idx - turn) * BLOCK_SIZE
                            for kv_head in range(first_kv_head, end_kv_head):
                                head, done = kv_head * group, (kv_head - first_kv_head) * ROWS
                                left = (size - done) * v_cache.itemsize
                                add(
                                    qk, head * TURN + token, v_cache, block + done, left, after,
                                    num_tokens, group, accs, head * HEAD_SIZE, HEAD_SIZE, AHEAD,
                                )  # fmt: skip

                    # Block b lies in the share i with i * num_blocks < (b + 1) * num_shares at last
                    first = ((first_block[seq] + 1) * num_shares - 1) // num_blocks
                    last = (first_block[seq + 1] * num_shares - 1) // num_blocks
                    is_last = first == last
                    if not is_last:
                        row = 2 * share + (start > share_start)
                        for head in range(first_head, first_head + heads):
                            max_logits[row, head] = m[head]
                            exp_sums[row, head] = l[head]
                        one = np.float32(1)
                        multiply(accs, element, one, tmp_out[row], element, heads, HEAD_SIZE)
                        is_last = take(finished[part], seq) == last - first
                        if is_last:  # merge, in this order whoever it is
                            rows = 2 * part * num_shares
                            began = first_block[seq] > first * num_blocks // num_shares
                            first_row = rows + 2 * first + began
                            for head in range(first_head, first_head + heads):
                                top = max_logits[first_row, head]
                                for i in range(first + 1, last + 1):
                                    top = max(top, max_logits[rows + 2 * i, head])
                                total = np.float32(0)
                                at = head * HEAD_SIZE
                                for d in range(HEAD_SIZE):
                                    accs[at + d] = 0
                                for i in range(first, last + 1):
                                    row = first_row if i == first else rows + 2 * i
                                    # below the maximum of all, a partition counts e**(its - all)
                                    factor = exp(max_logits[row, head] - top)
                                    total += factor * exp_sums[row, head]
                                    add_scaled(tmp_out[row], at, factor, accs, at, HEAD_SIZE)
                                m[head], l[head] = top, total
                    if is_last:
                        for head in range(first_head, first_head + heads):
                            qk_max[seq, head] = m[head]
                            exp_sum[seq, head] = l[head]
                            at, inverse = head * HEAD_SIZE, np.float32(1) / l[head]
                            multiply(accs, at, inverse, out[seq], at, 1, HEAD_SIZE)
                            if len(wide):
                                multiply(accs, at, inverse, wide[seq], at, 1, HEAD_SIZE)
                    start = stop
                    seq += 1

    return kernel
